// The owner's side of the accessor slots: the peers that copy from and to our memory by themselves.
//
// A close asks each of them whether it is inside. So that a thousand peers that do nothing cost
// nothing, those who have made no access for a while are made dormant: their slots are closed, they
// are no longer asked, and their next access goes through the ring, with the wish to be woken
// (transport/one_sided.hpp). docs/revocation.md, "Dormant peers"; tests/spin/dormant.pml.
//
// The gates of lanes are here as well: moving one ends what a peer may do through that lane, as a
// close ends what it may do to a region.
//
// Threads: any. Two locks: that of the entries (key_entries.hpp), which a close holds anyway, and
// one of its own for looks at all slots. Which arrays there are, and which of them are awake,
// changes with both held (the latter is taken first) and stands still for whoever holds either.
// Neither is held while the kernel is asked about threads: that may take long, and polls take the
// latter. Invariants: attached slots are awake or dormant, never both; who is dormant is inside
// nowhere; slots that are being detached never open again; those awake are in the order of their
// turns.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/errc.hpp"
#include "base/lock.hpp"
#include "protect/accessor_slot.hpp"
#include "protect/thread_probe.hpp"

namespace aperture::protect {

class PeerKeyView;

class Accessors {
 public:
  // So many peers are asked at each close whatever they do: it costs less than to wake them.
  static constexpr size_t kAlwaysAwake = 4;
  // Looks for idle ones: after that many closes, and this time since the last look.
  static constexpr uint32_t kClosesBetweenLooks = 1024;
  static constexpr uint64_t kLookPauseNs = 100'000'000;

  explicit Accessors(EngineLock& table_lock) noexcept : table_lock_(table_lock) {}
  Accessors(const Accessors&) = delete;
  Accessors& operator=(const Accessors&) = delete;

  // --- with no lock held ---

  // The slots through which process `accessor` will reach us. They must stay mapped until detach()
  // has said true. Errors: not_supported (its threads cannot be watched through /proc: serve it
  // through the ring), no_memory.
  Status attach(SlotArray* slots, pid_t accessor);
  // Its key file, once that is known: who pins with its first thread and then becomes another
  // program is told by it. Null, or slots that are not attached: nothing happens.
  void know(const SlotArray* slots, std::shared_ptr<const PeerKeyView> its_keys) noexcept;
  // True once no access through them is under way or can begin: only then unmap them. Not blocking;
  // call it again after a while when it says false.
  bool detach(SlotArray* slots);
  // The peer has found its slots dormant and would copy by itself again: they are open when this
  // returns. Null, or slots that are not attached: nothing happens.
  void wake(const SlotArray* slots) noexcept;

  // From now on peers may copy by a device's driver, and one that says so is inside until it says
  // that it is not, or its process is over: also while its thread is stopped. To be called before
  // the first region that allows it can be reached. Any thread.
  void expect_drivers() noexcept { drivers_.store(true, std::memory_order_release); }

  // Puts a number into the gate of a lane: no direct access under the number before begins then.
  static void move_gate(std::atomic<uint64_t>& gate, uint64_t number) noexcept;
  // Asked after that: true once none that had begun under it can land any more. So ends what a
  // peer may do through that lane. `watched`: the slots of its segment. Not blocking; as a rule the
  // first call says true, and one that says false has looked at /proc, or another thread has the
  // lock.
  bool is_lane_quiet(const SlotArray* watched, uint32_t lane) noexcept;

  // As is_inside(), with the lock of its own.
  void cut_short(uint64_t generation) noexcept;
  // Nothing that was begun in that life of a region can land any more.
  bool is_quiet(uint64_t generation) noexcept;
  // Makes those dormant who have made no access since the last look, kLookPauseNs before now_ns at
  // least. Some 0.3 us for each peer that is awake.
  void look_for_idle(uint64_t now_ns) noexcept;

  // --- with the lock of the entries held ---

  bool none_awake() const noexcept { return awake_.empty(); }
  bool none_attached() const noexcept { return awake_.empty() && dormant_.empty(); }
  // Whether a peer stands in that life of a region; its copy is cut short. The caller has made the
  // region REVOKING and passed a full fence.
  bool is_inside(uint64_t generation) noexcept;
  // To be called at each close. True: look_for_idle() is due, once the lock is given back.
  bool count_close() noexcept {
    return ++closes_ % kClosesBetweenLooks == 0 && awake_.size() > kAlwaysAwake;
  }

  // --- for tests ---

  size_t awake() const noexcept { return awake_.size(); }  // with nobody else about
  // Not owned.
  void set_thread_probe(ThreadProbe* probe) noexcept { probe_ = probe; }

 private:
  struct Accessor {
    SlotArray* slots;
    pid_t pid;
    std::shared_ptr<const PeerKeyView> its_keys;  // null: not known
    uint64_t turn;                                // when it was attached, or last woken
  };
  struct Inside;

  bool expects_drivers() const noexcept { return drivers_.load(std::memory_order_acquire); }
  std::vector<Accessor>::iterator find(std::vector<Accessor>& in, const SlotArray* slots) noexcept;
  std::vector<Accessor>::iterator find_attached(const SlotArray* slots,
                                                std::vector<Accessor>*& in) noexcept;
  void add_awake(Accessor&& accessor) noexcept;
  Inside next_inside(uint64_t generation, uint64_t& turn) noexcept;
  static bool was_used(SlotArray& slots) noexcept;
  static bool make_dormant(SlotArray& slots) noexcept;

  EngineLock& table_lock_;
  std::mutex mutex_;
  std::vector<Accessor> awake_;    // their slots are open
  std::vector<Accessor> dormant_;  // there is room for all of them in either
  uint64_t last_turn_ = 0;
  std::atomic<bool> drivers_{false};
  uint32_t closes_ = 0;        // guarded by table_lock_
  uint64_t looked_at_ns_ = 0;  // guarded by mutex_
  ProcThreadProbe proc_probe_;
  ThreadProbe* probe_ = &proc_probe_;
};

}  // namespace aperture::protect
