// What the TCP connections of ids have that those of one host do not need. Any thread; no state.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace aperture::cm {

// A host that goes without a word, or is cut off, is noticed after half a minute: the kernel asks
// by itself, and nobody here is woken for it. tcp(7).
inline void end_when_silent(int fd) noexcept {
  constexpr int kIdleS = 10;
  constexpr int kBetweenS = 5;
  constexpr int kTries = 4;
  constexpr unsigned kUnansweredMs = 30'000;
  const auto set = [fd](int level, int name, auto value) {
    ::setsockopt(fd, level, name, &value, sizeof value);  // advisory
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kBetweenS);
  set(IPPROTO_TCP, TCP_KEEPCNT, kTries);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMs);
}

}  // namespace aperture::cm
