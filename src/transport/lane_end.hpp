// One end of a lane, as both families of queue pairs use it: publishing, acknowledging, bytes
// behind the rings, sleep, and the end by a broken protocol.
//
// What is published is told in the same function: publish_request(), publish_response(),
// acknowledge_requests() and acknowledge_responses() ring the other side's doorbell if it sleeps.
// put_request() alone leaves that to its caller.
// No queue pair stores a ready mark or `consumed` but through this file; a link that carries
// records by itself stores those of what has arrived. Guarded by the engine's lock.
//
// Payload that does not lie in cells goes through the put_ and take_ calls. In shared memory they
// are the copies to and from the byte rings. A piece, which is payload with a record of its own,
// may be sent by the link from where it lies, and may be received where it belongs.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/barrier.hpp"
#include "base/wild.hpp"
#include "link/lane.hpp"
#include "transport/claim.hpp"
#include "transport/tuning.hpp"

namespace aperture::transport {

// What became of put_bytes().
enum class Put : uint8_t {
  done,
  no_room,    // of the ring, now; try again when the other side has taken something
  no_memory,  // for the ring's pages
  no_source,  // fill() has failed: nothing was taken from the ring
};

// Payload in a byte ring that the other side named. Copy it once, then done_with() gives its place
// back. Null: the place does not lie in the ring, or is too long.
class BytesIn {
 public:
  BytesIn() = default;
  BytesIn(const std::byte* from, uint64_t length, uint64_t end_position,
          link::Lane* landing) noexcept
      : len(length), end(end_position), from_(from), landing_(landing) {}

  explicit operator bool() const noexcept { return from_ != nullptr; }
  const std::byte* from() const noexcept {
    assert(landing_ == nullptr);
    return from_;
  }

  // take_piece() alone: it may still lie with the link. Then either land() has it where it belongs,
  // or stage() brings it into the ring, for from(). False: no memory takes it there, or it cannot
  // be had any more.
  bool may_land() const noexcept { return landing_ != nullptr; }
  bool land(std::byte* to) noexcept { return std::exchange(landing_, nullptr)->land(to); }
  bool stage() noexcept {
    link::Lane* const lane = std::exchange(landing_, nullptr);
    return lane == nullptr || lane->stage();
  }

  uint64_t len = 0;
  uint64_t end = 0;  // position behind it

 private:
  const std::byte* from_ = nullptr;
  link::Lane* landing_ = nullptr;
};

// Where the payload of a piece goes, whose record is laid out already.
class PieceOut {
 public:
  PieceOut(link::Lane& lane, ring::ChannelTx& tx, uint64_t position, uint32_t length) noexcept
      : lane_(lane), tx_(tx), position_(position), length_(length) {}

  // Has the link take all of it from there, where it would. no: it is to be copied to at(). stays:
  // it is there until the PieceRun is over.
  link::Carried carry(const std::byte* from, bool stays) noexcept {
    if (!lane_.carries) [[likely]]
      return link::Carried::no;
    return lane_.carry(tx_, position_, {from, length_}, stays);
  }
  std::byte* at() noexcept { return tx_.bytes.at(position_); }

 private:
  link::Lane& lane_;
  ring::ChannelTx& tx_;
  const uint64_t position_;
  const uint32_t length_;
};

// While pieces of the application's memory are put one after the other, which go together then.
class PieceRun {
 public:
  explicit PieceRun(link::Lane& lane) noexcept : lane_(lane.carries ? &lane : nullptr) {
    if (lane_ != nullptr) lane_->begin_pieces();
  }
  ~PieceRun() {
    if (lane_ != nullptr) lane_->end_pieces();
  }
  PieceRun(const PieceRun&) = delete;
  PieceRun& operator=(const PieceRun&) = delete;

 private:
  link::Lane* const lane_;
};

class LaneEnd {
 public:
  explicit operator bool() const noexcept { return lane_ != nullptr; }
  link::Lane* get() const noexcept { return lane_.get(); }
  link::Lane* operator->() const noexcept { return lane_.get(); }

