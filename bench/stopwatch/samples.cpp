// Order statistics over tick samples.
#include "stopwatch/samples.hpp"

#include <algorithm>
#include <cmath>

#include "base/clock.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kBlock = 32;
constexpr size_t kFewestBlocks = 8;  // with fewer, one interrupted block would be the figure

}  // namespace

double ns_per_tick() noexcept {
  static const double ratio = 1e9 / static_cast<double>(ticks_from_ns(1'000'000'000));
  return ratio;
}

double quantile(std::vector<double> values, double rank) {
  if (values.empty()) return 0;
  const double place = rank * static_cast<double>(values.size() - 1);
  const auto nth = values.begin() + std::lround(place);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

Summary Samples::summary(double scale) const {
  Summary out;
  out.count = ticks_.size();
  if (ticks_.empty()) return out;
  const double unit = ns_per_tick() * scale;
  std::vector<double> single, blocks;
  single.reserve(ticks_.size());
  blocks.reserve(ticks_.size() / kBlock + 1);
  double sum = 0, block = 0;
  size_t in_block = 0;
  for (const uint32_t t : ticks_) {
    single.push_back(t * unit);
    sum += t * unit;
    block += t * unit;
    if (++in_block == kBlock) {
      blocks.push_back(block / kBlock);
      block = 0;
      in_block = 0;
    }
  }
  out.typical = quantile(blocks.size() < kFewestBlocks ? single : std::move(blocks), 0.5);
  out.mean = sum / static_cast<double>(ticks_.size());
  out.min = *std::min_element(single.begin(), single.end());
  out.p50 = quantile(single, 0.5);
  out.p99 = quantile(std::move(single), 0.99);
  return out;
}

}  // namespace aperture::bench
