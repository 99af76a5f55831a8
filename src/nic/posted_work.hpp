// Work that any thread hands over to the one that carries it out: to the control thread, or to
// whoever polls an engine.
//
// It is carried out in the order of each thread's posts. Handing over cannot fail: where the heap
// has no memory it is taken from the reserve (base/reserve.hpp), and the process ends when that is
// used up, since whoever waits for the work could not be told.
#pragma once

#include <atomic>
#include <list>
#include <mutex>

#include "base/callback.hpp"
#include "base/reserve.hpp"

namespace aperture::nic {

class PostedWork {
 public:
  PostedWork() noexcept = default;
  PostedWork(const PostedWork&) = delete;
  PostedWork& operator=(const PostedWork&) = delete;

  // Any thread. True: there was none before, of which somebody may have to be told.
  bool put(Callback<> work) noexcept;
  // Any thread.
  bool any() const noexcept {
    // SYNC POINT: posted-work: what was put before the flag is there for run()
    return any_.load(std::memory_order_acquire);
  }
  // Carries out what is there; what comes meanwhile is left for the next time. By one thread at a
  // time.
  void run() noexcept;

 private:
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::list<Callback<>, reserve::Allocator<Callback<>>> work_;  // guarded by mutex_
};

}  // namespace aperture::nic
