// The groups of a datagram endpoint: see datagram_groups.hpp.
#include "nic/datagram_groups.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "wire/message_datagram.hpp"

namespace aperture::nic {

namespace {
constexpr uint64_t kGroupBit = uint64_t{1} << 63;
}  // namespace

// The place behind the others, or one that was left.
Result<uint64_t> DatagramGroups::join(const Address& group, Membership as) noexcept {
  if (!wire::is_group(group) || (!as.sends && !as.receives)) return Errc::invalid;
  const EngineGuard guard(engine_);
  auto place =
      std::find_if(groups_.begin(), groups_.end(), [](const Group& g) { return !g.joined; });
  try {
    if (place == groups_.end()) place = groups_.insert(place, Group{});
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  if (as.receives) {
    if (Status s = socket_.join(group, local_); !s) return s.error();
  }
  *place = {group, as, true};
  return kGroupBit | static_cast<uint64_t>(place - groups_.begin());
}

void DatagramGroups::leave(uint64_t dest) noexcept {
  const EngineGuard guard(engine_);
  const uint64_t at = dest & ~kGroupBit;
  if (!is_group(dest) || at >= groups_.size() || !groups_[at].joined) return;
  const Group left = std::exchange(groups_[at], Group{});
  if (!left.as.receives || receives_at_ip(left.at)) return;
  [[maybe_unused]] const Status s = socket_.leave(left.at);
  assert(s.ok());
}

Result<Address> DatagramGroups::destination(uint64_t dest) const noexcept {
  assert(is_group(dest));
  const uint64_t at = dest & ~kGroupBit;
  if (at >= groups_.size() || !groups_[at].joined) return Errc::no_entry;
  if (!groups_[at].as.sends) return Errc::access_denied;
  return groups_[at].at;
}

bool DatagramGroups::receives_at(const Address& ip, uint16_t port) const noexcept {
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& g) {
    return g.joined && g.as.receives && g.at.ip == ip.ip && g.at.port == port;
  });
}

// Whatever the port.
bool DatagramGroups::receives_at_ip(const Address& ip) const noexcept {
  return std::any_of(groups_.begin(), groups_.end(),
                     [&](const Group& g) { return g.joined && g.as.receives && g.at.ip == ip.ip; });
}

}  // namespace aperture::nic
