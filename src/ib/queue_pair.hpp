// What every kind of queue pair has: a send queue, a receive queue, completion queues, attributes
// and a state. IBTA vol. 1, 10.2.4 and 10.3; ibv_modify_qp(3), ibv_post_send(3).
//
// Guarded by its context's engine lock: every call is made with it held. Derived classes carry the
// WQEs out: rc_qp.hpp over a lane (RC, UC, XRC), ud_qp.hpp as datagrams. WQEs of the send queue
// complete in order, each at most once; after an error the queue pair is in the error state (UD:
// its send queue is, SQE) and every WQE that is left, and every one that is posted from then on,
// completes as flushed.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "ib/attributes.hpp"
#include "ib/cq.hpp"
#include "ib/queue_memory.hpp"
#include "ib/receive_queue.hpp"
#include "ib/work.hpp"
#include "link/driven.hpp"
#include "protect/key_table.hpp"
#include "protect/wording.hpp"

namespace aperture::ib {

class WindowBook;

class QpEvents {
 public:
  virtual ~QpEvents() = default;
  virtual void on_async_event(AsyncEvent event) noexcept = 0;  // engine lock held
};

struct QpSpec {
  QpType type = QpType::rc;
  uint32_t qpn = 0;  // port << 8 | index
  protect::KeyTable* keys = nullptr;
  protect::DomainId pd = 0;
  WindowBook* windows = nullptr;  // of the context
  Cq* send_cq = nullptr;          // null: XRC receive
  Cq* recv_cq = nullptr;          // null: XRC
  ReceiveQueue* srq = nullptr;    // null: receives of its own
  uint32_t xrc_domain = 0;        // XRC receive: whose receive queues its messages may name
  uint32_t max_send_wr = 0;
  uint32_t max_recv_wr = 0;
  uint32_t max_send_sge = 0;
  uint32_t max_recv_sge = 0;
  uint32_t max_inline_bytes = 0;
  bool sq_sig_all = false;
  bool block_self_multicast = false;  // UD: what it sends to a group does not come back to it
  QpEvents* events = nullptr;
  const protect::Wording* wording = &protect::kNeutralWording;  // of the door that asks
  QueueMemory* memory = nullptr;  // of its queues; outlives it; null: the process's own
};

// One slot of the send queue.
struct Wqe {
  // what was asked
  uint64_t id;
  SendOp op;
  bool signaled;
  bool fence;
  bool solicited;
  bool is_inline;
  uint8_t sge_count;
  uint32_t imm;
  uint32_t rkey;
  uint64_t len;  // bytes of the local buffer
  uint64_t remote_addr;
  uint64_t compare_add;
  uint64_t swap;
  uint32_t srq_number;
  BindWr bind;
  Route route;  // UD
  uint32_t remote_qpn;
  uint32_t remote_qkey;
  // how far it has got
  enum class Stage : uint8_t { queued, begun, posted, finished };
  Stage stage;         // posted: all of it is in the ring; finished: nothing is to come any more
  WcStatus status;     // other than success: it failed
  bool in_ring;        // it has cells in the ring, and goes no other way any more
  bool owner_only;     // and is not to be claimed there
  bool copied;         // by our own hand; its notice is to follow
  uint32_t denial;     // protect::Denial, or what Wc::vendor_err shall be
  uint64_t done;       // bytes put into the ring, copied, or received
  uint64_t begin_pos;  // request position of its first cell
  uint64_t end_pos;    // after its last cell
  uint64_t region;     // generation that the direct path has met; 0: none yet
};

class Qp : public link::Driven {
 public:
  // By exception std::bad_alloc.
  explicit Qp(const QpSpec& spec);
  ~Qp() override;
  Qp(const Qp&) = delete;
  Qp& operator=(const Qp&) = delete;

  QpType type() const noexcept { return spec_.type; }
  uint32_t qpn() const noexcept { return spec_.qpn; }
  protect::DomainId pd() const noexcept { return spec_.pd; }
  // What type 2 windows are bound to: unique in this process, never used again.
  protect::EndpointId id() const noexcept { return id_; }
  QpState state() const noexcept { return attr_.state; }
  const QpAttributes& attributes() const noexcept { return attr_; }
  const QpSpec& spec() const noexcept { return spec_; }

  // Errors: invalid (an operation that this type has not, too many pieces, too long, inline where
  // there is none), bad_state (before RTS), no_space (the queue is full).
  Status post_send(const SendWr& wr) noexcept;
  // Whether it would take it behind `ahead` others that are still to be posted.
  Status may_post(const SendWr& wr, uint32_t ahead) const noexcept;
  // Errors: bad_state (reset), invalid, no_space. Not with an SRQ: invalid.
  Status post_recv(const RecvWr& wr) noexcept;

  // Takes the attributes that the mask names; judge_modify() has found nothing wrong with it.
  void modify(const QpAttributes& attr, uint32_t mask) noexcept;
  // -> err: everything that is posted completes as flushed.
  void fail() noexcept { enter_error(); }
  // Its completions are gone from its CQs, and its lane is given back; before it is destroyed.
  void leave() noexcept;

