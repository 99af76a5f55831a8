// The direct path of an initiator: reading and writing the other side's memory without its help
// (process_vm_readv, process_vm_writev), under the pin protocol of protect/, and the decision when
// to.
//
// Holds what belongs to one lane: the accessor slot, the permit, whether the target is away, the
// clock of a stalled head, and the initiator's half of the claims. A target is away while it does
// not look at its rings. It is asked for by its own word first (asleep, or its count of polls
// stands still after it has let us wait). One that has let us wait kSurelyAway times more than it
// has come by itself is not waited for any more: it looks at its memory and not at its queues, and
// is tried again every kTryAgainAfter accesses, for a small share of the time that they took: it
// may be busy with copies of its own. Guarded by the engine's lock.
#pragma once

#include <cassert>
#include <cstdint>

#include "base/clock.hpp"
#include "protect/peer_key_view.hpp"
#include "transport/inflight.hpp"
#include "transport/lane_end.hpp"
#include "transport/permit.hpp"

namespace aperture::transport {

// What a direct copy was refused by, once the two sides of a fault have been told apart.
enum class Fault : uint8_t {
  here,   // our buffer is not mapped, or not as it has to be
  there,  // the owner's memory: it refuses the access itself, with its own sentence
};

class OneSided {
 public:
  explicit OneSided(LaneEnd& lane) noexcept : lane_(lane) {}

  // A new lane is attached: nothing of the last one holds.
  void begin() noexcept;
  // Before the lane is given back.
  void end() noexcept;

  // --- what the owner permits ---

  void take_permit(uint64_t gate_number, uint16_t flags) noexcept {
    gate_number_ = gate_number;
    permitted_ = gate_number != 0 ? flags : 0;  // 0 is no permit's number, whatever a peer says
  }
  bool is_permitted(uint16_t flag) const noexcept { return (permitted_ & flag) != 0; }
  // The kernel lets us, and the owner too.
  bool is_possible(uint16_t flag) const noexcept {
    return lane_->direct.allowed && is_permitted(flag);
  }
  bool is_allowed() const noexcept { return lane_->direct.allowed; }
  // From now on everything on this lane goes through the ring.
  void give_up() noexcept;

  // --- whether the target looks at its rings ---

  bool is_target_away() noexcept {
    const ring::ChannelTx& tx = lane_->request_tx;
    if (away_times_ < kSurelyAway) [[likely]] {
      if (target_away_ && tx.consumer_polls() != away_polls_) {
        target_away_ = false;
        stall_since_ = 0;
      }
      return target_away_ || !tx.consumer_hot();
    }
    if (++away_times_ <= kTryAgainAfter) return true;
    try_again();
    return false;
  }
  // It is surely there: no access of ours has had to wait for it of late.
  bool does_target_poll() const noexcept {
    return !target_away_ && away_times_ == 0 && lane_->request_tx.consumer_hot();
  }
  // The head of the request ring, a piece of len bytes at `pos`, has stood there for longer than a
  // claim costs several times over, and its owner has not been seen to poll meanwhile: it posts or
  // computes for some microseconds and is not away. To be asked again and again; the first call
  // starts the clock.
  bool has_stalled(uint64_t pos, uint64_t len) noexcept;
  // The owner is at it.
  void restart_clock() noexcept { stall_since_ = 0; }
  // It was when we last claimed, and has not polled since.
  bool is_known_away() noexcept {
    if (target_away_ && away_times_ < kSurelyAway &&
        lane_->request_tx.consumer_polls() != away_polls_) {
      target_is_there();
    }
    return target_away_;
  }
  // It says that it is executing the request there, or has. relaxed: a hint; claims ask again
  bool is_owner_at(uint64_t pos) const noexcept {
    return lane_->request_tx.words().executing.load(std::memory_order_relaxed) > pos;
  }
  // Wakes an owner that has stopped polling without going to sleep: every kRingEveryNs at most, and
  // more seldom the longer the head has stood.
  void ring_stalled_owner() noexcept;

