// What the command lines of the measuring programs have in common, and the run over their rows.
#pragma once

#include <getopt.h>

#include <cstdio>
#include <string>
#include <vector>

#include "stopwatch/pair.hpp"
#include "stopwatch/row.hpp"
#include "stopwatch/select.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

struct RowOptions {
  std::string only;
  Extent extent;
  PairOptions pair;
  bool list = false;
};

// The lines of a usage text for them.
extern const char kRowOptionsUsage[];

// A program's own long options and those of RowOptions, with the end mark.
std::vector<option> with_row_options(std::vector<option> own);

// False when it is none of them, or its value is not one.
bool take_row_option(int letter, const char* value, RowOptions& options);

// Prints a row of each selected measure, or lists them; take(measure) yields a row. The exit code.
template <typename Measures, typename Take>
int run_rows(const char* program, const RowOptions& options, const Measures& all, Take&& take) {
  const Format format = options.pair.format;
  int failed = 0, taken = 0;
  for (const auto& m : all) {
    if (m.hidden && options.only.empty()) continue;
    const std::string name = m.name;
    if (!selected(options.only, name, m.size_bytes)) continue;
    taken++;
    if (options.list) {
      std::printf("%s/%zu\t%s\n", name.c_str(), m.size_bytes, m.about);
      continue;
    }
    if (taken == 1) std::fputs(heading(format).c_str(), stdout);
    std::fflush(stdout);
    const Row row = take(m);
    failed += row.ok ? 0 : 1;
    std::fputs(print(row, format).c_str(), stdout);
    std::fflush(stdout);
  }
  if (taken == 0) {
    std::fprintf(stderr, "%s: nothing is called '%s'\n", program, options.only.c_str());
  }
  return taken == 0 ? 2 : (failed != 0 ? 1 : 0);
}

}  // namespace aperture::bench