  void attach(std::unique_ptr<link::Lane> lane) noexcept {
    assert(lane_ == nullptr && lane != nullptr);
    lane_ = std::move(lane);
    broken_ = false;
    fences_ = true;
    fenced_ = rings_ = 0;
    rung_at_ = 0;
    lane_->request_tx.promise_fences(ring::FencePromise::given);
    lane_->on_attached();
  }
  std::unique_ptr<link::Lane> release() noexcept {
    if (lane_ != nullptr) lane_->on_released();
    return std::move(lane_);
  }

  // --- publishing ---

  // The request whose body is filled, n_cells of it.
  void publish_request(uint32_t n_cells) noexcept {
    if (put_request(n_cells)) [[unlikely]]
      tell_of_request();
  }
  // The two steps of that, for whom a call in the middle of his way would cost: true, and
  // tell_of_request() is due, at the end of the caller.
  [[nodiscard, gnu::always_inline]] bool put_request(uint32_t n_cells) noexcept {
    link::Lane& lane = *lane_;  // asked for once: what is published might be anything to a compiler
    lane.request_tx.cells.publish(n_cells);
    return fences_ || lane.request_tx.must_ring();
  }
  void tell_of_request() noexcept { wake_consumer(lane_->request_tx); }
  void publish_response(uint32_t n_cells) noexcept {
    link::Lane& lane = *lane_;
    lane.response_tx.cells.publish(n_cells);
    wake_consumer(lane.response_tx);
  }
  // Everything before the head of the request ring is executed. False: that was told before.
  bool acknowledge_requests() noexcept {
    ring::ChannelRx& rx = lane_->request_rx;
    if (rx.unpublished() == 0) return false;
    rx.publish_consumed();
    lane_->request_tx.cells.note_answer();
    // the requester may sleep until its operation is acknowledged
    wake_acknowledged(lane_->response_tx);
    return true;
  }
  bool acknowledge_responses() noexcept {
    ring::ChannelRx& rx = lane_->response_rx;
    if (rx.unpublished() == 0) return false;
    rx.publish_consumed();
    // whoever waits for room in its response ring may sleep
    wake_acknowledged(lane_->request_tx);
    return true;
  }

  // --- bytes behind the rings ---

  // Copies n bytes, at most a piece, into the byte ring behind the requests: fill(to) puts them
  // there, or says false. pos: their place, for the record that tells of them.
  template <typename Fill>
  Put put_request_bytes(uint32_t n, uint64_t& pos, Fill&& fill) noexcept {
    return put_bytes(lane_->request_tx, n, pos, fill,
                     [this] { return lane_->prepare_request_bytes(); });
  }
  template <typename Fill>
  Put put_response_bytes(uint32_t n, uint64_t& pos, Fill&& fill) noexcept {
    const Put put = put_bytes(lane_->response_tx, n, pos, fill,
                              [this] { return lane_->prepare_response_bytes(); });
    if (put == Put::done) moved_bytes_ += n;
    return put;
  }
  // The same for a piece: record(body, pos) lays out its record, which is one cell and published by
  // the caller, next; there is room for it. fill(PieceOut) has the payload carried or copies it, or
  // says false.
  template <typename Record, typename Fill>
  Put put_request_piece(uint32_t n, Record&& record, Fill&& fill) noexcept {
    return put_piece(lane_->request_tx, n, record, fill,
                     [this] { return lane_->prepare_request_bytes(); });
  }
  template <typename Record, typename Fill>
  Put put_response_piece(uint32_t n, Record&& record, Fill&& fill) noexcept {
    const Put put = put_piece(lane_->response_tx, n, record, fill,
                              [this] { return lane_->prepare_response_bytes(); });
    if (put == Put::done) moved_bytes_ += n;
    return put;
  }
  // The bytes that the peer has had us copy so far, out of the rings and into those of responses: a
  // count, to be compared with a later one (kPollBytes). It is ours: positions in the rings are the
  // peer's to choose.
  uint64_t moved_for_peer() const noexcept { return moved_bytes_; }
  // What a record says to lie in the byte ring, `limit` bytes at most.
  BytesIn take_bytes(const ring::ChannelRx& rx, Wild<uint64_t> pos, uint64_t len,
                     uint64_t limit) noexcept {
    BytesIn bytes = take_piece(rx, pos, len, limit);
    return !bytes.may_land() || bytes.stage() ? bytes : BytesIn{};
  }
  BytesIn take_bytes(const ring::ChannelRx& rx, Wild<uint64_t> pos, Wild<uint64_t> len,
                     uint64_t limit) noexcept {
    uint64_t n = 0;
    return len.bounded(limit, n) ? take_bytes(rx, pos, n, limit) : BytesIn{};
  }
  // The same for who says where it belongs, and may leave it for later.
  BytesIn take_piece(const ring::ChannelRx& rx, Wild<uint64_t> pos, uint64_t len,
                     uint64_t limit) noexcept {
    if (len > limit) return {};
    const uint64_t at = pos.unchecked();  // view() bounds it
    const link::Landing& landing = lane_->landing;
    const bool may_land = landing.rx == &rx && landing.position == at && landing.length == len;
    return {rx.bytes.view(at, len), len, rx.bytes.after(at, len), may_land ? lane_.get() : nullptr};
  }
  BytesIn take_piece(const ring::ChannelRx& rx, Wild<uint64_t> pos, Wild<uint64_t> len,
                     uint64_t limit) noexcept {
    uint64_t n = 0;
    return len.bounded(limit, n) ? take_piece(rx, pos, n, limit) : BytesIn{};
  }
  void done_with(ring::ChannelRx& rx, const BytesIn& bytes) noexcept {
    assert(bytes);
    moved_bytes_ += bytes.len;
    rx.free_bytes_before(bytes.end);
  }

