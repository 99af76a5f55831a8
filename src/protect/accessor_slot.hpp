// Accessor slots: where a peer announces which region it is about to touch, so that a close can
// wait for it, or fence it off (docs/revocation.md).
//
// They lie in memory that both processes may write (the link's shared segment), a SlotArray for
// each (accessor process, owner process). One slot serves one thread at a time: whoever holds the
// engine lock that claimed it. The accessor writes all of it; the owner only sets riov_len and
// `closed`. The owner believes nothing here but the pin: a wild peer that may ptrace us can only
// harm the promise that was made about itself, and one that may not can only hold up a close.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace aperture::protect {

//   0        8          16         24    28     32           40      44      48      64
//   | pin    | riov_base | riov_len | tid | taken | start_time | closed | lane | ...  |
struct alignas(64) AccessorSlot {
  std::atomic<uint64_t> pin;         // generation being accessed, or kPullPin; 0 = none
  std::atomic<uint64_t> riov_base;   // these two are the remote iovec that the kernel reads at the
  std::atomic<uint64_t> riov_len;    // start of process_vm_writev(2): the owner zeroes the length
  std::atomic<uint32_t> tid;         // thread that pins, in the pid namespace of both
  std::atomic<uint32_t> taken;       // accessor's own: the slot belongs to one of its engines
  std::atomic<uint64_t> start_time;  // of that thread: field 22 of its stat, against reuse of tid
  std::atomic<uint32_t> closed;      // owner: not 0: this slot is not looked at, pin no more
  std::atomic<uint32_t> lane;        // accessor: of which lane of the segment
  // accessor: not 0: a device's driver copies, in its own time. A thread that is stopped may be in
  // the middle of telling it to, and one that has died may have told it just before.
  std::atomic<uint32_t> by_driver;
  uint32_t reserved0;
  uint64_t reserved1;

  static constexpr uint32_t kClosed = 1;   // for good
  static constexpr uint32_t kDormant = 2;  // until the accessor asks to be woken (accessors.hpp)

  // relaxed: a hint, for who has been sent through the ring
  bool is_dormant() const noexcept { return closed.load(std::memory_order_relaxed) == kDormant; }
  const iovec* remote_iovec() const noexcept { return reinterpret_cast<const iovec*>(&riov_base); }
};
static_assert(sizeof(AccessorSlot) == 64);
static_assert(offsetof(AccessorSlot, riov_base) == 8 && offsetof(AccessorSlot, riov_len) == 16);
static_assert(offsetof(AccessorSlot, by_driver) == 48);
static_assert(sizeof(iovec) == 16 && std::atomic<uint64_t>::is_always_lock_free);

// Pinned by who pulls a message that was offered: no generation of a region, which has 62 bits.
constexpr uint64_t kPullPin = ~uint64_t{0};

constexpr size_t kSlotsPerPeer = 16;

// Zero bytes are a valid, empty array: fresh shared memory needs no construction.
struct SlotArray {
  AccessorSlot slots[kSlotsPerPeer];

  // Accessor: a slot for one lane, nullptr when all are taken (then go through the ring).
  AccessorSlot* claim(uint32_t lane = 0) noexcept {
    for (AccessorSlot& slot : slots) {
      uint32_t expected = 0;
      // SYNC POINT: slot-taken: our pins come after the last one of who had the slot before
      if (!slot.taken.compare_exchange_strong(expected, 1, std::memory_order_acquire)) continue;
      // SYNC POINT: slot-lane: the owner that finds another lane here may take its memory back:
      // what was copied through the lane before is there
      slot.lane.store(lane, std::memory_order_release);
      return &slot;
    }
    return nullptr;
  }
  static void give_back(AccessorSlot* slot) noexcept {
    // SYNC POINT: slot-taken: a store after it may not pass the one that unpinned, or that one
    // would take the next holder's pin away
    slot->taken.store(0, std::memory_order_release);
  }
};
static_assert(sizeof(SlotArray) == 64 * kSlotsPerPeer);

}  // namespace aperture::protect
