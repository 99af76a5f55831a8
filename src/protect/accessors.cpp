// Asking the peers that copy by themselves, and leaving out those that do not: see accessors.hpp.
#include "protect/accessors.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <new>
#include <utility>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "base/invariant.hpp"
#include "protect/peer_key_view.hpp"

namespace aperture::protect {

namespace {

constexpr int kSpinsBeforeLook = 50;  // a copy that is under way takes about a microsecond

// detach() has closed them, and waits for who was inside: they never open again. Read from memory
// that the peer writes: one that stores there takes back the closing of its own slots.
bool is_detaching(const SlotArray& slots) noexcept {
  // relaxed: of the owner's stores, all under the lock of its own
  return slots.slots[0].closed.load(std::memory_order_relaxed) == AccessorSlot::kClosed;
}

}  // namespace

// Threads of one accessor that seem to be inside. Gathered with the lock held, since their slots
// may be unmapped without it; whether they still are is asked without.
struct Accessors::Inside {
  struct Thread {
    AccessorSlot* slot;
    uint64_t pin;
    pid_t tid;
    uint64_t start_time;
    bool by_driver;
  };

  explicit Inside(bool expects_drivers) noexcept : drivers(expects_drivers) {}
  // Those of `accessor` for whose slots pin_of() is not 0.
  template <typename PinOf>
  void gather(const Accessor& accessor, PinOf&& pin_of) noexcept;
  // Nothing that they had begun can land any more. Any thread, no lock.
  bool is_over(ThreadProbe& probe) const noexcept;
  bool is_nobody() const noexcept { return count == 0; }

  const bool drivers;  // some of them may copy by a device's driver
  pid_t pid = 0;
  std::shared_ptr<const PeerKeyView> its_keys;
  size_t count = 0;
  std::array<Thread, kSlotsPerPeer> threads;

