// When a thread that polls in vain gives its core away.
//
// Who polls shall not keep the core from the very peer that it waits for, nor from anybody else who
// has something to do; and where nobody else wants the core it shall notice nothing. A thread that
// has found nothing for its patience yields (sched_yield(2), between polls and without a lock). How
// long that took tells whether anybody had use for the core: then patience is halved the next time,
// else doubled, within bounds. So a thread that is alone loses a yield in the longest patience,
// well under a hundredth of its time, and two that share a core take turns of a few microseconds.
//
// The time is asked for once in kPolls polls in vain; the others cost a decrement. What count() and
// is_due() touch is guarded by the lock of what is polled; give_away() takes none. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace aperture {

class CoreSharing {
 public:
  // Polls in vain between two looks at the clock: together about a microsecond.
  static constexpr uint32_t kPolls = 32;
  static constexpr uint64_t kFirstPatienceNs = 8'000;
  static constexpr uint64_t kLeastPatienceNs = 4'000;
  static constexpr uint64_t kMostPatienceNs = 64'000;
  // A yield that took longer let somebody else run: one that does not takes half a microsecond.
  static constexpr uint64_t kGaveNs = 2'000;

  CoreSharing() noexcept = default;
  CoreSharing(const CoreSharing&) = delete;
  CoreSharing& operator=(const CoreSharing&) = delete;

  // A poll was in vain. True: is_due() is to be asked.
  bool count() noexcept { return --left_ == 0; }
  // Something has moved, if nothing for whoever polls: the next poll in vain is looked at.
  void look_next() noexcept { left_ = 1; }
  // vain: all polls since the last look were. True: give_away(), once no lock is held.
  bool is_due(bool vain, uint64_t now_ticks) noexcept;
  void give_away() noexcept;

  // What is to be waited for after a yield of that length.
  static constexpr uint64_t next_patience_ns(uint64_t patience_ns, bool gave) noexcept {
    const uint64_t next = gave ? patience_ns / 2 : patience_ns * 2;
    return next < kLeastPatienceNs  ? kLeastPatienceNs
           : next > kMostPatienceNs ? kMostPatienceNs
                                    : next;
  }
  // For tests and the curious. relaxed: it orders nothing
  uint64_t patience_ns() const noexcept { return patience_ns_.load(std::memory_order_relaxed); }

 private:
  uint32_t left_ = kPolls;
  uint64_t since_ = 0;  // ticks of the first look since something was found
  // written by whoever yields
  std::atomic<uint64_t> patience_ns_{kFirstPatienceNs};
  std::atomic<uint64_t> returned_at_{0};  // ticks when the last yield was over
};

}  // namespace aperture
