// Counting what strangers hold: see shares.hpp.
#include "nic/shares.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>

namespace aperture::nic {

namespace {

size_t half_of_descriptors() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 32;
  return static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 65536)) / 2;
}

// Of a segment that is mapped, its pages come into being as they are used, and ours are half.
size_t mapped_bytes() noexcept {
  const auto memory =
      static_cast<rlim_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return memory;
  return std::min(limit.rlim_cur / 2, memory);
}

Holding sum(const Holding& a, const Holding& b) noexcept {
  return {a.descriptors + b.descriptors, a.bytes + b.bytes};
}

Holding difference(const Holding& a, const Holding& b) noexcept {
  assert(a.descriptors >= b.descriptors && a.bytes >= b.bytes);
  return {a.descriptors - b.descriptors, a.bytes - b.bytes};
}

}  // namespace

Holder holder_of_host(const Address& host) noexcept {
  constexpr Holder kNoUser = Holder{1} << 63;  // users have 32 bits
  Holder hash = 0xcbf29ce484222325u;           // FNV-1a
  for (const uint8_t byte : host.ip) hash = (hash ^ byte) * 0x100000001b3u;
  return (hash & ~kNoUser & ~Holder{1}) | kNoUser;  // and never kNobody
}

Shares::Shares() noexcept : Shares({half_of_descriptors(), mapped_bytes()}) {}

Holding Shares::held_by(Holder user) const noexcept {
  const auto found = by_user_.find(user);
  return found != by_user_.end() ? found->second : Holding{};
}

bool Shares::has_room(Holder user, const Holding& more) const noexcept {
  const Holding own = held_by(user);
  const Holding left_by_others = difference(total_, difference(taken_, own));
  const Holding wanted = sum(own, more);
  return wanted.descriptors <= left_by_others.descriptors / 2 &&
         wanted.bytes <= left_by_others.bytes / 2;
}

bool Shares::take(Holder user, const Holding& more) {
  if (!has_room(user, more)) return false;  // and nothing is kept of who asked
  Holding& own = by_user_[user];
  own = sum(own, more);
  taken_ = sum(taken_, more);
  assert(taken_.descriptors <= total_.descriptors && taken_.bytes <= total_.bytes);
  return true;
}

void Shares::give_back(Holder user, const Holding& held) noexcept {
  const auto found = by_user_.find(user);
  assert(found != by_user_.end() || (held.descriptors == 0 && held.bytes == 0));
  if (found == by_user_.end()) return;
  found->second = difference(found->second, held);
  taken_ = difference(taken_, held);
  if (found->second.descriptors == 0 && found->second.bytes == 0) by_user_.erase(found);
}

bool Shares::Share::take(const Holding& more) {
  if (!all_.take(user_, more)) return false;
  held_ = sum(held_, more);
  return true;
}

}  // namespace aperture::nic
