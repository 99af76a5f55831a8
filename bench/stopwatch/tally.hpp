// How much one party of several had done at a moment that lies between two of its looks at the
// clock: evenly much in between.
#pragma once

#include <algorithm>
#include <cstdint>

namespace aperture::bench {

class Tally {
 public:
  explicit Tally(uint64_t start_ns) noexcept : before_ns_(start_ns), now_ns_(start_ns) {}

  uint64_t done() const noexcept { return done_; }

  void add(uint64_t count, uint64_t now_ns) noexcept {
    before_ = done_;
    before_ns_ = now_ns_;
    done_ += count;
    now_ns_ = now_ns;
  }

  // For a moment since the last look but one.
  double at(uint64_t ns) const noexcept {
    if (ns >= now_ns_) return static_cast<double>(done_);
    const auto part = static_cast<double>(ns - std::min(ns, before_ns_)) /
                      static_cast<double>(now_ns_ - before_ns_);
    return static_cast<double>(before_) + part * static_cast<double>(done_ - before_);
  }

 private:
  uint64_t before_ = 0, before_ns_, done_ = 0, now_ns_;
};

}  // namespace aperture::bench
