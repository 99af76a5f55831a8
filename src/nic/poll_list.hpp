// The queue pairs of one kind that an engine progresses: which of them are looked at in every poll,
// and which take turns.
//
// The first hot() ones are looked at in every poll, one of the others as well; who had work becomes
// hot, and a hot one that had nothing for long makes place once there are more than kHotRings.
// Guarded by the engine's lock. A template over the queue pair, so that one whose type is known is
// progressed without an indirect call.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "base/core_sharing.hpp"
#include "base/errc.hpp"
#include "base/invariant.hpp"

namespace aperture::nic {

// Who is told that a queue pair is lost or broken.
template <typename T>
class OwnerOf {
 public:
  virtual ~OwnerOf() = default;
  virtual void wind_up(T& one) noexcept = 0;
};

template <typename T>
class PollList {
 public:
  // So many are looked at in every poll; scanning 256 would more than double the latency.
  static constexpr size_t kHotRings = 16;
  // A hot one that had nothing for so many polls makes place, if there are more than kHotRings.
  static constexpr uint32_t kIdlePolls = 1024;

  // core_sharing: the engine's, which is told of what moves.
  explicit PollList(CoreSharing& core_sharing) noexcept : core_sharing_(core_sharing) {}

  bool empty() const noexcept { return all_.empty(); }

  // Errors: no_memory.
  Status add(T& one, OwnerOf<T>& owner) noexcept {
    try {
      all_.push_back({&one, &owner, 0});
    } catch (const std::bad_alloc&) {
      return Errc::no_memory;
    }
    std::swap(all_.back(), all_[hot_]);
    ++hot_;
    note_size();
    return {};
  }

  void remove(T& one) noexcept {
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].one != &one) continue;
      if (i < hot_) {
        std::swap(all_[i], all_[hot_ - 1]);
        i = --hot_;
      }
      std::swap(all_[i], all_.back());
      all_.pop_back();
      note_size();
      return;
    }
  }

  // One poll. due: everything about a queue pair is looked at, not only its rings.
  [[gnu::always_inline]] void poll(uint64_t polls, bool due) noexcept {
    for (size_t i = 0; i < hot_; ++i) {
      Entry& e = all_[i];
      const typename T::Look look = due ? T::Look::poll : e.one->look();
      if (look == T::Look::poll) [[unlikely]] {
        if (!progress(i, polls)) break;  // the list has changed: the rest comes with the next poll
      } else {
        e.idle_polls = look == T::Look::taken ? 0 : e.idle_polls + 1;
      }
    }
    if (crowded_) [[unlikely]]
      look_at_a_cold_one(polls);
  }

  bool any_needs_polling() const noexcept {
    for (const Entry& e : all_) {
      if (e.one->needs_polling()) return true;
    }
    return false;
  }
  bool any_needs_later_look() const noexcept {
    for (const Entry& e : all_) {
      if (e.one->needs_later_look()) return true;
    }
    return false;
  }
  bool any_has_work() const noexcept {
    for (const Entry& e : all_) {
      if (e.one->anything_arrived() || e.one->needs_wind_up()) return true;
    }
    return false;
  }
  void fall_asleep(uint64_t sleep_number) noexcept {
    for (Entry& e : all_) e.one->fall_asleep(sleep_number);
  }
  void wake_up() noexcept {
    for (Entry& e : all_) e.one->wake_up();
  }
  bool any_sleeps_too_deep() noexcept {
    bool any = false;  // each notes it for itself
    for (Entry& e : all_) any = e.one->sleeps_too_deep() || any;
    return any;
  }
  bool all_peers_fence() const noexcept {
    for (const Entry& e : all_) {
      if (!e.one->peer_fences()) return false;
    }
    return true;
  }
  // In that poll something has happened that took more than a look, and may not be over.
  bool has_moved(uint64_t polls) const noexcept { return moved_at_ == polls; }
  // Nothing has happened in any that is looked at each time, in so many polls.
  bool is_idle_for(uint32_t polls) const noexcept {
    for (size_t i = 0; i < hot_; ++i) {
      if (all_[i].idle_polls < polls) return false;
    }
    return true;
  }

 private:
  struct Entry {
    T* one;
    OwnerOf<T>* owner;
    uint32_t idle_polls;
  };

  // Asked in every poll, where the size of a vector takes a division.
  void note_size() noexcept {
    APERTURE_DEBUG_ASSERT(hot_ <= all_.size());
    crowded_ = hot_ < all_.size() || hot_ > kHotRings;
  }

  // Progresses one; what is over goes to its owner. False: the list has changed.
  [[gnu::noinline]] bool progress(size_t at, uint64_t polls) noexcept {
    Entry& e = all_[at];
    const bool moved = e.one->poll(polls);
    if (moved) {
      moved_at_ = polls;
      core_sharing_.look_next();
    }
    e.idle_polls = moved ? 0 : e.idle_polls + 1;
    if (!e.one->needs_wind_up()) [[likely]]
      return true;
    const Entry gone = e;  // wind_up() takes it out of all_
    tell_others_before(gone, polls);
    gone.owner->wind_up(*gone.one);
    return false;
  }

  // What came over others with the same completion queue is told before an end that came later, as
  // far as one poll takes it. Those that have nothing cost a look: whoever connects can make an end
  // as often as he likes.
  [[gnu::cold]] void tell_others_before(const Entry& gone, uint64_t polls) noexcept {
    [[maybe_unused]] const size_t before = all_.size();
    for (const Entry& other : all_) {
      if (other.one == gone.one) continue;
      if (!other.one->anything_arrived() && !other.one->needs_polling()) continue;
      if (other.one->shares_queue_with(*gone.one)) other.one->poll(polls);
      assert(all_.size() == before);  // a poll notes what others are to do, and adds nobody
    }
  }

  // The next cold one in turn becomes hot if it had work; an idle hot one makes place.
  [[gnu::noinline]] void look_at_a_cold_one(uint64_t polls) noexcept {
    if (next_cold_ < hot_ || next_cold_ >= all_.size()) next_cold_ = hot_;
    const size_t looked_at = next_cold_++;
    if (looked_at < all_.size() && !progress(looked_at, polls)) return;
    if (looked_at >= hot_ && looked_at < all_.size()) {
      const Entry& e = all_[looked_at];
      if (e.idle_polls == 0 || e.one->has_pending()) {
        std::swap(all_[looked_at], all_[hot_]);
        ++hot_;
        note_size();
      }
    }
    if (hot_ <= kHotRings) return;
    const size_t at = polls % hot_;
    if (all_[at].idle_polls < kIdlePolls || all_[at].one->has_pending()) return;
    std::swap(all_[at], all_[hot_ - 1]);
    --hot_;
    note_size();
  }

  std::vector<Entry> all_;  // hot ones first
  size_t hot_ = 0;
  size_t next_cold_ = 0;
  bool crowded_ = false;   // there are cold ones, or too many hot ones
  uint64_t moved_at_ = 0;  // number of the last poll in which one of them moved something
  CoreSharing& core_sharing_;
};

}  // namespace aperture::nic
