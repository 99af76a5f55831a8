// A queue pair: requester, responder and the rendezvous transfers of one lane.
//
// Guarded by its engine's lock. States: connecting (no lane yet: posts are queued), ready, draining
// (the lane is lost: what the peer had published is still executed), dead. InfiniBand semantics as
// in architecture.md: requests execute in order, `consumed` acknowledges, a nak stored before it
// names what was refused. A refused RMA leaves the queue pair working, as libfabric expects.
//
//   requester.cpp    posting: sends into the ring, the send queue, acknowledgements
//   delivery.cpp     sends that complete with the other side
//   rma.cpp          RMA through the ring, in pieces
//   atomic.cpp       atomics, both halves: always executed by the owner
//   commit.cpp       writes that are persistent when they complete
//   invalidation.cpp sends that invalidate a memory window first, both halves
//   notice.cpp       telling the owner of accesses: immediate data, RMA events
//   direct.cpp       RMA by our own hand (CMA) when the ring is empty or its head is claimed
//   responder.cpp    executing the peer's requests
//   rendezvous.cpp   offered messages, both halves
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/list.hpp"
#include "link/lane.hpp"
#include "protect/key_table.hpp"
#include "protect/peer_key_view.hpp"
#include "qp/claim.hpp"
#include "qp/port.hpp"
#include "qp/wqe.hpp"
#include "wire/request.hpp"

namespace aperture::qp {

enum class QpState : uint8_t { connecting, ready, draining, dead };

class Qp {
 public:
  Qp(Port& port, const Address& remote) noexcept
      : port_(port), domain_(port.domain), remote_(remote) {}
  ~Qp();
  Qp(const Qp&) = delete;
  Qp& operator=(const Qp&) = delete;

  QpState state() const noexcept { return state_; }
  const Address& remote() const noexcept { return remote_; }
  link::Lane* lane() noexcept { return lane_.get(); }
  // What memory windows of this peer alone are bound to: drawn when first asked for, and of no
  // other queue pair ever.
  protect::EndpointId number() noexcept {
    if (number_ == 0) number_ = protect::new_endpoint_id();
    return number_;
  }
  Port& port() noexcept { return port_; }

  // connecting -> ready; queued operations start with the next poll.
  void attach(std::unique_ptr<link::Lane> lane) noexcept;
  // ready -> draining: finish() becomes possible once drained() is true.
  void lose(Errc why) noexcept;
  bool drained() const noexcept;
  // The peer broke the protocol: finish(Errc::protocol) is due.
  bool broken() const noexcept { return broken_; }
  // -> dead: each operation that is left ends with one error. Hands the lane back (may be null).
  std::unique_ptr<link::Lane> finish(Errc why) noexcept;

  Status send(const SendWr& wr) noexcept;
  // The hot path of sending: a message of one cell that may go at once (line.hpp). False: nothing
  // was done, take send().
  bool send_line(const LineWr& wr) noexcept;
  Status rma(WqeKind kind, const RmaWr& wr) noexcept;
  Status atomic(const AtomicWr& wr) noexcept;
  // Cancels a send that has not begun. Errors: no_entry.
  Status cancel(void* context) noexcept;
  bool has_pending() const noexcept {
    return !queue_.empty() || !pending_.empty() || offers_out_ > 0;
  }

  // Something is in the ring and not known to be executed: what a fence waits for.
  bool under_way() const noexcept { return !pending_.empty() || offers_out_ > 0; }
  // Learns now what has been executed, also of what nobody waits for.
  void look_at_acknowledgements() noexcept {
    if (state_ == QpState::ready && !pending_.empty()) learn_executed();
  }
  // Something is not in the ring yet.
  bool has_queued() const noexcept { return !queue_.empty(); }

  // Drives everything once. True if anything happened.
  bool poll(uint64_t polls) noexcept;
  // The hot path of polling: executes the requests that have arrived. Due instead is a poll(),
  // which also looks at what only time moves (claims, pulls, the peer's view of our polls), every
  // few polls and whenever there is more to do: Look::poll.
  enum class Look : uint8_t { nothing, taken, poll };
  Look look() noexcept {
    if (busy_ || lane_ == nullptr || lane_->response_rx.cells.ready()) [[unlikely]]
      return Look::poll;
    if (!lane_->request_rx.cells.ready()) return Look::nothing;
    const bool lines = poll_lines();
    if (lane_->request_rx.cells.ready() && !poll_others() && !lines) return Look::poll;
    return busy_ ? Look::poll : Look::taken;
  }
  void set_consumer_state(ring::ConsumerState state) noexcept;
  bool anything_arrived() const noexcept;
  // It is over and its owner should finish() it: broken, or lost and drained.
  bool needs_wind_up() const noexcept {
    return broken_ || (state_ == QpState::draining && drained());
  }
  // Something goes on only while we poll (claims and pulls have no doorbell): do not sleep.
  bool needs_polling() const noexcept;

