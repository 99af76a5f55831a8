// Opening the sockets of a datagram queue pair: see datagram_sockets.hpp.
#include "nic/datagram_sockets.hpp"

#include "base/fork_guard.hpp"
#include "link/udp/udp.hpp"

namespace aperture::nic {

Result<std::unique_ptr<link::Datagrams>> open_datagrams(std::span<const Address> ips,
                                                        std::span<const Address> offered) noexcept {
  const link::udp::FdWatcher watcher{
      [](int fd) {
        close_in_forked_children(fd);
        return ForkRound().number();
      },
      [](int fd, uint32_t round) { return forget_for_forked_children(fd, ForkRound(round)); }};
  return link::udp::open(ips, offered, watcher);
}

}  // namespace aperture::nic
