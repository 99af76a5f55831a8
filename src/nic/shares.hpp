// What processes of other users may have us hold: descriptors and mapped memory, counted by user.
//
// Together they get half of the descriptors that this process may have, and as much mapped memory
// as the host has, or half of what this process may map. Of each, a user gets at most half of what
// the others leave: whoever takes all that he can get leaves as much again for the next one, so
// that a newcomer finds a place beside several who want everything. Processes of our own user are
// not counted; they could end us anyway. Owned by the control thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>

namespace aperture::nic {

struct Holding {
  size_t descriptors = 0;
  size_t bytes = 0;  // mapped
};

class Shares {
 public:
  // By the limits of this process (RLIMIT_NOFILE, RLIMIT_AS) as they are now.
  Shares() noexcept;
  explicit Shares(const Holding& total) noexcept : total_(total) {}

  // What one user holds; gives all of it back when it goes.
  class Share {
   public:
    Share(Shares& all, uid_t user) noexcept : all_(all), user_(user) {}
    ~Share() { all_.give_back(user_, held_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // False: it has its share of one or the other already. By exception std::bad_alloc.
    bool take(const Holding& more);

   private:
    Shares& all_;
    const uid_t user_;
    Holding held_;
  };

  // Whether that user may take so much more.
  bool has_room(uid_t user, const Holding& more) const noexcept;

 private:
  Holding held_by(uid_t user) const noexcept;
  bool take(uid_t user, const Holding& more);
  void give_back(uid_t user, const Holding& held) noexcept;

  const Holding total_;
  Holding taken_;
  std::map<uid_t, Holding> by_user_;
};

}  // namespace aperture::nic