  // For msg/: takes an offered message into `receive` (on_received follows, maybe at once), or
  // drops it. Also from inside on_message.
  Status begin_receive(const Arrival& offer, const Receive& receive) noexcept;
  void drop_offer(uint32_t offer_id) noexcept;
  // Asks the peer to send no payload unasked (or to go back to normal).
  void set_pressure(bool on) noexcept;

  // The peer's address-table index as last looked up, for the owner of the table.
  uint64_t source_index = kNoSource;
  uint64_t source_version = 0;

 private:
  enum class Put : uint8_t { done, no_room, needs_wqe };
  struct Piece {  // an RMA piece in the request ring that we could claim
    uint64_t pos;
    uint32_t cells;
    uint8_t range_at;  // index of the range that it is a piece of
    bool check_only;   // no bytes move
    Wqe* wqe;
    RemoteRange range;
    uint64_t wqe_offset;
  };
  struct Incoming {  // a message that we are receiving
    bool used = false;
    bool granted = false;
    uint32_t generation = 0;
    Receive receive;
    uint64_t got = 0;
    uint64_t pulled = 0;
    bool delivery = false;
    uint32_t offer_id = 0;
    uint32_t claim = wire::kNoClaim;
    uint64_t address = 0;
    uint64_t stalled_since = 0;  // ticks when we first waited for it
  };
  struct Reply {  // a response that found no room
    wire::Head head;
    wire::GrantFields grant;
  };

  // requester.cpp
  Put put_send(const SendWr& wr) noexcept;
  Put put_send_inline(const SendWr& wr, uint32_t n_cells) noexcept;
  Put put_send_bytes(const SendWr& wr) noexcept;
  bool put_offer(Wqe& wqe) noexcept;
  bool put_acknowledged(Wqe& wqe) noexcept;  // delivery.cpp
  Status queue_send(const SendWr& wr) noexcept;
  void complete_send(const SendWr& wr) noexcept;
  SendWr as_send_wr(const Wqe& wqe) const noexcept;
  bool start(Wqe& wqe) noexcept;
  bool put_rma(Wqe& wqe) noexcept;
  bool put_checks(Wqe& wqe) noexcept;
  bool put_write_inline(Wqe& wqe) noexcept;
  bool put_write_piece(Wqe& wqe) noexcept;
  bool put_read(Wqe& wqe) noexcept;
  void note_piece(Wqe& wqe, uint32_t cells, const RemoteRange& range, uint64_t offset) noexcept;
  void run_queue() noexcept;
  bool room_for_piece(uint32_t n_cells) noexcept;
  void learn_executed() noexcept;
  void acknowledge() noexcept;
  void retire(uint64_t done_through) noexcept;
  void on_nak(uint64_t pos, uint16_t denial) noexcept;
  void complete(Wqe& wqe) noexcept;
  void published_request() noexcept;
  void published_response() noexcept;
  void update_pending() noexcept;
  void add_to_pending(Wqe& wqe) noexcept;
  void retire_from_pending(Wqe& wqe) noexcept;
  // Whether somebody waits for `consumed` to grow, so that every poll has to look at it. What
  // returns data is done when that is here; for what nobody waits for, the look of a due poll will
  // do, and the peer's acknowledgements do not have to fight for their cache line.
  bool awaits_ack(const Wqe& wqe) const noexcept {
    return !returns_data(wqe.kind) && (wqe.completion || port_.counter_of(wqe.kind) != nullptr);
  }
  // Nobody waits for anything that is pending: injected writes and the like.
  bool is_unhurried() const noexcept {
    return awaited_ == 0 && returning_ == 0 && queue_.empty() && state_ == QpState::ready;
  }
  bool has_more_to_do() const noexcept {
    return lane_->needs_drive || awaited_ > 0 || !queue_.empty() || offers_out_ > 0 ||
           incoming_count_ > 0 || !replies_.empty();
  }

  // commit.cpp
  bool put_commits(Wqe& wqe) noexcept;
  bool on_commit(const wire::Head& head) noexcept;

  // invalidation.cpp
  enum class After : uint8_t { none, done, refused, broken };
  void put_invalidate(Wqe& wqe) noexcept;
  bool put_invalidate_alone(Wqe& wqe) noexcept;
  bool on_invalidate(const wire::Head& head) noexcept;
  After after_invalidation(uint64_t key) noexcept;
  bool step_over_send(wire::Op op) noexcept;
  bool is_invalidation(const Wqe& wqe) const noexcept {
    return wqe.kind == WqeKind::send && (wqe.delivery & kInvalidating) != 0;
  }