  // --- responses, and what was executed ---

  // Takes the responses that are there, as many as one poll may: take(body) executes one and says
  // how many cells it has; 0: no sound peer says that. True: there was one.
  template <typename Take>
  bool take_responses(Take&& take) noexcept {
    ring::ChannelRx& rx = lane_->response_rx;
    bool any = false;
    const uint64_t moved_before = moved_bytes_;
    for (int budget = kPollBudget; budget > 0 && rx.cells.ready() && !broken_; --budget) {
      const uint32_t n_cells = take(rx.cells.body());
      if (n_cells == 0) [[unlikely]] {
        break_protocol("an unknown response");
        return true;
      }
      rx.cells.advance(n_cells);
      any = true;
      if (rx.unpublished() >= kAckCells / 4) acknowledge_responses();
      if (moved_bytes_ - moved_before >= kPollBytes) break;
    }
    if (any) acknowledge_responses();
    return any;
  }
  // How far the other side has executed our requests. Refusals and results were stored before
  // `consumed` (docs/adr/0002): all of them are taken first, or a refused operation would end as a
  // success. They are a ring full at most.
  template <typename Poll>
  uint64_t executed(Poll&& poll_responses) noexcept {
    const uint64_t consumed = lane_->request_tx.refresh();
    const ring::CellReader& responses = lane_->response_rx.cells;
    const uint64_t at_most = responses.pos() + lane_->response_tx.cells.capacity();
    while (!broken_ && responses.ready() && responses.pos() <= at_most) poll_responses();
    return consumed;
  }
  // May the request at the head of the ring be executed, which its initiator might have claimed?
  ClaimVerdict may_execute() noexcept {
    return claim_verdict(lane_->request_rx.words(), lane_->request_rx.cells.pos(),
                         lane_->fence_always);
  }

  // --- polling and sleep ---

