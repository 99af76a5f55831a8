// Trust in the type: a value that came from a peer.
//
// Wild<T> is copied once out of shared memory (or a socket buffer) before anything looks at it, and
// it has no operators: a check has to name itself by calling one of the functions below. Lengths,
// keys and addresses become usable only through protect/ (a Grant) or through bounded().
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace aperture {

// A word as it was copied out of shared memory. The compiler no longer knows where it came from, so
// it cannot read it there again instead of keeping it, when the peer may have changed it.
template <typename T>
requires std::is_integral_v<T>
[[gnu::always_inline]] inline T copied_once(T word) noexcept {
  asm("" : "+r"(word));
  return word;
}

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

  // As copied_once() above.
  friend Wild copied_once(Wild from) noexcept {
    if constexpr (std::is_integral_v<T>) {
      return Wild(copied_once(from.value_));
    } else {
      static_assert(sizeof(T) == sizeof(uint32_t));
      return Wild(std::bit_cast<T>(copied_once(std::bit_cast<uint32_t>(from.value_))));
    }
  }

 private:
  T value_;
};

namespace detail {

struct AnyMember {
  template <typename T>
  operator T() const noexcept;  // never called
};
template <typename Fields, typename... Members>
constexpr size_t members_of() noexcept {
  if constexpr (requires { Fields{Members{}..., AnyMember{}}; }) {
    return members_of<Fields, Members..., AnyMember>();
  } else {
    return sizeof...(Members);
  }
}
template <typename... Members>
[[gnu::always_inline]] inline void keep_as_copied(Members&... members) noexcept {
  ((members = copied_once(members)), ...);
}

}  // namespace detail

// A record of numbers out of shared memory, each of them copied once.
template <typename Fields>
[[gnu::always_inline]] inline Fields load_once(const std::byte* from) noexcept {
  static_assert(std::is_trivially_copyable_v<Fields>);
  constexpr size_t kMembers = detail::members_of<Fields>();
  static_assert(kMembers >= 1 && kMembers <= 6);
  Fields f;
  std::memcpy(&f, from, sizeof f);
  if constexpr (kMembers == 1) {
    auto& [a] = f;
    detail::keep_as_copied(a);
  } else if constexpr (kMembers == 2) {
    auto& [a, b] = f;
    detail::keep_as_copied(a, b);
  } else if constexpr (kMembers == 3) {
    auto& [a, b, c] = f;
    detail::keep_as_copied(a, b, c);
  } else if constexpr (kMembers == 4) {
    auto& [a, b, c, d] = f;
    detail::keep_as_copied(a, b, c, d);
  } else if constexpr (kMembers == 5) {
    auto& [a, b, c, d, e] = f;
    detail::keep_as_copied(a, b, c, d, e);
  } else {
    auto& [a, b, c, d, e, g] = f;
    detail::keep_as_copied(a, b, c, d, e, g);
  }
  return f;
}

}  // namespace aperture