  // --- copies ---

  // False: there is no slot to be had, and everything goes through the ring.
  // A permit has come and slots are not known to be lacking: a message that was offered may be
  // pulled.
  bool may_pull() const noexcept { return gate_number_ != 0 && !no_slot_; }
  bool has_slot() noexcept {
    if (slot_ == nullptr) [[unlikely]]
      find_slot();
    return slot_ != nullptr;
  }
  // One chunk at most. The ask's gate is filled in here.
  protect::DirectResult write(protect::DirectAsk& ask) noexcept {
    assert(slot_ != nullptr && gate_number_ != 0);
    copied_ = true;
    aim(ask);
    return lane_->direct.keys->write(lane_->direct.pid, *slot_, ask, &hint_);
  }
  protect::DirectResult read(protect::DirectAsk& ask) noexcept {
    assert(slot_ != nullptr && gate_number_ != 0);
    copied_ = true;
    aim(ask);
    return lane_->direct.keys->read(lane_->direct.pid, *slot_, ask, &hint_);
  }
  // There was such a copy. Whoever posts many of them, a microsecond or more each, looks at none of
  // its rings meanwhile, and two that write into each other take each other for away for ever: so
  // each serves the other in between.
  bool has_copied() const noexcept { return copied_; }
  void forget_copied() noexcept { copied_ = false; }
  // A piece of a message that the other side has offered: PeerKeyView::pull().
  protect::DirectResult pull(protect::PullAsk& ask) noexcept {
    assert(slot_ != nullptr);
    ask.gate = &lane_->request_tx.words().gate;
    ask.gate_number = gate_number_;
    return lane_->direct.keys->pull(lane_->direct.pid, *slot_, ask);
  }
  // Our slots are closed until we ask to be woken.
  bool is_dormant() const noexcept { return slot_ != nullptr && slot_->is_dormant(); }
  // To be called while an access that would have gone directly waits in the ring: if its owner has
  // made our slots dormant, the wish to be woken follows in the ring. put(body): the record of it,
  // in one cell.
  template <typename PutRecord>
  void ask_to_wake(PutRecord&& put) noexcept {
    if (!is_dormant()) return;
    ring::ChannelTx& tx = lane_->request_tx;
    if (tx.consumed_seen() < wake_asked_ || !tx.room(1)) return;  // asked, or later
    put(tx.cells.body());
    lane_.publish_request(1);
    wake_asked_ = tx.cells.pos();
  }
  // On which side a copy of those local pieces has faulted. reads: into them.
  static Fault side_of_fault(const iovec* local, size_t count, bool reads) noexcept;
  // A direct access to that key is likely: what it looks at first is fetched meanwhile.
  void foresee(uint64_t key) const noexcept { lane_->direct.keys->foresee(hint_, key); }
  // Is it certain that this would be refused now?
  protect::Denial would_refuse(uint64_t key, uint64_t addr, uint64_t len,
                               protect::Rights need) const noexcept {
    return lane_->direct.keys->would_refuse(lane_->remote_domain, key, addr, len, need);
  }
  bool asks_owner(uint64_t key) const noexcept {
    return lane_->direct.keys->asks_owner(lane_->remote_domain, key);
  }

  // --- claims: the requests at the head of the ring, done directly (claim.hpp) ---

