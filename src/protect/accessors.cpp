// Asking the peers that copy by themselves, and leaving out those that do not: see accessors.hpp.
#include "protect/accessors.hpp"

#include <algorithm>
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

std::vector<Accessors::Accessor>::iterator Accessors::find(std::vector<Accessor>& in,
                                                           const SlotArray* slots) noexcept {
  return std::find_if(in.begin(), in.end(),
                      [slots](const Accessor& a) { return a.slots == slots; });
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
  awake_.push_back({slots, accessor, nullptr});
  assert(awake_.size() + dormant_.size() <= dormant_.capacity());
  return {};
}

void Accessors::know(const SlotArray* slots, std::shared_ptr<const PeerKeyView> its_keys) noexcept {
  std::lock_guard guard(mutex_);
  for (std::vector<Accessor>* in : {&awake_, &dormant_}) {
    const auto at = find(*in, slots);
    if (at == in->end()) continue;
    at->its_keys = std::move(its_keys);
    return;
  }
}

bool Accessors::detach(SlotArray* slots) {
  std::lock_guard guard(mutex_);
  std::vector<Accessor>* in = &awake_;
  auto at = find(*in, slots);
  if (at == in->end()) {
    in = &dormant_;
    at = find(*in, slots);
  }
  if (at == in->end()) return true;
  // as revoking every region for this one accessor: either it sees `closed`, or we see its pin
  for (AccessorSlot& slot : slots->slots) {
    slot.closed.store(AccessorSlot::kClosed, std::memory_order_seq_cst);
  }
  // SYNC POINT: slot-closed (pairs with FENCE_A in PeerKeyView)
  full_fence();
  assert(at->slots == slots);
  for (AccessorSlot& slot : slots->slots) {
    const uint64_t pin = slot.pin.load(std::memory_order_acquire);
    if (pin != 0 && !is_slot_quiet(slot, pin, *at)) return false;
  }
  std::lock_guard table_guard(table_lock_);
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

// Whether nothing pinned under `pin` can land through this slot any more.
bool Accessors::is_slot_quiet(AccessorSlot& slot, uint64_t pin, const Accessor& accessor) noexcept {
  // SYNC POINT: revocation (pairs with the release store that unpins: the copy is over)
  if (slot.pin.load(std::memory_order_acquire) != pin) return true;
  // once more, for a thread that was stopped between its pin and its second look: its call, if it
  // still makes one, copies nothing
  slot.riov_len.store(0, std::memory_order_seq_cst);
  full_fence();
  // SYNC POINT: slot-thread (pairs with take_over(). With the numbers of two threads mixed, the
  // pin was one's whose copy is over, or is a later one's that finds the entry or the gate closed)
  const auto tid = static_cast<pid_t>(slot.tid.load(std::memory_order_acquire));
  const uint64_t start = slot.start_time.load(std::memory_order_acquire);
  // most copies are over before /proc could be read, which takes several times as long
  for (int spin = 0; spin <= kSpinsBeforeLook; ++spin) {
    if (slot.pin.load(std::memory_order_acquire) != pin) return true;
    cpu_relax();
  }
  if (probe_->look(accessor.pid, tid, start) != ThreadState::running) return true;
  // a process that has become another program has its first thread's number and age still
  return tid == accessor.pid && accessor.its_keys != nullptr &&
         accessor.its_keys->has_become_another(accessor.pid);
}

bool Accessors::is_quiet(uint64_t generation) noexcept {
  std::lock_guard guard(mutex_);
  for (const Accessor& a : awake_) {
    for (AccessorSlot& slot : a.slots->slots) {
      if (!is_slot_quiet(slot, generation, a)) return false;
    }
  }
  return true;
}

bool Accessors::is_lane_quiet(const SlotArray* watched, uint32_t lane) noexcept {
  std::lock_guard guard(mutex_);
  const auto at = find(awake_, watched);
  if (at == awake_.end()) return true;  // dormant: nobody was inside, and nobody gets in
  for (AccessorSlot& slot : at->slots->slots) {
    // SYNC POINT: slot-lane (pairs with claim(); that a lane of ours is seen here at all, the
    // fences of the gate see to)
    if (slot.lane.load(std::memory_order_acquire) != lane) continue;
    const uint64_t pin = slot.pin.load(std::memory_order_acquire);
    if (pin != 0 && !is_slot_quiet(slot, pin, *at)) return false;
  }
  return true;
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
  for (size_t i = 0; i < awake_.size();) {
    SlotArray& slots = *awake_[i].slots;
    if (is_detaching(slots) || was_used(slots) || !make_dormant(slots)) {
      ++i;
      continue;
    }
    assert(dormant_.size() < dormant_.capacity());  // attach() has seen to it
    dormant_.push_back(std::move(awake_[i]));
    std::swap(awake_[i], awake_.back());
    awake_.pop_back();
  }
}

void Accessors::wake(const SlotArray* slots) noexcept {
  std::lock_guard guard(mutex_);
  std::lock_guard table_guard(table_lock_);
  const auto at = find(dormant_, slots);
  if (at == dormant_.end() || is_detaching(*at->slots)) return;
  assert(awake_.size() < awake_.capacity());
  awake_.push_back(std::move(*at));
  for (AccessorSlot& slot : awake_.back().slots->slots) {
    // SYNC POINT: dormant (release: whoever finds the slot open finds REVOKING what was closed
    // while nobody asked for its pins)
    slot.closed.store(0, std::memory_order_release);
  }
  std::swap(*at, dormant_.back());
  dormant_.pop_back();
}

}  // namespace aperture::protect
