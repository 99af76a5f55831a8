// Asking the kernel about acknowledgements: see silence.hpp.
#include "link/tcp/silence.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/clock.hpp"

namespace aperture::link::tcp {

namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
// Probes are asked after ever longer pauses: the third has waited for some seconds.
constexpr uint8_t kUnansweredProbes = 3;

}  // namespace

bool has_fallen_silent(int fd, uint64_t silence_ns, Silence& seen) noexcept {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;  // it has ended
  const uint64_t now = now_ns();
  const bool under_way = info.tcpi_unacked != 0;
  if (!under_way || info.tcpi_bytes_acked != seen.acknowledged) {
    seen = {info.tcpi_bytes_acked, now};
    return info.tcpi_notsent_bytes != 0 && info.tcpi_probes >= kUnansweredProbes;
  }
  return now - seen.since_ns >= silence_ns && info.tcpi_last_ack_recv * kNsPerMs >= silence_ns;
}

}  // namespace aperture::link::tcp
