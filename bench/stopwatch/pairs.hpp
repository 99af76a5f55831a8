// Several pairs of processes at once, that share their cores.
//
// Each pair has a supervisor of its own (see pair.hpp), so that nothing outlives it, and all are
// timed over the interval that one gate gives them.
#pragma once

#include "stopwatch/pair.hpp"

namespace aperture::bench {

// What the threads of one process have in common: a queue (and endpoint), what queues are made of
// (a domain, a device), or nothing.
enum class Shared { queue, container, nothing };

// By how many pairs a measure is taken, or by how many threads of both processes, and where.
struct Crowding {
  Cores cores = Cores::two;
  unsigned pairs = 1;
  unsigned threads = 0;  // 0: it is no measure of threads
  Shared shared = Shared::nothing;
  unsigned ranks = 2;  // processes of one group: more of them are all initiators
};

// The sum of the pairs' rates; failed when one of them is.
Row run_pairs(const PairOptions& options, unsigned pairs, const std::function<Row(Side&)>& body);

// Of rows of one unit, which are rates. `each`: what one of them is called.
Row sum_of(const std::vector<Row>& rows, const char* each);

}  // namespace aperture::bench
