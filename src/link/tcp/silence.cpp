// Asking the kernel about acknowledgements: see silence.hpp.
#include "link/tcp/silence.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/clock.hpp"

namespace aperture::link::tcp {

namespace {

// The first ones follow each other soon, and may be lost as anything may.
constexpr uint8_t kUnansweredProbes = 3;

bool ask(int fd, tcp_info& info) noexcept {
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
}

}  // namespace

bool has_fallen_silent(int fd, uint64_t silence_ns, Silence& seen) noexcept {
  tcp_info info{};
  if (!ask(fd, info)) return false;  // it has ended
  const bool unheard = info.tcpi_last_ack_recv * kNsPerMs >= silence_ns;
  if (info.tcpi_unacked == 0) {
    seen = {};  // what is sent next is unacknowledged from then on only
    return unheard && info.tcpi_notsent_bytes != 0 && info.tcpi_probes >= kUnansweredProbes;
  }
  const uint64_t now = now_ns();
  if (info.tcpi_bytes_acked != seen.acknowledged) seen = {info.tcpi_bytes_acked, now};
  return unheard && now - seen.since_ns >= silence_ns;
}

bool awaits_acknowledgement(int fd) noexcept {
  tcp_info info{};
  return ask(fd, info) && (info.tcpi_unacked != 0 || info.tcpi_notsent_bytes != 0);
}

}  // namespace aperture::link::tcp
