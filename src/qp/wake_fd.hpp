// What wakes a thread that sleeps until a completion queue or a counter has something: an eventfd
// that becomes readable with the next arrival, once it is armed. Operations may wait for a counter
// as well: their listener is told of each change, as long as there are any. Where nobody waits at
// all, an arrival costs one look at one byte.
//
// Guarded by the engine's lock, but for wake().
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fd.hpp"

namespace aperture::qp {

class ArrivalListener {
 public:
  // from_call: in a call of the application's that does nothing else, so that what is due can be
  // posted at once. Otherwise the engine or a post is in the middle of something.
  virtual void on_arrival(bool from_call) noexcept = 0;

 protected:
  ~ArrivalListener() = default;
};

class WakeFd {
 public:
  // Once is enough. Errors: no_fds, no_memory.
  Status open() noexcept;
  int get() const noexcept { return fd_.get(); }

  void arm() noexcept { who_waits_ |= kThread; }
  // Something has come.
  void on_arrival(bool from_call = false) noexcept {
    if (who_waits_ != 0) [[unlikely]]
      tell(from_call);
  }
  // Told from now on; null: no more.
  void set_listener(ArrivalListener* listener) noexcept {
    listener_ = listener;
    who_waits_ =
        static_cast<uint8_t>((who_waits_ & kThread) | (listener != nullptr ? kListener : 0));
  }
  // Nobody sleeps on it any more: it is quiet.
  void disarm() noexcept;
  // The same, left as it is.
  void stand_down() noexcept { who_waits_ &= static_cast<uint8_t>(~kThread); }
  // For when somebody else may be blocked on it: readable until disarm().
  void hand_back() noexcept {
    stand_down();
    wake();
  }
  // Readable now. Any thread, no lock.
  void wake() noexcept;

 private:
  static constexpr uint8_t kThread = 1;
  static constexpr uint8_t kListener = 2;
  void tell(bool from_call) noexcept;

  uint8_t who_waits_ = 0;
  // Or about to be drained. Set after the signal: who finds it unset and leaves the descriptor as
  // it is has drained it all the same by the next time.
  std::atomic<bool> readable_{false};
  UniqueFd fd_;
  ArrivalListener* listener_ = nullptr;
};

}  // namespace aperture::qp
