// Opening the sockets of a datagram queue pair: see datagram_sockets.hpp.
#include "nic/datagram_sockets.hpp"

#include "base/fork_guard.hpp"
#include "link/faulty/datagrams.hpp"
#include "link/faulty/setting.hpp"
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
  auto opened = link::udp::open(ips, offered, watcher);
  const FaultPlan* const plan = link::faulty::configured();
  if (!opened || plan == nullptr || !plan->is_of_datagrams()) return opened;
  auto faulty =
      link::faulty::FaultyDatagrams::make(*std::move(opened), *plan, link::faulty::next_number());
  if (!faulty) return faulty.error();
  return std::unique_ptr<link::Datagrams>(*std::move(faulty));
}

}  // namespace aperture::nic
