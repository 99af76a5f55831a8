// Trust in the type: a value that came from a peer.
//
// Wild<T> is copied once out of shared memory (or a socket buffer) before anything looks at it, and
// it has no operators: a check has to name itself by calling one of the functions below. Lengths,
// keys and addresses become usable only through protect/ (a Grant) or through bounded().
#pragma once

#include <type_traits>

namespace aperture {

template <typename T>
class Wild {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  constexpr Wild() noexcept : value_{} {}
  constexpr explicit Wild(T value) noexcept : value_(value) {}

  // The value if it is at most limit, else the fallback given; the usual check of lengths and
  // indices.
  constexpr bool bounded(T limit, T& out) const noexcept {
    if (value_ > limit) return false;
    out = value_;
    return true;
  }
  // For protect/, for matching (a tag cannot harm), and for explanations.
  constexpr T unchecked() const noexcept { return value_; }

 private:
  T value_;
};

// A word as it was copied out of shared memory. The compiler no longer knows where it came from, so
// it cannot read it there again instead of keeping it, when the peer may have changed it.
template <typename T>
[[gnu::always_inline]] inline T copied_once(T word) noexcept {
  static_assert(std::is_integral_v<T>);
  asm("" : "+r"(word));
  return word;
}

}  // namespace aperture