  // What copying claimed requests came to.
  enum class Claimed : uint8_t {
    done,      // they are executed, or the first ones of them
    returned,  // they are for their owner to execute after all
    not_ours,  // the owner is at the first
  };
  // The pieces that one claim is to have: the oldest, which is the first that is not executed, and
  // those that adjoin it as long as may_claim(piece), length_of(piece) bytes each. The position of
  // the last one. Their owner waits meanwhile, so they are a chunk at most, or one.
  template <typename Piece, typename MayClaim, typename LengthOf>
  static uint64_t last_to_claim(const Inflight<Piece>& pieces, MayClaim&& may_claim,
                                LengthOf&& length_of) noexcept {
    uint64_t last = pieces.oldest().pos;
    uint64_t bytes = length_of(pieces.oldest());
    pieces.each_adjoining([&](const Piece& piece) {
      if (piece.pos == last) return true;
      bytes += length_of(piece);
      if (bytes > kClaimChunk || !may_claim(piece)) return false;
      last = piece.pos;
      return true;
    });
    return last;
  }
  // Claims those of `pieces` up to the one at `last`. copy(piece) moves the bytes of one and says
  // whether it is executed by that. end: the position behind the last one that is.
  template <typename Piece, typename Copy>
  Claimed claim(const Inflight<Piece>& pieces, uint64_t last, uint64_t& end, Copy&& copy) noexcept {
    ring::ChannelWords& words = lane_->request_tx.words();
    if (!has_slot()) return Claimed::returned;
    const uint64_t first = pieces.oldest().pos;
    assert(first == pieces.done_through() && last >= first);
    const uint64_t begun = ticks();
    const bool ours = claim_side_.begin(words, first, last);
    learn_claim(ticks() - begun, ours);
    if (!ours) {
      target_is_there();
      away_times_ = 0;
      return Claimed::not_ours;
    }
    uint64_t done = first;
    end = first;
    pieces.each_adjoining([&](const Piece& piece) {
      if (piece.pos > last || !copy(piece)) return false;
      done = piece.pos;
      end = piece.pos + piece.cells;
      return true;
    });
    if (end == first) {
      claim_side_.retract(words);
      target_is_there();
      return Claimed::returned;
    }
    claim_side_.finish(words, done);
    target_has_stalled();
    return Claimed::done;
  }

  // Fills in what the owner checks an ask by.
  void aim(protect::DirectAsk& ask) const noexcept {
    ask.pd = lane_->remote_domain;
    ask.gate = &lane_->request_tx.words().gate;
    ask.gate_number = gate_number_;
  }

 private:
  void find_slot() noexcept;
  void try_again() noexcept;
  void target_has_stalled() noexcept;
  // What a claim has cost (its heavy barrier above all, which interrupts the owner's core), and
  // whether the owner had come to the request by itself.
  void learn_claim(uint64_t cost, bool ours) noexcept;
  void target_is_there() noexcept {
    stall_since_ = 0;
    target_away_ = false;
  }

  LaneEnd& lane_;
  protect::AccessorSlot* slot_ = nullptr;
  protect::LookupHint hint_;
  uint64_t gate_number_ = 0;  // of the permit in force; 0: none has come
  uint16_t permitted_ = 0;    // kPermit..., kTellOf...
  bool no_slot_ = false;      // there was none to be had
  bool copied_ = false;       // since it was last asked
  bool target_away_ = false;  // it did not execute when we last waited for it
  uint32_t away_times_ = 0;   // so often it had to be done directly, less what it came to by itself
  uint64_t away_polls_ = 0;   // the target's count of polls then
  uint64_t stall_pos_ = 0;
  uint64_t stall_since_ = 0;  // ticks; 0: not stalled
  uint64_t stall_polls_ = 0;  // the target's count of polls then
  uint64_t claim_cost_ = 0;   // ticks, a moving average; 0: none was made
  uint32_t contested_ = 0;    // claims that the owner had come to first, less those it had not
  uint64_t tried_at_ = 0;     // ticks when one that is surely away was last tried
  uint64_t try_ticks_ = 0;    // so long it is waited for meanwhile, at least
  uint64_t rung_at_ = 0;      // ticks when a stalled head last rang
  uint64_t wake_asked_ = 0;   // position behind the last wish to be woken
  ClaimSide claim_side_;
};

}  // namespace aperture::transport
