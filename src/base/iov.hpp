// Copies between flat memory and the pieces of an iovec, from a byte offset on.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace aperture {

// Calls fn(pointer, n) for the pieces of [offset, offset + len) of the iovec, as far as it goes.
template <typename Fn>
inline void each_iov_piece(const iovec* iov, size_t count, uint64_t offset, uint64_t len, Fn&& fn) {
  for (size_t i = 0; i < count && len > 0; ++i) {
    if (offset >= iov[i].iov_len) {
      offset -= iov[i].iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(len, iov[i].iov_len - offset);
    fn(static_cast<std::byte*>(iov[i].iov_base) + offset, static_cast<size_t>(n));
    len -= n;
    offset = 0;
  }
}

inline void gather(void* to, const iovec* iov, size_t count, uint64_t offset, uint64_t len) {
  auto* out = static_cast<std::byte*>(to);
  each_iov_piece(iov, count, offset, len, [&](const std::byte* piece, size_t n) {
    std::memcpy(out, piece, n);
    out += n;
  });
}

inline void scatter(const iovec* iov, size_t count, uint64_t offset, const void* from,
                    uint64_t len) {
  auto* in = static_cast<const std::byte*>(from);
  each_iov_piece(iov, count, offset, len, [&](std::byte* piece, size_t n) {
    std::memcpy(piece, in, n);
    in += n;
  });
}

inline uint64_t iov_bytes(const iovec* iov, size_t count) noexcept {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += iov[i].iov_len;
  return sum;
}

}  // namespace aperture
