// Page-aligned memory that is touched before the clock starts.
//
// One owner; a shared one is made before fork() and then seen by both processes of a pair.
#pragma once

#include <cstddef>
#include <utility>

namespace aperture::bench {

class Pages {
 public:
  enum class Kind { own, shared };

  Pages() noexcept = default;
  // Throws Failure when there is no memory. Every page is written once (zeros).
  Pages(size_t size_bytes, Kind kind);
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Pages();

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes that depend on the seed and on their place, so that a stale, shifted or torn copy shows.
void fill_pattern(std::byte* at, size_t len_bytes, unsigned long seed) noexcept;
// The first offset that does not hold the seed's pattern, or len_bytes when all do.
size_t first_mismatch(const std::byte* at, size_t len_bytes, unsigned long seed) noexcept;
// Throws Failure when not all do.
void expect_pattern(const std::byte* at, size_t len_bytes, unsigned long seed);

}  // namespace aperture::bench
