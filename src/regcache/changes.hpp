// What has become of memory that a monitor watches, on its way to the cache.
//
// Whoever notices a change says begin() before it can be over for the application, put() what it
// was, and end(). Whoever wants to rely on memory being as it was asks any_begun() first and then
// takes all that was put: a change that was over before that question is among them, or the answer
// was true.
//
// Any number of threads put, one at a time takes (the cache's lock is held). Puts never wait,
// allocate or free: they are made in hooks, in signal handlers, and while the application's
// allocator holds its locks. A full ring keeps count of what is lost (was_lost()), and then nothing
// can be relied on.
#pragma once

#include <array>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "regcache/range.hpp"

namespace aperture::regcache {

struct Change {
  enum class Kind : uint8_t {
    unmapped,  // munmap, mmap over it, brk, shmdt, the old place of a move
    dropped,   // the same pages hold nothing now: madvise
    moved,     // mremap: to this range, whose pages come from elsewhere
    shared,    // with a child, by fork
    replaced,  // any of these, told once it is over, by who goes on watching what is there now
  };
  Range range;
  Kind kind = Kind::unmapped;
};

class Changes {
 public:
  static constexpr size_t kRoom = 256;

  Changes() noexcept;
  Changes(const Changes&) = delete;
  Changes& operator=(const Changes&) = delete;

  // SYNC POINT: change-begun: who finds none under way finds what was put before
  void begin() noexcept { begun_.fetch_add(1, std::memory_order_seq_cst); }
  void end() noexcept {
    const uint32_t before = begun_.fetch_sub(1, std::memory_order_seq_cst);
    assert(before != 0);
    static_cast<void>(before);
  }
  // SYNC POINT: change-begun
  bool any_begun() const noexcept { return begun_.load(std::memory_order_seq_cst) != 0; }

  void put(const Change& change) noexcept;
  bool take(Change& change) noexcept;
  // Whether there may be one to take, or some were lost. A hint.
  bool any() const noexcept;
  // Since it was last asked. With the taker's lock.
  bool was_lost() noexcept;

 private:
  struct Slot {
    std::atomic<uint64_t> turn;  // position of the next put or, one more, take
    Change change;
  };

  std::array<Slot, kRoom> slots_;
  std::atomic<uint64_t> put_{0};
  std::atomic<uint64_t> taken_{0};  // written by the taker alone
  std::atomic<uint64_t> lost_{0};
  std::atomic<uint64_t> lost_seen_{0};  // written by the taker alone
  std::atomic<uint32_t> begun_{0};
};

}  // namespace aperture::regcache
