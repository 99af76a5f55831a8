// Queue pairs over a lane: reliable and unreliable connections, and XRC. IBTA vol. 1, 9.7 (reliable
// service), 9.8 (unreliable), 9.9 (errors), 10.2.
//
// Guarded by its context's engine lock. Requests execute in order at the responder, and `consumed`
// acknowledges them; a nak that was stored before it names what was refused. Then the requester
// fails that WQE and flushes the rest, and the responder takes nothing more. An unreliable
// connection goes the same way, only that nobody waits for the responder and nothing is refused
// aloud: what cannot be executed is dropped.
//
//   rc_qp.cpp        the life of the lane, polling, what time brings
//   rc_requester.cpp WQEs into the ring, acknowledgements
//   rc_at_once.cpp   the short way of short inline requests, at both ends
//   rc_direct.cpp    RDMA by our own hand (CMA) where the target does not poll; claims
//   rc_local.cpp     windows: bind and local invalidate, the short way and the long one
//   rc_responder.cpp executing the peer's requests
//   rc_results.cpp   results, refusals, receiver-not-ready
//   rc_explain.cpp   the sentence for a refusal
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ib/queue_pair.hpp"
#include "link/lane.hpp"
#include "protect/peer_key_view.hpp"
#include "qp/claim.hpp"
#include "wire/rc.hpp"

namespace aperture::ib {

// What a connected queue pair asks of who gives it lanes. Engine lock held.
class LaneHost {
 public:
  virtual ~LaneHost() = default;
  // Something is to be sent and there is no lane: attach() or lane_failed() follows. Asked again
  // while under way it changes nothing.
  virtual void want_lane() noexcept = 0;
  virtual void give_back(std::unique_ptr<link::Lane> lane) noexcept = 0;
};

class RcQp final : public Qp {
 public:
  RcQp(const QpSpec& spec, LaneHost& host);
  ~RcQp() override;

  // The lane to the queue pair that is the other end.
  void attach(std::unique_ptr<link::Lane> lane) noexcept;
  // None can be had; or the lane that there was is down, and what the peer had published is read.
  void lane_failed(Errc why) noexcept;
  void lose() noexcept;
  link::Lane* lane() const noexcept { return lane_.get(); }
  const Address& remote() const noexcept { return remote_; }

  // link::Driven
  bool poll(uint64_t polls) noexcept override;
  Look look() noexcept override {
    if (lane_ == nullptr) [[unlikely]]
      return local_waits_ ? Look::poll : Look::nothing;
    if (busy_ || lane_->response_rx.cells.ready()) return Look::poll;
    if (!lane_->request_rx.cells.ready() || waiting_) return Look::nothing;
    return take_at_once() ? Look::taken : Look::poll;
  }
  void set_consumer_state(ring::ConsumerState state) noexcept override;
  bool anything_arrived() const noexcept override;
  bool needs_polling() const noexcept override;
  bool needs_wind_up() const noexcept override { return false; }

  void on_receive_posted() noexcept override;

 protected:
  bool post_at_once(const SendWr& wr) noexcept override;
  void run_send_queue() noexcept override;
  void stop() noexcept override;
  void take_what_arrived() noexcept override;
  void take_answers() noexcept override;
  void on_access_changed() noexcept override;

 private:
  struct Piece {  // an RDMA piece in the request ring that we could claim
    uint64_t pos;
    uint32_t cells;
    uint32_t at;      // of its WQE
    uint64_t offset;  // in its operation
    uint64_t len;
  };

  // While one is alive the lane stays, whatever happens to the state: loops over its rings end by
  // themselves, and the lane is given back when the outermost is gone.
  class Driving {
   public:
    explicit Driving(RcQp& qp) noexcept : qp_(qp) { ++qp_.driving_; }
    ~Driving() {
      if (--qp_.driving_ == 0 && qp_.lane_over_) [[unlikely]]
        qp_.release_lane();
    }
    Driving(const Driving&) = delete;
    Driving& operator=(const Driving&) = delete;

   private:
    RcQp& qp_;
  };

  bool is_reliable() const noexcept { return spec_.type != QpType::uc; }
  // Somebody waits for what is under way, or something is left to be done for it. Otherwise nothing
  // is out but sends that nobody asks about: their acknowledgements lie in a cache line that the
  // peer is writing, and are looked at now and then (kLookEvery), or when the ring is full.
  bool awaits_answers() const noexcept {
    return signaled_out_ != 0 || results_out_ != 0 || sq_next_ != sq_tail_ ||
           piece_head_ != piece_tail_ || rnr_deadline_ns_ != 0 || stopped_;
  }
  bool is_up() const noexcept { return lane_ != nullptr && !lane_over_ && !broken_; }
  void release_lane() noexcept;
  void leave_lost_peer() noexcept;
  template <typename So>
  void execute_arrived(So&& so) noexcept;
  void begin_anew() noexcept;
  void forget_waiting() noexcept;
  bool has_receive_queue() const noexcept;
  void wind_down(WcStatus status) noexcept;

