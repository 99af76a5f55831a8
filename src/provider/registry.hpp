// The open objects of one kind in this process, for fi_getinfo: it answers with an open instance of
// the fabric and domain that it names. Guarded by its own mutex; opening and closing only.
#pragma once

#include <algorithm>
#include <mutex>
#include <vector>

namespace aperture::provider {

template <typename Fid>
class Registry {
 public:
  void add(Fid* fid) {
    std::lock_guard guard(mutex_);
    open_.push_back(fid);
  }
  void remove(const Fid* fid) noexcept {
    std::lock_guard guard(mutex_);
    std::erase(open_, fid);
  }
  Fid* first() noexcept {
    std::lock_guard guard(mutex_);
    return open_.empty() ? nullptr : open_.front();
  }
  bool has(const Fid* fid) noexcept {
    std::lock_guard guard(mutex_);
    return std::find(open_.begin(), open_.end(), fid) != open_.end();
  }

 private:
  std::mutex mutex_;
  std::vector<Fid*> open_;
};

}  // namespace aperture::provider
