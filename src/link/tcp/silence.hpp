// Whether the other side of a TCP connection has fallen silent although something waits for it.
//
// TCP_USER_TIMEOUT would end a connection whose peer is stopped, as well: its kernel answers, but
// takes no more than fits there, and what we hold back counts as unacknowledged. So the kernel is
// asked what was sent and when it was last answered (TCP_INFO). No state but the caller's; any
// thread.
#pragma once

#include <cstdint>

namespace aperture::link::tcp {

struct Silence {
  uint64_t acknowledged = ~uint64_t{0};  // bytes, when last asked
  uint64_t since_ns = 0;                 // nothing was acknowledged since then
};

// To be asked now and then. True: nothing at all was heard for so long although something was sent,
// none of which was acknowledged meanwhile, or although a peer that had no room was asked several
// times whether it has some. TCP(7), RFC 9293 3.8.6.1.
bool has_fallen_silent(int fd, uint64_t silence_ns, Silence& seen) noexcept;
// Whether there is anything for which silence would mean that. Nobody but who asks finds out: there
// is no keepalive meanwhile.
bool awaits_acknowledgement(int fd) noexcept;

}  // namespace aperture::link::tcp
