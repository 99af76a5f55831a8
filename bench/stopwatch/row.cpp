// Printing of rows.
#include "stopwatch/row.hpp"

#include <cstdio>

namespace aperture::bench {

namespace {

const char* unit_text(Unit unit) noexcept {
  switch (unit) {
    case Unit::ns: return "ns";
    case Unit::millions_per_second: return "M/s";
    case Unit::gigabytes_per_second: return "GB/s";
    case Unit::kibibytes: return "KiB";
  }
  return "?";
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out + '"';
}

}  // namespace

Row rate_row(Unit unit, const std::vector<double>& repetitions) {
  Row row;
  row.ok = !repetitions.empty();
  row.unit = unit;
  row.value = quantile(repetitions, 0.5);
  row.spread.typical = row.spread.p50 = row.value;
  row.spread.min = quantile(repetitions, 0);
  row.spread.p99 = quantile(repetitions, 0.01);
  for (const double r : repetitions) row.spread.mean += r / static_cast<double>(repetitions.size());
  row.spread.count = repetitions.size();
  return row;
}

Row latency_row(const Samples& samples, double scale) {
  Row row;
  row.spread = samples.summary(scale);
  row.ok = row.spread.count != 0;
  row.value = row.spread.typical;
  return row;
}

Row single_row(Unit unit, double value, size_t count) {
  Row row;
  row.ok = true;
  row.unit = unit;
  row.value = value;
  row.spread.typical = row.spread.mean = row.spread.p50 = row.spread.p99 = row.spread.min = value;
  row.spread.count = count;
  return row;
}

std::string heading(Format format) {
  if (format == Format::json) return {};
  char line[256];
  std::snprintf(line, sizeof line, "%-25s %8s %10s %-5s %9s %9s %9s %9s %10s  %s\n", "measure",
                "size", "value", "unit", "min", "p50", "p99", "mean", "count", "note");
  return line;
}

std::string print(const Row& row, Format format) {
  char line[1024];
  const Summary& s = row.spread;
  if (format == Format::json) {
    std::snprintf(line, sizeof line,
                  "{\"measure\": %s, \"size\": %zu, \"ok\": %s, \"unit\": \"%s\", "
                  "\"value\": %.6g, \"min\": %.6g, \"p50\": %.6g, \"p99\": %.6g, "
                  "\"mean\": %.6g, \"count\": %zu, \"note\": %s}\n",
                  json_string(row.measure).c_str(), row.size_bytes, row.ok ? "true" : "false",
                  unit_text(row.unit), row.value, s.min, s.p50, s.p99, s.mean, s.count,
                  json_string(row.note.substr(0, 500)).c_str());
  } else if (row.ok) {
    std::snprintf(line, sizeof line, "%-25s %8s %10.4g %-5s %9.4g %9.4g %9.4g %9.4g %10zu  %s\n",
                  row.measure.c_str(), size_text(row.size_bytes).c_str(), row.value,
                  unit_text(row.unit), s.min, s.p50, s.p99, s.mean, s.count, row.note.c_str());
  } else {
    std::snprintf(line, sizeof line, "%-25s %8s %10s        %.900s\n", row.measure.c_str(),
                  size_text(row.size_bytes).c_str(), "failed", row.note.c_str());
  }
  return line;
}

std::string size_text(size_t size_bytes) {
  const char* unit = "B";
  size_t n = size_bytes;
  if (n != 0 && n % (1u << 20) == 0) {
    n >>= 20;
    unit = "MiB";
  } else if (n != 0 && n % 1024 == 0) {
    n >>= 10;
    unit = "KiB";
  }
  return std::to_string(n) + ' ' + unit;
}

}  // namespace aperture::bench