  // rc_requester.cpp
  bool start(uint32_t at) noexcept;
  bool holds(const Wqe& w, uint64_t pos) const noexcept;
  bool begin(uint32_t at) noexcept;
  void fail_wqe(Wqe& w, WcStatus status) noexcept;
  uint8_t wire_flags(const Wqe& w) const noexcept;
  bool put_inline(uint32_t at, wire::RcOp op) noexcept;
  bool put_pieces(uint32_t at, wire::RcOp op) noexcept;
  bool put_read(uint32_t at) noexcept;
  bool put_atomic(uint32_t at) noexcept;
  bool put_notice(uint32_t at) noexcept;
  std::byte* reserve_piece(uint64_t left, uint32_t& n, uint64_t& pos) noexcept;
  void posted(Wqe& w) noexcept;
  void take_the_ring(Wqe& w) noexcept;
  void note_piece(uint32_t at, uint32_t cells, uint64_t offset, uint64_t len) noexcept;
  bool has_piece_slot() const noexcept { return piece_tail_ - piece_head_ < pieces_.size(); }
  bool room_for_piece(uint32_t n_cells) noexcept;
  void published_request() noexcept;
  void published_response() noexcept;
  void learn_executed() noexcept;
  void retire() noexcept;
  void update_pending() noexcept;

  // rc_at_once.cpp
  bool is_clear() const noexcept;
  bool target_polls() const noexcept;
  void complete_now(const SendWr& wr, WcOpcode opcode, uint64_t len) noexcept;
  void note(Wqe& w, const SendWr& wr) noexcept;
  void note_posted(const SendWr& wr, uint64_t len, uint64_t pos) noexcept;
  bool take_at_once() noexcept;
  bool execute_at_once(const wire::RcHead& head, const std::byte* body) noexcept;
  bool receive_at_once(const wire::RcHead& head, const std::byte* payload) noexcept;
  bool write_at_once(const wire::RcHead& head, const std::byte* body) noexcept;
  bool may_complete() const noexcept;
  void complete_at_once(const wire::RcHead& head, WcOpcode opcode) noexcept;

  // rc_direct.cpp
  bool put_direct_at_once(const SendWr& wr) noexcept;
  bool peer_lets(SendOp op) noexcept;
  bool is_target_away() noexcept;
  bool may_go_direct(const Wqe& w) noexcept;
  bool put_direct(uint32_t at) noexcept;
  bool take_outcome(Wqe& w, const protect::DirectResult& r) noexcept;
  protect::DirectResult copy_direct(uint32_t at, uint64_t offset, uint64_t n) noexcept;
  void claim_stalled_head() noexcept;
  bool claim(const Piece& piece) noexcept;
  bool has_stalled(uint64_t pos, uint64_t len) noexcept;
  protect::AccessorSlot* slot() noexcept;
  bool leave_direct() noexcept;

  // rc_local.cpp
  bool post_local_at_once(const SendWr& wr) noexcept;
  bool put_bind(uint32_t at) noexcept;
  bool put_local_inv(uint32_t at) noexcept;
  bool end_local(Wqe& w, protect::WindowAnswer answer) noexcept;
  protect::WindowBind in_windows_words(const BindWr& wr) noexcept;
  protect::WindowAnswer bind_window(const BindWr& wr) noexcept;
  protect::WindowAnswer poll_window(uint32_t key) const noexcept;

