// Times of single iterations, and what is said about them.
//
// The tick counter of some CPUs advances in steps of 10 ns, a good part of a round trip here. So
// the headline (typical) is the median over blocks of 32 consecutive iterations of the block's
// mean, where the step is 32 times finer; p50, p99 and min are of single iterations and as coarse
// as the counter. One thread; add() neither allocates nor branches beyond its capacity check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aperture::bench {

double ns_per_tick() noexcept;

struct Summary {
  double typical = 0;  // median of block means
  double mean = 0;
  double min = 0;
  double p50 = 0;
  double p99 = 0;
  size_t count = 0;
};

class Samples {
 public:
  explicit Samples(size_t capacity) : capacity_(capacity) { ticks_.reserve(capacity); }

  void add(uint64_t ticks) noexcept {
    if (ticks_.size() < capacity_) {
      const uint64_t top = UINT32_MAX;
      ticks_.push_back(static_cast<uint32_t>(ticks < top ? ticks : top));
    }
  }
  void clear() noexcept { ticks_.clear(); }
  size_t size() const noexcept { return ticks_.size(); }
  bool full() const noexcept { return ticks_.size() == capacity_; }

  // In nanoseconds, each multiplied by scale (0.5: one way of a round trip).
  Summary summary(double scale) const;

 private:
  size_t capacity_;
  std::vector<uint32_t> ticks_;
};

// The value at rank (0 to 1) of the sorted values; 0 of none.
double quantile(std::vector<double> values, double rank);

}  // namespace aperture::bench