  // Windows of type 2A that are bound to it: it cannot be destroyed while there are any.
  protect::WindowCount& windows_bound() noexcept { return windows_bound_; }
  bool has_pending() const noexcept override { return sq_head_ != sq_tail_; }
  // Receives were posted: a message may wait for one.
  virtual void on_receive_posted() noexcept {}

 protected:
  // --- for derived classes ---
  // Does all of it, if it is one of the most usual kind and nothing is in its way; what it declines
  // is judged, queued and begun.
  virtual bool post_at_once(const SendWr&) noexcept { return false; }
  // A WQE is there that may be begun; called after each post, and when the state allows it again.
  virtual void run_send_queue() noexcept = 0;
  // Reset, error or end: nothing comes in or goes out any more.
  virtual void stop() noexcept = 0;
  // What has reached this end is executed before it goes, or is stopped by its program: a NIC would
  // have done so long ago.
  virtual void take_what_arrived() noexcept {}
  // And what the peer has executed is a success.
  virtual void take_answers() noexcept {}
  // What peers may do has been set.
  virtual void on_access_changed() noexcept {}

  bool may_send() const noexcept { return attr_.state == QpState::rts; }
  // The WQE at sq_next_ may be begun; or it was before the queue was to drain, and ends.
  bool may_go_on() const noexcept {
    return may_send() || (attr_.state == QpState::sqd && is_begun(sq_next_));
  }
  bool is_begun(uint32_t at) const noexcept {
    return at != sq_tail_ && wqes_[at & sq_mask_].stage == Wqe::Stage::begun;
  }
  Wqe& wqe(uint32_t at) noexcept { return wqes_[at & sq_mask_]; }
  Sge* sges_of(uint32_t at) noexcept { return &sges_[size_t{at & sq_mask_} * max_sge_]; }
  std::byte* inline_of(uint32_t at) noexcept {
    return &inline_[size_t{at & sq_mask_} * spec_.max_inline_bytes];
  }

  // The oldest WQE is over, well or badly; badly: all behind it are flushed, and the error state
  // follows, or that of the send queue alone where nobody waits for answers (UC, UD).
  void complete_head() noexcept;
  void enter_error() noexcept;
  void fail_send_queue() noexcept;
  void check_drained() noexcept;
  void raise(AsyncEvent event) noexcept { spec_.events->on_async_event(event); }
  // The receive queue has an entry taken, whose message is here (or has failed).
  void complete_recv(const TakenRecv& taken, const Wc& wc) noexcept;
  ReceiveQueue& receives() noexcept { return spec_.srq != nullptr ? *spec_.srq : *rq_; }

  // Copies [offset, offset + n) of the WQE's local buffer to flat memory, and back. loc_prot_err if
  // an lkey does not cover its piece.
  WcStatus gather(uint32_t at, uint64_t offset, std::byte* to, uint64_t n) noexcept;
  WcStatus scatter(const Sge* sge, uint32_t count, uint64_t offset, const std::byte* from,
                   uint64_t n) noexcept;
  protect::AccessAsk local_ask(uint32_t lkey, uint64_t addr, uint64_t len,
                               protect::Rights need) const noexcept {
    return {pd_now_, 0, Wild<uint64_t>(lkey), Wild<uint64_t>(addr), Wild<uint64_t>(len), need, id_};
  }
  // Says what is wrong with that piece. loc_prot_err.
  WcStatus refuse_local(uint32_t lkey, uint64_t addr, uint64_t len, protect::Rights need) noexcept;
  // The first n bytes at once: whether the lkeys cover them.
  WcStatus check_local(const Sge* sge, uint32_t count, uint64_t n, protect::Rights need) noexcept;

  const QpSpec spec_;
  const protect::EndpointId id_;
  QpAttributes attr_;
  std::unique_ptr<ReceiveQueue> rq_;  // null with an SRQ
  // Whose regions are met, and where receives complete. Of an XRC receive queue pair, those of the
  // receive queue that the request at hand names.
  protect::DomainId pd_now_;
  Cq* recv_cq_now_;

  uint32_t sq_head_ = 0;       // oldest that is not completed
  uint32_t sq_next_ = 0;       // first that is not posted whole
  uint32_t sq_tail_ = 0;       // where the next goes
  uint32_t signaled_out_ = 0;  // not completed yet, of those that ask for a completion
  uint32_t sq_released_ = 0;   // slots before it may be used again: their completions were polled
  bool drain_told_ = false;    // SQD: sq_drained was raised
  protect::LookupHint hint_;   // of the local buffers

 private:
  Status judge(const SendWr& wr) const noexcept;
  void fill(uint32_t at, const SendWr& wr) noexcept;
  bool on_overrun() noexcept;
  void flush() noexcept;

  const uint32_t max_sge_;
  const uint32_t sq_mask_;
  QueueArray<Wqe> wqes_;
  QueueArray<Sge> sges_;
  QueueArray<std::byte> inline_;
  protect::WindowCount windows_bound_;
};

}  // namespace aperture::ib
