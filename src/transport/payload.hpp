// The payload of pieces between a lane and memory: where that is one run, the link may send it from
// there, or receive it there; else it is copied to and from the byte ring.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/iov.hpp"
#include "protect/grant.hpp"
#include "transport/payload_end.hpp"

namespace aperture::transport {

// Where all of [offset, offset + n) lies in one of them; else null.
inline std::byte* one_run(const iovec* iov, size_t count, uint64_t offset, uint64_t n) noexcept {
  std::byte* run = nullptr;
  each_iov_piece(iov, count, offset, n, [&](std::byte* piece, size_t len) {
    if (len == n) run = piece;
  });
  return run;
}

// --- out: n bytes, all of the piece's. False: a part of them is not mapped. ---

inline bool put_payload(PieceOut& out, const iovec* iov, size_t count, uint64_t offset,
                        uint64_t n) noexcept {
  if (const std::byte* run = one_run(iov, count, offset, n); run != nullptr) {
    const link::Carried carried = out.carry(run, true);
    if (carried != link::Carried::no) [[unlikely]]
      return carried == link::Carried::yes;
  }
  gather(out.at(), iov, count, offset, n);
  return true;
}

// The grant is held for as long as the call takes.
inline bool put_payload(PieceOut& out, const protect::Grant& grant, uint64_t n) noexcept {
  if (const std::byte* run = grant.run(); run != nullptr) {
    const link::Carried carried = out.carry(run, false);
    if (carried != link::Carried::no) [[unlikely]]
      return carried == link::Carried::yes;
  }
  return grant.copy_out(out.at(), n);
}

// --- in: all of it. False: there is no memory that takes it, or it cannot be had any more. ---

inline bool take_payload(BytesIn& in, const iovec* iov, size_t count, uint64_t offset) noexcept {
  if (in.may_land()) [[unlikely]] {
    std::byte* const run = one_run(iov, count, offset, in.len);
    if (run != nullptr) return in.land(run);
    if (!in.stage()) return false;
  }
  scatter(iov, count, offset, in.from(), in.len);
  return true;
}

inline bool take_payload(BytesIn& in, const protect::Grant& grant) noexcept {
  if (in.may_land()) [[unlikely]] {
    if (grant.run() != nullptr) return in.land(grant.run());
    if (!in.stage()) return false;
  }
  return grant.copy_in(in.from(), in.len);
}

}  // namespace aperture::transport
