// What processes of other users may have us hold open: descriptors, counted by user.
//
// Together they get half of what this process may have, and each user at most half of what the
// others leave of that: whoever takes all that he can get leaves as much again for the next one, so
// that a newcomer finds a place beside several who want everything. Processes of our own user are
// not counted; they could end us anyway. Owned by the control thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>

namespace aperture::nic {

class Shares {
 public:
  // Half of the limit of descriptors (RLIMIT_NOFILE) as it is now.
  Shares() noexcept;
  explicit Shares(size_t total) noexcept : total_(total) {}

  // What one user holds; gives all of it back when it goes.
  class Share {
   public:
    Share(Shares& all, uid_t user) noexcept : all_(all), user_(user) {}
    ~Share() { all_.give_back(user_, count_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // False: it has its share already. By exception std::bad_alloc.
    bool take(size_t count) {
      if (!all_.take(user_, count)) return false;
      count_ += count;
      return true;
    }

   private:
    Shares& all_;
    const uid_t user_;
    size_t count_ = 0;
  };

 private:
  bool take(uid_t user, size_t count);
  void give_back(uid_t user, size_t count) noexcept;

  const size_t total_;
  size_t taken_ = 0;
  std::map<uid_t, size_t> by_user_;
};

}  // namespace aperture::nic
