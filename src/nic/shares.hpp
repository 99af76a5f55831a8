// What processes of other users, and other hosts, may have us hold: descriptors and mapped memory,
// counted by user or host.
//
// Together they get half of the descriptors that this process may have, and as much mapped memory
// as the host has, or half of what this process may map. Of each, one gets at most half of what
// the others leave: whoever takes all that he can get leaves as much again for the next one, so
// that a newcomer finds a place beside several who want everything. Processes of our own user are
// not counted; they could end us anyway. Owned by the control thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/address.hpp"

namespace aperture::nic {

// For whom something is held: a user of this host, by his number, or another host.
using Holder = uint64_t;
inline constexpr Holder kNobody = ~Holder{0};  // not known
// Of one among very many hosts: two that have one number share what they get.
Holder holder_of_host(const Address& host) noexcept;

struct Holding {
  size_t descriptors = 0;
  size_t bytes = 0;  // mapped
};

class Shares {
 public:
  // By the limits of this process (RLIMIT_NOFILE, RLIMIT_AS) as they are now.
  Shares() noexcept;
  explicit Shares(const Holding& total) noexcept : total_(total) {}

  // What one of them holds; gives all of it back when it goes.
  class Share {
   public:
    Share(Shares& all, Holder user) noexcept : all_(all), user_(user) {}
    ~Share() { all_.give_back(user_, held_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // False: it has its share of one or the other already. By exception std::bad_alloc.
    bool take(const Holding& more);

   private:
    Shares& all_;
    const Holder user_;
    Holding held_;
  };

  // Whether that one may take so much more.
  bool has_room(Holder user, const Holding& more) const noexcept;

 private:
  Holding held_by(Holder user) const noexcept;
  bool take(Holder user, const Holding& more);
  void give_back(Holder user, const Holding& held) noexcept;

  const Holding total_;
  Holding taken_;
  std::map<Holder, Holding> by_user_;
};

}  // namespace aperture::nic
