// What all posting calls share: checking arguments, taking the lock, answering. Data path: no
// allocation, no system call.
#pragma once

#include <sys/uio.h>

#include <cstdint>

#include "provider/ep.hpp"
#include "provider/errors.hpp"

namespace aperture::provider {

// Adds up the pieces; false if there are too many, or one is NULL with a length, or the sum wraps.
inline bool measure(const iovec* iov, size_t count, size_t limit, uint64_t& len) noexcept {
  len = 0;
  if (count > limit || (iov == nullptr && count != 0)) [[unlikely]]
    return false;
  for (size_t i = 0; i < count; ++i) {
    if (iov[i].iov_base == nullptr && iov[i].iov_len != 0) [[unlikely]]
      return false;
    if (__builtin_add_overflow(len, iov[i].iov_len, &len)) [[unlikely]]
      return false;
  }
  return true;
}

// Cold: logs why a post was refused and answers its code.
[[gnu::cold]] ssize_t refuse_pieces(const char* call, size_t count, size_t limit) noexcept;
[[gnu::cold]] ssize_t refuse_length(const char* call, uint64_t len, uint64_t limit) noexcept;
[[gnu::cold]] ssize_t refuse_flags(const char* call, uint64_t flags, uint64_t known) noexcept;
[[gnu::cold]] ssize_t refuse_side(const char* call, const char* cap) noexcept;
[[gnu::cold]] ssize_t refuse_post(const char* call, Errc why, uint64_t addr) noexcept;

// Posts under the lock; when there is no room, progresses the engine once and tries again, and what
// found none for a while gives the core away.
template <typename Fn>
inline ssize_t post(Ep& ep, const char* call, uint64_t addr, Fn&& fn) noexcept {
  nic::PollGuard guard(*ep.engine);
  Status s = fn(*ep.core);
  if (s.ok()) [[likely]] {
    ep.engine->on_posted();
    return 0;
  }
  if (s.error() == Errc::again) {
    ep.engine->poll();
    Sleeper::keep_asleep(*ep.body->domain);
    s = fn(*ep.core);
    ep.engine->on_posted();  // or earlier
    if (s.ok()) return 0;
    if (s.error() == Errc::again) {  // some programs call nothing else until there is room
      guard.found_nothing();
      return -FI_EAGAIN;
    }
  }
  return refuse_post(call, s.error(), addr);
}

// What becomes of a work request that a call has made: it is posted. Operations that are to wait
// for a counter have their own of these (work.hpp).
struct Now {
  static ssize_t send(Ep& ep, const char* call, const qp::SendWr& wr) noexcept {
    return post(ep, call, wr.dest, [&wr](nic::Endpoint& core) noexcept { return core.send(wr); });
  }
  static ssize_t recv(Ep& ep, const char* call, const qp::RecvWr& wr) noexcept {
    return post(ep, call, wr.source, [&wr](nic::Endpoint& core) noexcept { return core.recv(wr); });
  }
  static ssize_t recv_multi(Ep& ep, const char* call, const qp::RecvWr& wr) noexcept {
    return post(ep, call, wr.source, [&](nic::Endpoint& core) noexcept {
      return core.recv_multi(wr, ep.body->min_multi_recv);
    });
  }
  template <bool kIsWrite>
  static ssize_t access(Ep& ep, const char* call, const qp::RmaWr& wr) noexcept {
    return post(ep, call, wr.dest, [&wr](nic::Endpoint& core) noexcept {
      return kIsWrite ? core.write(wr) : core.read(wr);
    });
  }
  static ssize_t atomic(Ep& ep, const char* call, const qp::AtomicWr& wr) noexcept {
    return post(ep, call, wr.dest, [&wr](nic::Endpoint& core) noexcept { return core.atomic(wr); });
  }
};

}  // namespace aperture::provider