  // notice.cpp
  bool tells(const Wqe& wqe) const noexcept;
  bool must_tell(const Wqe& wqe) const noexcept;
  bool put_notice(Wqe& wqe) noexcept;
  bool on_notice(const wire::Head& head) noexcept;
  bool room_for_notice() const noexcept;
  void deliver_notice(uint64_t len, uint64_t imm) noexcept;

  // atomic.cpp
  bool put_atomic(const AtomicWr& wr, Wqe& wqe) noexcept;
  bool put_atomic_inline(const AtomicWr& wr, Wqe& wqe) noexcept;
  bool put_atomic_bytes(const AtomicWr& wr, Wqe& wqe) noexcept;
  bool put_waiting_atomic(Wqe& wqe) noexcept;
  bool keep_atomic(const AtomicWr& wr, Wqe& wqe) noexcept;
  void ring_for_stalled_head(const Piece& piece) noexcept;
  bool on_atomic(const wire::Head& head) noexcept;
  bool on_atomic_bytes(const wire::Head& head) noexcept;
  struct AtomicRequest;
  bool execute_atomic(const AtomicRequest& request) noexcept;
  bool refuse_any(const AtomicRequest& request) noexcept;
  protect::AccessAsk ask_of(const AtomicRequest& request, size_t range_at) const noexcept;
  void answer_atomic_inline(const std::byte* result, uint16_t len) noexcept;
  void answer_atomic_bytes(uint64_t pos, uint32_t len) noexcept;

  // How the owner knows the key of a range.
  ShownKey shown(uint64_t key) const noexcept {
    if (port_.raw_keys == nullptr) [[likely]]
      return {key, 0, 0};
    return port_.raw_keys->shown(key);
  }
  bool names_mapped_keys(const RemoteRange* ranges, size_t count) const noexcept;

  // direct.cpp
  bool may_go_direct(const Wqe& wqe) noexcept;
  bool put_direct(Wqe& wqe) noexcept;
  bool leave_direct() noexcept;
  void foresee_direct(uint64_t key) noexcept;
  void claim_stalled_head() noexcept;
  bool claim(const Piece& piece) noexcept;
  protect::Denial would_refuse(const Wqe& wqe, const RemoteRange& range) const noexcept;
  bool asks_owner(const RemoteRange& range) const noexcept;
  protect::DirectResult copy_direct(Wqe& wqe, uint8_t range_at, const RemoteRange& range,
                                    uint64_t wqe_offset) noexcept;
  protect::AccessorSlot* slot() noexcept;
  std::string explain_region(const char* text, const Wqe& wqe) const;
  void explain(Wqe& wqe, CompletionError& e) const noexcept;

  // responder.cpp
  bool poll_lines() noexcept;
  bool poll_others() noexcept;
  bool poll_requests() noexcept;
  bool execute(const wire::Head& head, wire::Op op, uint32_t n_cells) noexcept;
  bool on_send(const wire::Head& head, wire::Op op) noexcept;
  bool on_write(const wire::Head& head) noexcept;
  bool on_write_bytes(const wire::Head& head) noexcept;
  bool on_read(const wire::Head& head) noexcept;
  bool copy_result(const protect::Grant& grant, uint16_t len) noexcept;
  bool on_check(const wire::Head& head) noexcept;
  void begin_operation() noexcept {
    op_refused_ = false;
    check_denial_ = protect::Denial::none;
  }
  bool stream_read(const wire::ReadFields& f, const protect::AccessAsk& whole) noexcept;
  ClaimVerdict may_execute() noexcept;
  bool wait_for_peer() noexcept;
  void refuse(const protect::AccessAsk& ask, protect::Denial denial, uint8_t range_at = 0) noexcept;
  void answer_nak(protect::Denial denial, uint8_t range_at = 0) noexcept;
  // A remote write or atomic of that many bytes has changed the region.
  void note_write(protect::RegionRef region, uint64_t len) noexcept {
    if (port_.watches_regions && len != 0) port_.keys.note_write(region);
  }
  // Regions that an operation on several ranges has changed so far: each is told once.
  struct Noted {
    size_t count = 0;
    std::array<protect::RegionRef, kRmaIovLimit> regions;
  };
  void note_write(protect::RegionRef region, uint64_t len, Noted& noted) noexcept {
    if (!port_.watches_regions || len == 0) return;
    for (size_t i = 0; i < noted.count; ++i) {
      if (noted.regions[i].generation == region.generation) return;
    }
    if (noted.count < noted.regions.size()) noted.regions[noted.count++] = region;
    note_write(region, len);
  }
  protect::Denial check_whole(const protect::AccessAsk& ask) noexcept;
  protect::AccessAsk ask_of(uint64_t key, uint64_t addr, uint64_t len, protect::Rights need,
                            uint64_t secret) const noexcept;
  bool poll_responses() noexcept;
  bool on_response(const wire::Head& head, wire::Op op) noexcept;
  void on_read_result(const wire::Head& head, wire::Op op) noexcept;
  void break_protocol(const char* what) noexcept;

