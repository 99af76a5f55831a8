// The list of measures over verbs, named as perftest names them, with "verbs_" in front.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stopwatch/pairs.hpp"
#include "verbbench/task.hpp"

namespace aperture::bench {

struct Measure {
  std::string name;
  size_t size_bytes;
  const char* about;
  std::function<std::unique_ptr<Task>(const Setup&, Side&)> make;
  double scale = 0.5;   // of a sample: 0.5 is one way of a round trip, 1 a whole operation
  bool latency = true;  // else a rate, or a bandwidth
  bool hidden = false;  // only when asked for by name
  Ways ways = Ways::one;
  bool single = false;  // see Plan
  Crowding crowd{};
};

const std::vector<Measure>& all_measures();

// Runs in both processes of a pair; rank 0's row is the result.
Row take_measure(const Measure& measure, const Setup& setup, Side& side, const Extent& extent);

}  // namespace aperture::bench