  void wake_up() noexcept {
    if (lane_ == nullptr) return;
    lane_->request_rx.set_state(ring::ConsumerState::hot);
    lane_->response_rx.set_state(ring::ConsumerState::hot);
    sleeps_lightly_ = true;
  }
  // Records ring the doorbell from now on; what else does:
  struct Sleep {
    bool for_executed;  // the execution of our requests, which somebody waits for
    bool for_room;      // room in the response ring
  };
  // Who is woken for what nobody asks about sleeps again at once, and has disturbed a core twice.
  // A ring more than half full counts as asked about: its room will be wanted.
  void fall_asleep(Sleep sleep) noexcept {
    assert(lane_ != nullptr);  // whoever knows what it waits for has asked its lane
    ring::ChannelTx& tx = lane_->request_tx;
    // relaxed: a hint. What has been seen of it stays as it is: has_moved() asks for the rest
    const uint64_t consumed = tx.words().consumed.load(std::memory_order_relaxed);
    sleeps_lightly_ = sleep.for_executed || light_sleeps_ != 0 ||
                      tx.cells.pos() - consumed > tx.cells.capacity() / 2;
    if (light_sleeps_ != 0) --light_sleeps_;
    lane_->request_rx.set_state(asleep(sleep.for_room));
    lane_->response_rx.set_state(asleep(sleeps_lightly_));
  }
  // Asked while asleep: what was posted meanwhile is waited for, and its execution would not ring.
  bool sleeps_too_deep(bool for_executed) noexcept {
    if (lane_ == nullptr || sleeps_lightly_ || !for_executed) return false;
    light_sleeps_ = kLightSleeps;  // who posts so now does so again
    return true;
  }
  // No heavy barrier is needed to go to sleep: the producer fences. Asked after our own fence.
  bool producer_fences() const noexcept {
    return lane_ == nullptr || lane_->request_rx.producer_fences();
  }
  // Acknowledgements and room ring the doorbell too, without a cell.
  // SYNC POINT: channel-consumed: only looked at here, refresh() acts on it
  static bool has_moved(ring::ChannelTx& tx) noexcept {
    return tx.words().consumed.load(std::memory_order_acquire) > tx.consumed_seen();
  }
  // Whether something of ours waits for the other side: a hint for the watch over silent peers.
  void note_pending(bool pending) noexcept {
    const uint32_t now = pending ? 1 : 0;
    // relaxed: a hint
    if (lane_->pending.load(std::memory_order_relaxed) == now) return;
    lane_->pending.store(now, std::memory_order_relaxed);
    if (pending && lane_->watch != nullptr) lane_->watch->on_pending();
  }

  // --- the end ---

  // The peer has said what no sound peer says: nothing more is taken from this lane.
  void break_protocol(const char* what) noexcept;
  // The same without a word: the queue pair is about to end.
  void cease() noexcept { broken_ = true; }
  bool broken() const noexcept { return broken_; }

 private:
  static ring::ConsumerState asleep(bool for_all) noexcept {
    return for_all ? ring::ConsumerState::asleep : ring::ConsumerState::asleep_for_records;
  }
  void wake_consumer(ring::ChannelTx& tx) noexcept {
    if (fences_) [[unlikely]]
      fence();
    if (tx.must_ring()) [[unlikely]]
      ring_consumer();
  }
  void wake_acknowledged(ring::ChannelTx& tx) noexcept {
    if (fences_) [[unlikely]]
      fence();
    if (tx.must_ring_for_acknowledgement()) [[unlikely]]
      ring_consumer();
  }
  // Between publishing and looking at the consumer's state: a consumer that sleeps often relies on
  // it, one that polls has no use for it.
  [[gnu::noinline]] void fence() noexcept;
  [[gnu::cold]] void ring_consumer() noexcept;
  template <typename Fill, typename Prepare>
  Put put_bytes(ring::ChannelTx& tx, uint32_t n, uint64_t& pos, Fill&& fill,
                Prepare&& prepare) noexcept {
    return put_piece(
        tx, n, [&](std::byte*, uint64_t at) { pos = at; },
        [&](PieceOut out) { return fill(out.at()); }, prepare);
  }

  template <typename Record, typename Fill, typename Prepare>
  Put put_piece(ring::ChannelTx& tx, uint32_t n, Record&& record, Fill&& fill,
                Prepare&& prepare) noexcept {
    assert(n <= tx.bytes.size());
    uint64_t pos = 0;
    if (!tx.reserve_bytes(n, pos)) return Put::no_room;
    if (!prepare()) [[unlikely]]
      return Put::no_memory;
    record(tx.cells.body(), pos);
    if (!fill(PieceOut(*lane_, tx, pos, n))) [[unlikely]]
      return Put::no_source;
    tx.bytes.commit(pos, n);
    return Put::done;
  }

  std::unique_ptr<link::Lane> lane_;
  uint64_t moved_bytes_ = 0;
  bool broken_ = false;
  bool fences_ = true;          // as promised to the consumer
  bool sleeps_lightly_ = true;  // the execution of our requests rings
  uint32_t fenced_ = 0;         // publications with a fence since the consumer was last rung
  uint32_t rings_ = 0;          // without a promise, and with few publications between them
  uint64_t rung_at_ = 0;        // publications when it last was
  uint32_t light_sleeps_ = 0;   // to come
};

}  // namespace aperture::transport