  // rc_responder.cpp
  bool poll_requests() noexcept;
  bool execute(const wire::RcHead& head, wire::RcOp op) noexcept;
  WcStatus place_inline(const wire::RcHead& head) noexcept;
  bool on_send(const wire::RcHead& head) noexcept;
  bool on_send_bytes(const wire::RcHead& head) noexcept;
  bool on_write(const wire::RcHead& head) noexcept;
  bool on_write_bytes(const wire::RcHead& head) noexcept;
  bool on_notice(const wire::RcHead& head) noexcept;
  bool on_read(const wire::RcHead& head) noexcept;
  bool on_atomic(const wire::RcHead& head) noexcept;
  bool stream_read(const wire::RcRead& f, const protect::AccessAsk& whole) noexcept;
  bool serve_xrc(const wire::RcHead& head, wire::RcOp op) noexcept;
  ReceiveQueue* queue_for(const wire::RcHead& head, wire::RcOp op) noexcept;
  bool take_receive(ReceiveQueue* queue) noexcept;
  // A message of an unreliable connection for which nobody has posted a receive.
  bool is_lost(const ReceiveQueue& queue) const noexcept {
    return !is_reliable() && !taken_ && queue.empty();
  }
  bool deliver(const wire::RcHead& head, uint64_t len, WcOpcode opcode) noexcept;
  protect::WindowAnswer invalidate_for_peer(uint32_t rkey) noexcept;
  bool refuse(WcStatus status, const protect::AccessAsk* ask, protect::Denial denial) noexcept;
  void fail_receive(WcStatus mine, WcStatus theirs) noexcept;
  bool allows(uint32_t access) noexcept;
  protect::AccessAsk ask_of(uint32_t rkey, uint64_t addr, uint64_t len,
                            protect::Rights need) const noexcept {
    return {pd_now_, 0, Wild<uint64_t>(rkey), Wild<uint64_t>(addr), Wild<uint64_t>(len), need, id_};
  }
  qp::ClaimVerdict may_execute() noexcept;

  // rc_results.cpp
  bool poll_responses() noexcept;
  void on_nak(const wire::RcHead& head) noexcept;
  void on_rnr(const wire::RcHead& head) noexcept;
  void on_result(const wire::RcHead& head, wire::RcOp op) noexcept;
  void break_protocol(const char* what) noexcept;
  void end_if_broken() noexcept;
  void look_at_rnr_timer() noexcept;

  // rc_explain.cpp
  void explain_refused(const Wqe& w) const noexcept;
  void explain_refused_invalidation(uint32_t rkey, protect::WindowAnswer answer) const noexcept;
  void explain_refusing(const protect::AccessAsk& ask, protect::Denial denial) const noexcept;

  LaneHost& host_;
  std::unique_ptr<link::Lane> lane_;
  Address remote_;
  uint32_t driving_ = 0;    // depth of Driving
  bool lane_over_ = false;  // to be given back
  bool had_lane_ = false;   // and lost it: the other end is gone for this connection
  bool busy_ = false;       // poll() has more to do than to look at the rings
  bool broken_ = false;     // the peer broke the protocol

  // requester
  bool local_waits_ = false;   // the WQE at sq_next_ waits for its window
  bool stopped_ = false;       // a WQE has failed: none after it is begun
  uint32_t results_out_ = 0;   // reads and atomics under way
  uint64_t done_through_ = 0;  // request position up to which everything has been executed
  std::vector<Piece> pieces_;  // ring buffer, by piece_head_/tail_
  uint64_t piece_head_ = 0;
  uint64_t piece_tail_ = 0;
  uint64_t rnr_pos_ = 0;
  uint64_t rnr_deadline_ns_ = 0;  // 0: no count is running
  uint64_t lost_until_ns_ = 0;    // the peer is gone, and retried until then; 0: it is not

  // direct path
  bool target_away_ = false;  // it did not execute when we last waited for it
  uint32_t away_times_ = 0;   // so often in a row that waiting for it is given up at once
  uint64_t away_polls_ = 0;   // its poll count then
  uint64_t stall_pos_ = 0;
  uint64_t stall_since_ = 0;  // ticks; 0: not stalled
  uint64_t rung_at_ = 0;      // ticks when a stalled head last rang
  qp::ClaimSide claim_side_;
  protect::AccessorSlot* slot_ = nullptr;
  protect::LookupHint direct_hint_;

  // responder
  bool waiting_ = false;      // the head waits for a receive: nothing to do until one is posted
  bool rnr_told_ = false;     // of the head
  bool established_ = false;  // comm_est was raised
  bool taken_ = false;        // recv_ is the receive of the message under way
  bool dropping_ = false;     // UC: the rest of this message is not taken
  bool placed_ = false;       // its bytes are in place: its invalidation is under way
  bool ending_ = false;       // and has begun
  uint64_t got_ = 0;          // bytes of the message under way
  TakenRecv recv_;
  uint32_t recv_srq_ = 0;            // XRC: number of the queue that recv_ is of, or is waited for
  uint64_t read_done_ = 0;           // of the read at the head of the ring
  protect::RegionRef whole_region_;  // of the write or read under way
  bool write_refused_ = false;       // UC: of the write under way
  protect::LookupHint remote_hint_;
};

}  // namespace aperture::ib
