// What a process of the bench tells its supervisor over a pipe: its row, or why it has none.
#pragma once

#include <exception>

#include "stopwatch/row.hpp"

namespace aperture::bench {

struct Report {
  bool done = false;
  bool ok = false;
  Unit unit = Unit::ns;
  double value = 0;
  Summary spread;
  char text[400] = {};
};

Report report_of(const Row& row);
Report report_of(const std::exception& e);
Row row_of(const Report& report);

void write_report(int fd, const Report& report) noexcept;
// False when the pipe ended without one.
bool read_report(int fd, Report& report) noexcept;

}  // namespace aperture::bench
