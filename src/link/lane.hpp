// The Link contract: a lane is the ordered, reliable connection of two queue pairs.
//
// Whatever carries it, a lane looks like four channels (ring/channel.hpp): requests and responses,
// out and in. They never share a ring, so a request that has to wait holds up no response. A link
// hands lanes out; what it promises:
//   - what is published on a channel arrives in order, once, or the lane goes down;
//   - `consumed` of an outgoing channel grows as the other side executes;
//   - ring_doorbell() wakes the other side's engine if it sleeps;
//   - lost() becomes true soon after the other side has died, and what it had published before can
//     still be read.
// A lane in shared memory has nothing to move by itself. A link that has moves the contents of all
// its lanes at once, in the engine's poll (link/progress.hpp). The conformance suite tests/link
// runs over every link.
//
// Owned by a queue pair and used by its engine's thread, but for lost(), which any thread may read;
// the control thread sets it, or the link that moves the lane.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/address.hpp"
#include "base/barrier.hpp"
#include "ring/channel.hpp"

namespace aperture::protect {
class PeerKeyView;
struct SlotArray;
}  // namespace aperture::protect

namespace aperture::link {

// Direct access: what each side of a lane may reach in the other's memory without its help. Links
// only pass this on, so names of protect/ are enough here.
struct DirectPath {
  bool allowed = false;  // the same user and namespaces, and the probe copy went through
  pid_t pid = -1;        // of the other side
  // All three outlive the lane. Null: there are none.
  const protect::PeerKeyView* keys = nullptr;  // the other side's
  protect::SlotArray* slots = nullptr;         // in which we pin, watched by the other side
  protect::SlotArray* watched = nullptr;       // in which the other side pins, watched by us
  uint32_t lane = 0;  // number that slots of this lane bear: its index in the segment
  // All that the other side wants of our memory goes through the rings: it is permitted nothing.
  bool owner_only = false;
};

// Pieces of pipelined copying: small enough that both copies overlap and stay in the caches, large
// enough that a cell per piece costs nothing.
inline constexpr uint64_t kPieceBytes = 32 * 1024;

// What became of carry().
enum class Carried : uint8_t {
  no,         // the payload belongs into the ring
  yes,        // it has gone, or what has not lies in the ring
  no_source,  // a part of it is not mapped: the lane is lost
};

// Payload that has come and lies with the link, not in its ring. It is that of one record, which is
// published, and is there until the poll is over; then the link puts it into the ring.
struct Landing {
  const ring::ChannelRx* rx = nullptr;  // whose record; null: there is none
  uint64_t position = 0;                // in that channel's byte ring
  uint64_t length = 0;
};

// Who looks whether the other side of a lane still lives as long as it owes us something, and rests
// while none does.
class PendingWatch {
 public:
  // Something has become pending. Any thread.
  void on_pending() noexcept {
    // SYNC POINT: watch-rests: whoever rests sets the flag, passes a heavy barrier and looks again
    light_barrier();
    // relaxed: ordered by the barriers
    if (rests_.load(std::memory_order_relaxed)) [[unlikely]]
      wake();
  }

 protected:
  ~PendingWatch() = default;
  virtual void wake() noexcept = 0;

  std::atomic<bool> rests_{false};
};

// What all lanes of this process to one engine of a peer know of its doorbell: one ring is for all
// of them (tests/spin/ring_once.pml). Any thread.
class Ringing {
 public:
  // Of the engine's sleep with that number, which the channels say (ring/channel.hpp).
  // SYNC POINT: rung-sleep: the ring itself comes before it is said
  bool is_rung_for(uint64_t sleep_number) const noexcept {
    return sleep_number != ring::kUnnumbered &&
           sleep_number_.load(std::memory_order_acquire) == sleep_number;
  }
  // SYNC POINT: rung-sleep
  void note_rung_for(uint64_t sleep_number) noexcept {
    sleep_number_.store(sleep_number, std::memory_order_release);
  }
  // For an engine that is awake and does not come to what lies there: true if that has not been
  // rung for by any lane in the last `pause` ticks, and is now.
  bool rings_again(uint64_t now, uint64_t pause) noexcept {
    // relaxed, both: two that ring at once do no harm
    if (now - rung_at_.load(std::memory_order_relaxed) < pause) return false;
    rung_at_.store(now, std::memory_order_relaxed);
    return true;
  }

