// The ring of changes: see changes.hpp. A slot's turn says whose it is: `position` of whoever may
// put there next, `position + 1` once that is there, and a round further when it was taken.
#include "regcache/changes.hpp"

#include <cassert>

namespace aperture::regcache {

Changes::Changes() noexcept {
  // relaxed: nobody else has it yet
  for (size_t i = 0; i < kRoom; ++i) slots_[i].turn.store(i, std::memory_order_relaxed);
}

void Changes::put(const Change& change) noexcept {
  // relaxed: the slot's turn orders
  uint64_t pos = put_.load(std::memory_order_relaxed);
  for (;;) {
    Slot& slot = slots_[pos % kRoom];
    // SYNC POINT: change-slot: what was taken from it has been read
    const uint64_t turn = slot.turn.load(std::memory_order_acquire);
    if (turn == pos) {
      // relaxed: as above
      if (!put_.compare_exchange_weak(pos, pos + 1, std::memory_order_relaxed)) continue;
      slot.change = change;
      // SYNC POINT: change-slot: it can be taken
      slot.turn.store(pos + 1, std::memory_order_release);
      return;
    }
    if (turn < pos) {  // a round behind: full
      lost_.fetch_add(1, std::memory_order_release);
      return;
    }
    pos = put_.load(std::memory_order_relaxed);  // relaxed: as above
  }
}

bool Changes::take(Change& change) noexcept {
  const uint64_t pos = taken_.load(std::memory_order_relaxed);  // relaxed: ours alone
  Slot& slot = slots_[pos % kRoom];
  // SYNC POINT: change-slot
  if (slot.turn.load(std::memory_order_acquire) != pos + 1) return false;
  change = slot.change;
  // SYNC POINT: change-slot
  slot.turn.store(pos + kRoom, std::memory_order_release);
  taken_.store(pos + 1, std::memory_order_relaxed);  // relaxed: ours alone, and a hint for others
  return true;
}

bool Changes::any() const noexcept {
  // relaxed, all: a hint
  return put_.load(std::memory_order_relaxed) != taken_.load(std::memory_order_relaxed) ||
         lost_.load(std::memory_order_relaxed) != lost_seen_.load(std::memory_order_relaxed);
}

bool Changes::was_lost() noexcept {
  const uint64_t lost = lost_.load(std::memory_order_acquire);
  // relaxed, both: ours alone, and a hint for others
  const uint64_t seen = lost_seen_.load(std::memory_order_relaxed);
  assert(lost >= seen);
  lost_seen_.store(lost, std::memory_order_relaxed);
  return lost != seen;
}

}  // namespace aperture::regcache
