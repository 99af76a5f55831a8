// One measured figure, and its two printed forms: a line for people, a line of JSON for programs.
#pragma once

#include <cstddef>
#include <string>

#include "stopwatch/samples.hpp"

namespace aperture::bench {

enum class Unit { ns, millions_per_second, gigabytes_per_second, kibibytes };

struct Row {
  std::string measure;  // as perftest names it
  size_t size_bytes = 0;
  Unit unit = Unit::ns;
  bool ok = false;
  double value = 0;  // the headline: see Samples for latencies, median of repetitions otherwise
  Summary spread;    // in the same unit as value
  std::string note;  // when ok: how it was measured; otherwise the reason
};

// Of repeated rates or bandwidths (larger is better: p99 is the value that 99 % exceed).
Row rate_row(Unit unit, const std::vector<double>& repetitions);
Row latency_row(const Samples& samples, double scale);
// Of one figure that stands for `count` things.
Row single_row(Unit unit, double value, size_t count);

enum class Format { text, json };
std::string heading(Format format);
std::string print(const Row& row, Format format);

// "8 B", "64 KiB", "4 MiB".
std::string size_text(size_t size_bytes);

}  // namespace aperture::bench
