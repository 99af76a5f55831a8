// Packing rows into reports, and passing them.
#include "stopwatch/report.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace aperture::bench {

Report report_of(const Row& row) {
  Report report;
  report.done = true;
  report.ok = row.ok;
  report.unit = row.unit;
  report.value = row.value;
  report.spread = row.spread;
  std::strncpy(report.text, row.note.c_str(), sizeof report.text - 1);
  return report;
}

Report report_of(const std::exception& e) {
  Report report;
  report.done = true;
  std::strncpy(report.text, e.what(), sizeof report.text - 1);
  return report;
}

Row row_of(const Report& report) {
  Row row;
  row.ok = report.ok;
  row.unit = report.unit;
  row.value = report.value;
  row.spread = report.spread;
  row.note = report.text;
  return row;
}

void write_report(int fd, const Report& report) noexcept {
  // Below PIPE_BUF, so the pipe takes it whole.
  while (::write(fd, &report, sizeof report) < 0 && errno == EINTR) continue;
}

bool read_report(int fd, Report& report) noexcept {
  Report got;
  ssize_t n;
  do {
    n = ::read(fd, &got, sizeof got);
  } while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(sizeof got)) return false;
  report = got;
  return true;
}

}  // namespace aperture::bench
