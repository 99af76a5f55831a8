// Copying a few bytes for what costs little more than the copy. Any thread; the two places do not
// overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace aperture {

inline constexpr size_t kShortBytes = 64;

namespace detail {

// The first and the last bytes of [0, n), as many as a Word has: they may overlap in the middle. A
// function and no closure, which would be laid out on the stack whether it is called or not.
template <typename Word>
[[gnu::always_inline]] inline void copy_both_ends(std::byte* to, const std::byte* from,
                                                  size_t n) noexcept {
  Word first, last;
  std::memcpy(&first, from, sizeof first);
  std::memcpy(&last, from + n - sizeof last, sizeof last);
  std::memcpy(to, &first, sizeof first);
  std::memcpy(to + n - sizeof last, &last, sizeof last);
}

template <size_t kWords>
struct Words {
  uint64_t words[kWords];
};

}  // namespace detail

// Without a call: memcpy of a length that the compiler does not know costs more than the rest of a
// small message's way. n <= kShortBytes. Two moves stand for each range of lengths; nothing outside
// [0, n) is touched on either side.
[[gnu::always_inline]] inline void copy_short(void* to, const void* from, size_t n) noexcept {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  if (n == sizeof(uint64_t)) [[likely]] {
    std::memcpy(out, in, sizeof(uint64_t));
  } else if (n > 32) {
    detail::copy_both_ends<detail::Words<4>>(out, in, n);
  } else if (n > 16) {
    detail::copy_both_ends<detail::Words<2>>(out, in, n);
  } else if (n > 8) {
    detail::copy_both_ends<uint64_t>(out, in, n);
  } else if (n >= 4) {
    detail::copy_both_ends<uint32_t>(out, in, n);
  } else if (n >= 2) {
    detail::copy_both_ends<uint16_t>(out, in, n);
  } else if (n == 1) {
    *out = *in;
  }
}

// To any address, each member by itself. A memcpy() of a variable whose members were just computed
// puts them on the stack one by one and loads them from there in larger words, which the processor
// can do only when the stores have left it: 4 ns and more.
template <typename T>
[[gnu::always_inline]] inline void store_members(std::byte* to, const T& what) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  struct [[gnu::packed, gnu::may_alias]] Anywhere {
    T value;
  };
  reinterpret_cast<Anywhere*>(to)->value = what;
}

}  // namespace aperture