 private:
  void drop_those_that_are_out() noexcept;
};

template <typename PinOf>
void Accessors::Inside::gather(const Accessor& accessor, PinOf&& pin_of) noexcept {
  assert(count == 0);
  for (AccessorSlot& slot : accessor.slots->slots) {
    const uint64_t pin = pin_of(slot);
    if (pin == 0) continue;
    // for a thread that was stopped between its pin and its second look: its call, if it still
    // makes one, copies nothing
    slot.riov_len.store(0, std::memory_order_seq_cst);
    threads[count++] = {&slot, pin, 0, 0, false};
  }
  if (count == 0) [[likely]]
    return;
  full_fence();
  for (size_t i = 0; i < count; ++i) {
    // SYNC POINT: slot-thread (pairs with take_over(). With the numbers of two threads mixed, the
    // pin was one's whose copy is over, or is a later one's that finds the entry or the gate
    // closed)
    threads[i].tid = static_cast<pid_t>(threads[i].slot->tid.load(std::memory_order_acquire));
    threads[i].start_time = threads[i].slot->start_time.load(std::memory_order_acquire);
    // SYNC POINT: by-driver (pairs with piece_in_device(): who is found inside had said it before)
    threads[i].by_driver =
        drivers && threads[i].slot->by_driver.load(std::memory_order_acquire) != 0;
  }
  // most copies are over before /proc could be read, which takes several times as long
  for (int spin = 0; spin <= kSpinsBeforeLook; ++spin) {
    drop_those_that_are_out();
    if (count == 0) return;
    cpu_relax();
  }
  pid = accessor.pid;
  its_keys = accessor.its_keys;
}

void Accessors::Inside::drop_those_that_are_out() noexcept {
  const auto end = threads.begin() + static_cast<ptrdiff_t>(count);
  const auto still = std::remove_if(threads.begin(), end, [](const Thread& thread) {
    // SYNC POINT: revocation (pairs with the release store that unpins: the copy is over)
    return thread.slot->pin.load(std::memory_order_acquire) != thread.pin;
  });
  count = static_cast<size_t>(still - threads.begin());
}

bool Accessors::Inside::is_over(ThreadProbe& probe) const noexcept {
  const auto has_ended = [&](const Thread& thread) {
    if (thread.by_driver) return probe.is_over(pid, thread.start_time);
    return probe.look(pid, thread.tid, thread.start_time) != ThreadState::running;
  };
  return std::all_of(
      threads.begin(), threads.begin() + static_cast<ptrdiff_t>(count), [&](const Thread& thread) {
        if (has_ended(thread)) return true;
        // a process that has become another program has its first thread's number and age still
        const bool outlives_it = thread.by_driver || thread.tid == pid;
        return outlives_it && its_keys != nullptr && its_keys->has_become_another(pid);
      });
}

std::vector<Accessors::Accessor>::iterator Accessors::find(std::vector<Accessor>& in,
                                                           const SlotArray* slots) noexcept {
  return std::find_if(in.begin(), in.end(),
                      [slots](const Accessor& a) { return a.slots == slots; });
}

// The end of `in`: they are not attached.
std::vector<Accessors::Accessor>::iterator Accessors::find_attached(
    const SlotArray* slots, std::vector<Accessor>*& in) noexcept {
  in = &awake_;
  auto at = find(awake_, slots);
  if (at != awake_.end()) return at;
  in = &dormant_;
  return find(dormant_, slots);
}

// As the last one.
void Accessors::add_awake(Accessor&& accessor) noexcept {
  assert(awake_.size() < awake_.capacity());
  awake_.push_back(std::move(accessor));
  awake_.back().turn = ++last_turn_;
}

Status Accessors::attach(SlotArray* slots, pid_t accessor) {
  if (slots == nullptr || accessor <= 0) return Errc::invalid;
  // without /proc a dead accessor could not be told from a running one
  if (thread_start_time(accessor, accessor) == 0) return Errc::not_supported;
  std::lock_guard guard(mutex_);
  std::lock_guard table_guard(table_lock_);
  try {
    const size_t all = awake_.size() + dormant_.size() + 1;
    // twice as many at a time: reserve() alone would copy all of them for each
    if (all > std::min(awake_.capacity(), dormant_.capacity())) {
      awake_.reserve(2 * all);
      dormant_.reserve(2 * all);
    }
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  APERTURE_DEBUG_ASSERT(find(awake_, slots) == awake_.end());
  APERTURE_DEBUG_ASSERT(find(dormant_, slots) == dormant_.end());
  add_awake({slots, accessor, nullptr, 0});
  assert(awake_.size() + dormant_.size() <= dormant_.capacity());
  return {};
}

void Accessors::know(const SlotArray* slots, std::shared_ptr<const PeerKeyView> its_keys) noexcept {
  std::lock_guard guard(mutex_);
  std::vector<Accessor>* in = nullptr;
  if (const auto at = find_attached(slots, in); at != in->end()) at->its_keys = std::move(its_keys);
}

bool Accessors::detach(SlotArray* slots) {
  std::vector<Accessor>* in = nullptr;
  Inside inside(expects_drivers());
  {
    std::lock_guard guard(mutex_);
    const auto at = find_attached(slots, in);
    if (at == in->end()) return true;
    // as revoking every region for this one accessor: either it sees `closed`, or we see its pin
    for (AccessorSlot& slot : slots->slots) {
      slot.closed.store(AccessorSlot::kClosed, std::memory_order_seq_cst);
    }
    // SYNC POINT: slot-closed (pairs with FENCE_A in PeerKeyView)
    full_fence();
    inside.gather(
        *at, [](const AccessorSlot& slot) { return slot.pin.load(std::memory_order_acquire); });
  }
  if (!inside.is_over(*probe_)) return false;
  std::lock_guard guard(mutex_);
  std::lock_guard table_guard(table_lock_);
  // nobody else detaches these, and none that is being detached wakes
  const auto at = find_attached(slots, in);
  assert(at != in->end());
  in->erase(at);
  return true;
}

// ---- is somebody inside? ------------------------------------------------------------------------

bool Accessors::is_inside(uint64_t generation) noexcept {
  bool inside = false;
  for (const Accessor& a : awake_) {
    for (AccessorSlot& slot : a.slots->slots) {
      // SYNC POINT: revocation (acquire: pairs with the release store that unpins)
      if (slot.pin.load(std::memory_order_acquire) != generation) continue;
      slot.riov_len.store(0, std::memory_order_seq_cst);
      inside = true;
    }
  }
  return inside;
}

void Accessors::cut_short(uint64_t generation) noexcept {
  std::lock_guard guard(mutex_);
  (void)is_inside(generation);
}

// Of the next accessor in the order of turns, beyond `turn`, that seems to be inside. Nobody: there
// is none. Who falls asleep meanwhile was inside nowhere, and who wakes gets another turn.
Accessors::Inside Accessors::next_inside(uint64_t generation, uint64_t& turn) noexcept {
  Inside inside(expects_drivers());
  std::lock_guard guard(mutex_);
  auto at = std::upper_bound(awake_.begin(), awake_.end(), turn,
                             [](uint64_t after, const Accessor& a) { return after < a.turn; });
  for (; at != awake_.end() && inside.is_nobody(); ++at) {
    inside.gather(*at, [generation](const AccessorSlot& slot) {
      // SYNC POINT: revocation (pairs with the release store that unpins: the copy is over)
      return slot.pin.load(std::memory_order_acquire) == generation ? generation : 0;
    });
    turn = at->turn;
  }
  return inside;
}

bool Accessors::is_quiet(uint64_t generation) noexcept {
  for (uint64_t turn = 0;;) {
    const Inside inside = next_inside(generation, turn);
    if (inside.is_nobody()) return true;
    if (!inside.is_over(*probe_)) return false;
  }
}

bool Accessors::is_lane_quiet(const SlotArray* watched, uint32_t lane) noexcept {
  Inside inside(expects_drivers());
  {
    // polls come here: they wait for no other thread, which may wait for a processor
    const std::unique_lock guard(mutex_, std::try_to_lock);
    if (!guard) return false;
    const auto at = find(awake_, watched);
    if (at == awake_.end()) return true;  // dormant: nobody was inside, and nobody gets in
    inside.gather(*at, [lane](const AccessorSlot& slot) {
      // SYNC POINT: slot-lane (pairs with claim(); that a lane of ours is seen here at all, the
      // fences of the gate see to)
      if (slot.lane.load(std::memory_order_acquire) != lane) return uint64_t{0};
      return slot.pin.load(std::memory_order_acquire);
    });
  }
  return inside.is_over(*probe_);
}

void Accessors::move_gate(std::atomic<uint64_t>& gate, uint64_t number) noexcept {
  // SYNC POINT: lane-gate (pairs with FENCE_A in PeerKeyView: either we see the pin, or the
  // accessor sees another number)
  gate.store(number, std::memory_order_seq_cst);
  full_fence();
}

// ---- dormant peers ------------------------------------------------------------------------------

// Since the last call for them. Each access stores the length that it copies: a length of 0 that
// stays is the trace of none. (Zeroed between that store and the pin, it makes an access copy
// nothing, and the accessor asks again.)
bool Accessors::was_used(SlotArray& slots) noexcept {
  bool used = false;
  for (AccessorSlot& slot : slots.slots) {
    // relaxed: hints; make_dormant() makes sure
    if (slot.pin.load(std::memory_order_relaxed) != 0) used = true;
    if (slot.riov_len.load(std::memory_order_relaxed) == 0) continue;
    slot.riov_len.store(0, std::memory_order_relaxed);
    used = true;
  }
  return used;
}

// False: somebody is inside, and the slots are open again.
bool Accessors::make_dormant(SlotArray& slots) noexcept {
  for (AccessorSlot& slot : slots.slots) {
    slot.closed.store(AccessorSlot::kDormant, std::memory_order_relaxed);
  }
  // SYNC POINT: dormant (pairs with FENCE_A in PeerKeyView: either we see the pin, or the accessor
  // sees its slot dormant)
  full_fence();
  for (AccessorSlot& slot : slots.slots) {
    if (slot.pin.load(std::memory_order_acquire) == 0) continue;
    for (AccessorSlot& open : slots.slots) open.closed.store(0, std::memory_order_release);
    return false;
  }
  return true;
}

void Accessors::look_for_idle(uint64_t now_ns) noexcept {
  std::lock_guard guard(mutex_);
  if (now_ns - looked_at_ns_ < kLookPauseNs) return;
  looked_at_ns_ = now_ns;
  std::lock_guard table_guard(table_lock_);
  std::erase_if(awake_, [this](Accessor& accessor) {
    SlotArray& slots = *accessor.slots;
    if (is_detaching(slots) || was_used(slots) || !make_dormant(slots)) return false;
    assert(dormant_.size() < dormant_.capacity());  // attach() has seen to it
    dormant_.push_back(std::move(accessor));
    return true;
  });
}

void Accessors::wake(const SlotArray* slots) noexcept {
  std::lock_guard guard(mutex_);
  std::lock_guard table_guard(table_lock_);
  const auto at = find(dormant_, slots);
  if (at == dormant_.end() || is_detaching(*at->slots)) return;
  add_awake(std::move(*at));
  for (AccessorSlot& slot : awake_.back().slots->slots) {
    // SYNC POINT: dormant (release: whoever finds the slot open finds REVOKING what was closed
    // while nobody asked for its pins)
    slot.closed.store(0, std::memory_order_release);
  }
  std::swap(*at, dormant_.back());
  dormant_.pop_back();
}

}  // namespace aperture::protect
