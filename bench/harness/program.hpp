// The main function of the measuring programs: reads the command line and takes each wanted row.
//
// `Options` is a program's own: `rows`, take(letter, value), which is false for what is no option,
// and complete(), which is false when one is missing.
#pragma once

#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "harness/threads.hpp"
#include "stopwatch/pairs.hpp"
#include "stopwatch/patience.hpp"
#include "stopwatch/row_options.hpp"

namespace aperture::bench {

struct Program {
  const char* name;
  const char* usage;  // above the options that all programs have
  const char* more;   // below them
  const char* letters;
  std::vector<option> longs;  // its own
};

template <typename Options>
bool parse(const Program& program, int argc, char** argv, Options& options) {
  const std::vector<option> longs = with_row_options(program.longs);
  for (int c; (c = ::getopt_long(argc, argv, program.letters, longs.data(), nullptr)) != -1;) {
    if (!options.take(c, optarg)) return false;
  }
  return optind == argc && options.complete();
}

// The row of one measure, which body takes in both processes of a pair.
template <typename Measure, typename Body>
Row take_row(PairOptions pair, const Measure& measure, Body&& body) {
  const Crowding& crowd = measure.crowd;
  pair.cores = crowd.cores;
  if (crowd.pairs > 1 || crowd.threads > 1 || crowd.ranks > 2)
    pair.timeout_s *= 2;  // each gets its turns late
  Row row;
  if (crowd.pairs > 1) {
    row = run_pairs(pair, crowd.pairs, body);
  } else if (crowd.threads != 0 && crowd.shared != Shared::queue) {
    row = run_pair(pair, [&](Side& side) { return take_in_threads(side, crowd.threads, body); });
  } else {
    row = run_group(pair, crowd.ranks, body);
  }
  row.measure = measure.name;
  row.size_bytes = measure.size_bytes;
  return row;
}

// take(measure, options) yields a row. The exit code: 0 all taken, 1 some failed, 2 wrong usage.
template <typename Options, typename Measures, typename Take>
int run_program(const Program& program, int argc, char** argv, const Measures& all, Take&& take) {
  Options options;
  if (!parse(program, argc, argv, options)) {
    std::fprintf(stderr, "%s%s%s", program.usage, kRowOptionsUsage, program.more);
    return 2;
  }
  try {
    set_patience(options.rows.pair.timeout_s / 5);
    return run_rows(program.name, options.rows, all,
                    [&](const auto& measure) { return take(measure, options); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", program.name, e.what());
    return 2;
  }
}

}  // namespace aperture::bench