 private:
  std::atomic<uint64_t> sleep_number_{ring::kUnnumbered};  // that it was rung for last
  std::atomic<uint64_t> rung_at_{0};                       // ticks
};

class Lane {
 public:
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  virtual ~Lane() = default;

  // Memory of a byte ring comes when it is first used: false if there is none to be had.
  virtual bool prepare_request_bytes() noexcept = 0;
  virtual bool prepare_response_bytes() noexcept = 0;
  // Wakes the engine on the other side. A system call; only after must_ring().
  virtual void ring_doorbell() noexcept = 0;

  // Only where `carries`. The record of one cell in tx.cells.body() tells of this payload, whose
  // place in the byte ring is reserved: a link that sends from where payload lies does so now, with
  // the record, both of which the caller publishes next. Between begin_pieces() and end_pieces(),
  // in one call of the queue pair's, what `stays` where it is may go with the last of them.
  virtual Carried carry(ring::ChannelTx& /*tx*/, uint64_t /*position*/,
                        std::span<const std::byte> /*payload*/, bool /*stays*/) noexcept {
    return Carried::no;
  }
  virtual void begin_pieces() noexcept {}
  virtual void end_pieces() noexcept {}
  bool carries = false;
  // The longest piece that is sent and taken.
  uint64_t piece_bytes = kPieceBytes;
  // What pieces that the link sends together have at most.
  uint64_t run_bytes = kPieceBytes;

  // What land() or stage() would take; set and reset by the link.
  Landing landing;
  // All of it to there, instead of into the ring. False: there is no memory that takes it; then it
  // is gone, as bytes are that were copied in part.
  virtual bool land(std::byte* /*to*/) noexcept { return false; }
  // Into the ring, where its record says. False: it cannot be had any more, and the lane is lost.
  virtual bool stage() noexcept { return true; }

  // A queue pair has it from now on, or no longer: in between, a link that moves its lanes moves
  // this one. With the lock of the queue pair's engine.
  virtual void on_attached() noexcept {}
  virtual void on_released() noexcept {}
  // Its end has been told: what the other side had published can be read from now on, all of it.
  // With the same lock.
  virtual void on_lost() noexcept {}
  // The lane that this one stands on, if any. Once it is released; then it carries nothing more.
  virtual std::unique_ptr<Lane> take_inner() noexcept { return nullptr; }

  // SYNC POINT: lane-lost (pairs with mark_lost())
  bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }
  // SYNC POINT: lane-lost: everything the peer published is visible to who sees it lost
  void mark_lost() noexcept { lost_.store(true, std::memory_order_release); }

  ring::ChannelTx request_tx;
  ring::ChannelRx request_rx;
  ring::ChannelTx response_tx;
  ring::ChannelRx response_rx;

  // Rendezvous claim words (qp/offer): those of messages that we send, and that we receive.
  // Both sides write them. nullptr where the other side cannot reach our memory by itself.
  std::atomic<uint64_t>* claims_out = nullptr;
  std::atomic<uint64_t>* claims_in = nullptr;
  static constexpr uint32_t kClaims = 32;

  DirectPath direct;
  Address remote;              // the endpoint at the other end
  uint32_t remote_domain = 0;  // protection domain that our RMA requests meet there
  bool to_self = false;        // both ends are one endpoint
  // True if heavy_barrier() of the other side does not reach our threads, or its own does not
  // exist: then a full_fence() of ours stands wherever it would have to.
  bool fence_always = false;
  // Operations of ours that wait for the other side, for the watch over silent peers. Written by
  // the engine's thread, read by the control thread; a hint, so relaxed is enough.
  std::atomic<uint32_t> pending{0};
  PendingWatch* watch = nullptr;  // null: nobody watches. Outlives the lane
  Ringing* ringing = nullptr;     // null: this lane alone rings that engine. Outlives the lane
  // Of the queue pair that has it, if it has such a thing: what its RNR NAKs say.
  const uint8_t* min_rnr_timer = nullptr;

 private:
  std::atomic<bool> lost_{false};
};

}  // namespace aperture::link
