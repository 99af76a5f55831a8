// Looks at what the threads of this process are doing while one of its rounds of calls lasts long.
//
// A thread of its own wakes every few milliseconds. Once a round has lasted for kLong_ns it notes
// the state of every other thread, the number of the system call in which it is, and where it waits
// in the kernel. begin() and end() cost a store each. begin(), end() and text() are for the thread
// that made it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace aperture::hostile {

class Lookout {
 public:
  static constexpr int64_t kLong_ns = 25'000'000;
  static constexpr const char* kName = "lookout";  // of its thread

  Lookout();
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

  void begin(int64_t now_ns) noexcept { began_ns_.store(now_ns, std::memory_order_release); }
  void end() noexcept { began_ns_.store(0, std::memory_order_release); }
  // Of the round before this call: how often each thread was seen in which state, call and place of
  // the kernel. "" if it was short.
  std::string text();

 private:
  static void* run(void* self);
  void look(int64_t round);
  void note_threads();

  std::atomic<int64_t> began_ns_{0};
  std::atomic<bool> over_{false};
  const int watched_tid_;
  pthread_t thread_{};

  std::mutex mutex_;
  int64_t round_ = 0;                  // guarded by mutex_: that what follows is of
  std::map<std::string, int> states_;  // guarded by mutex_
};

}  // namespace aperture::hostile
