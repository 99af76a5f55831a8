// Copying a few bytes for what costs little more than the copy. Any thread; the two places do not
// overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace aperture {

inline constexpr size_t kShortBytes = 64;

// Without a call: memcpy of a length that the compiler does not know costs more than the rest of a
// small message's way. n <= kShortBytes. Two moves that may overlap in their middle stand for each
// range of lengths; nothing outside [0, n) is touched on either side.
[[gnu::always_inline]] inline void copy_short(void* to, const void* from, size_t n) noexcept {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const auto both_ends = [&]<typename Word>(Word) {
    Word first, last;
    std::memcpy(&first, in, sizeof first);
    std::memcpy(&last, in + n - sizeof last, sizeof last);
    std::memcpy(out, &first, sizeof first);
    std::memcpy(out + n - sizeof last, &last, sizeof last);
  };
  struct Sixteen {
    uint64_t words[2];
  };
  struct ThirtyTwo {
    uint64_t words[4];
  };
  if (n == sizeof(uint64_t)) [[likely]] {
    std::memcpy(out, in, sizeof(uint64_t));
  } else if (n > 32) {
    both_ends(ThirtyTwo{});
  } else if (n > 16) {
    both_ends(Sixteen{});
  } else if (n > 8) {
    both_ends(uint64_t{});
  } else if (n >= 4) {
    both_ends(uint32_t{});
  } else if (n >= 2) {
    both_ends(uint16_t{});
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
