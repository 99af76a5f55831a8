// The open objects of one kind in this process, for fi_getinfo: it answers with an open instance of
// the fabric and domain that it names. Each process has its own. Guarded by its own mutex; opening
// and closing only. Never destroyed: when the process ends, destructors of the application's may
// come later than those of this library, and close what is in it.
#pragma once

#include <algorithm>
#include <cassert>
#include <mutex>
#include <new>
#include <vector>

#include "base/fork_guard.hpp"
#include "base/per_process.hpp"

namespace aperture::provider {

template <typename Fid>
class Registry {
 public:
  constexpr Registry() noexcept : open_() {}
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;
  ~Registry() {}

  void add(Fid* fid) {
    std::lock_guard guard(mutex_);
    begin_anew_in_a_child();
    assert(std::find(open_.begin(), open_.end(), fid) == open_.end());
    open_.push_back(fid);
  }
  void remove(const Fid* fid) noexcept {
    std::lock_guard guard(mutex_);
    begin_anew_in_a_child();
    [[maybe_unused]] const size_t was_open = std::erase(open_, fid);
    assert(was_open <= 1);
  }
  Fid* first() noexcept {
    std::lock_guard guard(mutex_);
    begin_anew_in_a_child();
    return open_.empty() ? nullptr : open_.front();
  }
  bool has(const Fid* fid) noexcept {
    std::lock_guard guard(mutex_);
    begin_anew_in_a_child();
    return std::find(open_.begin(), open_.end(), fid) != open_.end();
  }

 private:
  // What the parent had opened is not open here, and one of its threads may have been changing the
  // list.
  void begin_anew_in_a_child() noexcept {
    if (!round_.is_over()) return;
    new (&open_) std::vector<Fid*>;
    round_ = ForkRound();
  }

  ProcessLock mutex_;  // guards what follows
  ForkRound round_{0};
  union {
    std::vector<Fid*> open_;
  };
};

}  // namespace aperture::provider
