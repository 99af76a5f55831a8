// The direct path of an initiator: reading and writing the other side's memory without its help
// (process_vm_readv, process_vm_writev), under the pin protocol of protect/.
//
// Holds what belongs to one lane: the accessor slot, the permit, and the initiator's half of the
// claims. Whether the owner of that memory looks at its rings is Target's to know. Guarded by the
// engine's lock.
#pragma once

#include <cassert>
#include <cstdint>

#include "base/clock.hpp"
#include "protect/peer_devices.hpp"
#include "protect/peer_key_view.hpp"
#include "transport/inflight.hpp"
#include "transport/lane_end.hpp"
#include "transport/permit.hpp"
#include "transport/target.hpp"

namespace aperture::transport {

// What a direct copy was refused by, once the two sides of a fault have been told apart.
enum class Fault : uint8_t {
  here,   // our buffer is not mapped, or not as it has to be
  there,  // the owner's memory: it refuses the access itself, with its own sentence
};

class OneSided {
 public:
  OneSided(LaneEnd& lane, Target& target) noexcept : lane_(lane), target_(target) {}

  // A new lane is attached: nothing of the last one holds, of its target neither.
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

  // --- copies ---

  // A permit has come and slots are not known to be lacking: a message that was offered may be
  // pulled.
  bool may_pull() const noexcept { return gate_number_ != 0 && !no_slot_; }
  // False: there is no slot to be had, and everything goes through the ring.
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
  // The key is of a device's memory, which we may copy by our own driver: to have its owner do that
  // is slower even where it looks at its ring.
  [[gnu::always_inline]] bool reaches_device(uint64_t key) const noexcept {
    const protect::PeerKeyView& keys = *lane_->direct.keys;
    return keys.has_devices() && keys.is_in_device(lane_->remote_domain, key);
  }
  // Pinned host memory of a chunk, for one copy from or to what the grant is of. Null: there is
  // none.
  std::byte* stand_in(const protect::Grant& in_device) noexcept {
    return devices_.stand_in(*in_device.device());
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
  // The first request that is not executed is one of `pieces` for which may_claim(piece) holds, and
  // its owner is not at it: it will be claimed soon unless the owner comes.
  template <typename Piece, typename MayClaim>
  bool may_claim_head(const Inflight<Piece>& pieces, MayClaim&& may_claim) const noexcept {
    if (pieces.empty()) return false;
    const Piece& head = pieces.oldest();
    return head.pos == pieces.done_through() && may_claim(head) && !target_.is_at(head.pos);
  }
  // The pieces that one claim is to have: the oldest, which is the first that is not executed, and
  // those that adjoin it as long as may_claim(piece), length_of(piece) bytes each. The position of
  // the last one. Their owner waits meanwhile, so they are a chunk at most, or one.
  template <typename Piece, typename MayClaim, typename LengthOf>
  static uint64_t last_to_claim(Inflight<Piece>& pieces, MayClaim&& may_claim,
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
  Claimed claim(Inflight<Piece>& pieces, uint64_t last, uint64_t& end, Copy&& copy) noexcept {
    ring::ChannelWords& words = lane_->request_tx.words();
    if (!has_slot()) return Claimed::returned;
    const uint64_t first = pieces.oldest().pos;
    assert(first == pieces.done_through() && last >= first);
    const uint64_t begun = ticks();
    const bool ours = claim_side_.begin(words, first, last);
    target_.learn_claim(ticks() - begun, ours);
    if (!ours) {
      target_.has_come();
      return Claimed::not_ours;
    }
    uint64_t done = first;
    end = first;
    pieces.each_adjoining([&](Piece& piece) {
      if (piece.pos > last || !copy(piece)) return false;
      done = piece.pos;
      end = piece.pos + piece.cells;
      return true;
    });
    if (end == first) {
      claim_side_.retract(words);
      target_.is_there();
      return Claimed::returned;
    }
    claim_side_.finish(words, done);
    target_.has_let_wait();
    return Claimed::done;
  }

  // Fills in what the owner checks an ask by.
  void aim(protect::DirectAsk& ask) noexcept {
    ask.pd = lane_->remote_domain;
    ask.gate = &lane_->request_tx.words().gate;
    ask.gate_number = gate_number_;
    ask.devices = &devices_;
  }

 private:
  void find_slot() noexcept;

  LaneEnd& lane_;
  Target& target_;
  protect::AccessorSlot* slot_ = nullptr;
  protect::LookupHint hint_;
  uint64_t gate_number_ = 0;  // of the permit in force; 0: none has come
  uint16_t permitted_ = 0;    // kPermit..., kTellOf...
  bool no_slot_ = false;      // there was none to be had
  bool copied_ = false;       // since it was last asked
  uint64_t wake_asked_ = 0;   // position behind the last wish to be woken
  ClaimSide claim_side_;
  protect::PeerDevices devices_;
};

}  // namespace aperture::transport
