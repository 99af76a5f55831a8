// Counting what strangers hold: see shares.hpp.
#include "nic/shares.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cassert>

namespace aperture::nic {

namespace {

size_t half_of_descriptors() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 32;
  return static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 65536)) / 2;
}

}  // namespace

Shares::Shares() noexcept : Shares(half_of_descriptors()) {}

bool Shares::take(uid_t user, size_t count) {
  const auto found = by_user_.find(user);
  const size_t own = found != by_user_.end() ? found->second : 0;
  assert(own <= taken_ && taken_ <= total_);
  const size_t left_by_others = total_ - (taken_ - own);
  if (own + count > left_by_others / 2) return false;  // and nothing is kept of who asked
  by_user_[user] = own + count;
  taken_ += count;
  return true;
}

void Shares::give_back(uid_t user, size_t count) noexcept {
  const auto found = by_user_.find(user);
  if (found == by_user_.end()) return;
  assert(found->second >= count && taken_ >= count);
  found->second -= count;
  taken_ -= count;
  if (found->second == 0) by_user_.erase(found);
}

}  // namespace aperture::nic
