// Several pairs of processes at once, that share their cores.
//
// Each pair has a supervisor of its own (see pair.hpp), so that nothing outlives it, and all are
// timed over the interval that one gate gives them.
#pragma once

#include "stopwatch/pair.hpp"

namespace aperture::bench {

// How many pairs a measure is taken by, and where they run.
struct Crowding {
  Cores cores = Cores::two;
  unsigned pairs = 1;
};

// The sum of the pairs' rates; failed when one of them is.
Row run_pairs(const PairOptions& options, unsigned pairs, const std::function<Row(Side&)>& body);

// Of rows of one unit, which are rates. `each`: what one of them is called.
Row sum_of(const std::vector<Row>& rows, const char* each);

}  // namespace aperture::bench