  // rendezvous.cpp
  void on_grant(const wire::Head& head) noexcept;
  bool push_offers() noexcept;
  bool push_chunks(Wqe& wqe) noexcept;
  bool next_chunk(Wqe& wqe) noexcept;
  void on_data(const wire::Head& head) noexcept;
  void on_finished(uint64_t id) noexcept;
  void end_offer(Wqe& wqe, Errc err) noexcept;
  Wqe* offer_by_id(uint64_t id) noexcept;
  uint32_t take_offer_id(Wqe& wqe) noexcept;
  void pull_stalled() noexcept;
  bool pull_chunk(Incoming& in, uint32_t index) noexcept;
  void finish_receive(uint32_t index, Errc err) noexcept;
  bool put_response(const wire::Head& head, const wire::GrantFields* grant) noexcept;
  void reply(const wire::Head& head, const wire::GrantFields* grant = nullptr) noexcept;
  bool flush_replies() noexcept;

  Port& port_;
  const protect::DomainId domain_;  // the port's, beside the number: every access asks with both
  protect::EndpointId number_ = 0;  // 0: nobody has asked for it
  const Address remote_;
  std::unique_ptr<link::Lane> lane_;
  QpState state_ = QpState::connecting;
  Errc lost_why_ = Errc::ok;
  bool peer_pressure_ = false;  // the peer wants offers only
  bool broken_ = false;         // the peer broke the protocol
  bool busy_ = true;            // poll() has more to do than to look at the rings

  // requester
  List<Wqe> queue_;            // not all in the ring yet
  List<Wqe> pending_;          // in the ring, waiting to be executed
  size_t awaited_ = 0;         // of these, awaits_ack()
  size_t returning_ = 0;       // of these, those that return data
  uint64_t done_through_ = 0;  // request position up to which everything has been executed
  std::vector<Piece> pieces_;  // ring buffer of RMA pieces in flight, by piece_head_/tail_
  uint64_t piece_head_ = 0;
  uint64_t piece_tail_ = 0;
  uint32_t next_read_id_ = 0;

  // direct path
  bool target_away_ = false;  // it did not poll when we last waited for it
  uint64_t away_polls_ = 0;   // its poll count then
  uint64_t stall_pos_ = 0;
  uint64_t stall_since_ = 0;  // ticks; 0: not stalled
  uint64_t rung_at_ = 0;      // ticks when a stalled atomic last rang
  ClaimSide claim_side_;
  protect::AccessorSlot* slot_ = nullptr;
  protect::LookupHint direct_hint_;

  // responder
  protect::LookupHint hint_;
  protect::RegionRef whole_region_;  // of the range under way, if it takes several pieces
  bool op_refused_ = false;          // a piece of the RMA operation under way was refused
  static constexpr uintptr_t kNoPage = ~uintptr_t{0};
  uintptr_t touched_page_ = kNoPage;  // written to by an atomic in this look at the ring
  Noted noted_;                       // of the operation on several ranges under way
  protect::Denial check_denial_ = protect::Denial::none;  // of a check that was claimed
  uint64_t read_done_ = 0;                                // of the read at the head of the ring
  After invalidation_ = After::none;                      // what became of the last one
  uint64_t invalidated_key_ = 0;                          // and whose it was
  bool waits_for_peer_ = false;  // the head waits for a claim to end, or for room for its answer

  // rendezvous
  std::vector<Wqe*> offers_;  // by message id
  std::vector<uint32_t> free_offers_;
  List<Wqe> granted_;  // offers with bytes to push
  size_t offers_out_ = 0;
  uint32_t offer_generation_ = 0;
  uint32_t claims_used_ = 0;  // bit set of lane_->claims_out
  std::vector<Incoming> incoming_;
  size_t incoming_count_ = 0;
  uint64_t last_data_ = 0;      // ticks when a piece of any message last came
  std::vector<Reply> replies_;  // waiting for room, in order
};

}  // namespace aperture::qp
