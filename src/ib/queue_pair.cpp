// What every kind of queue pair does the same way: see queue_pair.hpp.
#include "ib/queue_pair.hpp"

#include "ib/window_book.hpp"
#include "wire/datagram.hpp"

namespace aperture::ib {

namespace {

constexpr bool exists(SendOp op) noexcept {
  return op <= SendOp::send_with_inv || op == SendOp::flush || op == SendOp::atomic_write;
}

constexpr bool offered(QpType type, SendOp op) noexcept {
  switch (type) {
    case QpType::rc:
    case QpType::xrc_send: return true;
    case QpType::uc: return !is_fenced(op);
    case QpType::ud: return op == SendOp::send || op == SendOp::send_with_imm;
    case QpType::xrc_recv: return false;
  }
  return false;
}

// It has no bytes of its own, a placement type and no bit that means nothing.
constexpr bool is_sound_flush(const SendWr& wr) noexcept {
  constexpr uint64_t kTypes = kFlushGlobal | kFlushPersistent;
  return wr.sge_count == 0 && wr.inline_parts == nullptr && (wr.swap & kTypes) != 0 &&
         (wr.swap & ~(kTypes | kFlushWhole)) == 0;
}

PostFault fault_of_inline(const QpSpec& spec, SendOp op, uint64_t len) noexcept {
  if (!may_be_inline(op)) return PostFault::inline_data;
  return len > spec.max_inline_bytes ? PostFault::inline_bytes : PostFault::none;
}

PostFault fault_of(const QpSpec& spec, QpState state, const SendWr& wr) noexcept {
  if (state < QpState::rts) return PostFault::state;
  if (!exists(wr.op)) return PostFault::operation;
  if (!offered(spec.type, wr.op)) return PostFault::of_type;
  uint64_t len = 0;
  bool is_inline = wr.inline_parts != nullptr;
  if (is_inline) {
    for (uint32_t i = 0; i < wr.inline_count; ++i) len += wr.inline_parts[i].len;
  } else {
    if (wr.sge_count > spec.max_send_sge) return PostFault::pieces;
    for (uint32_t i = 0; i < wr.sge_count; ++i) len += wr.sge[i].length;
    is_inline = (wr.flags & kInline) != 0;
  }
  if (is_inline) {
    const PostFault fault = fault_of_inline(spec, wr.op, len);
    if (fault != PostFault::none) return fault;
  }
  if (spec.type == QpType::ud) {
    if (wr.route == nullptr) return PostFault::route;
    if (wr.remote_qpn > wire::kMulticastQpn) return PostFault::number;
    if (len > wire::kDatagramMtu) return PostFault::datagram_bytes;
  }
  if (len > kMaxMessageBytes) return PostFault::message_bytes;
  // more room than the former value takes is none of its faults
  if (is_atomic(wr.op) && len < sizeof(uint64_t)) return PostFault::word_bytes;
  if (wr.op == SendOp::atomic_write && len != sizeof(uint64_t)) return PostFault::word_bytes;
  if (wr.op == SendOp::bind_mw && wr.bind == nullptr) return PostFault::window;
  return wr.op == SendOp::flush && !is_sound_flush(wr) ? PostFault::placement : PostFault::none;
}

}  // namespace

QueuePair::QueuePair(const QpSpec& spec)
    : spec_(spec),
      id_(protect::new_endpoint_id()),
      receiving_(*this, spec_),
      sq_(*this, spec_),
      memory_(spec.keys->access(), *spec.wording, spec.qpn, id_, spec.pd) {}

QueuePair::~QueuePair() = default;

PostFault QueuePair::fault_of(const SendWr& wr, uint32_t ahead) const noexcept {
  const PostFault fault = ib::fault_of(spec_, attr_.state, wr);
  return fault == PostFault::none && sq_.is_full(ahead) ? PostFault::full : fault;
}

Status QueuePair::post_send(const SendWr& wr) noexcept {
  if (post_fast(wr)) return {};
  if (const PostFault fault = fault_of(wr, 0); fault != PostFault::none) [[unlikely]]
    return error_of(fault);
  sq_.post(wr);
  if (attr_.state == QpState::err || attr_.state == QpState::sqe) [[unlikely]] {
    flush();
    return {};
  }
  run_send_queue();
  return {};
}

Status QueuePair::post_recv(const RecvWr& wr) noexcept {
  const bool xrc = spec_.type == QpType::xrc_send || spec_.type == QpType::xrc_recv;
  ReceiveQueue* const own = receiving_.own();
  if (own == nullptr || xrc) return Errc::invalid;
  if (attr_.state == QpState::reset) return Errc::bad_state;
  if (Status s = own->post(wr); !s) [[unlikely]]
    return s;
  if (attr_.state == QpState::err) [[unlikely]] {
    flush();
    return {};
  }
  on_receive_posted();
  return {};
}

void QueuePair::modify(const QpAttributes& attr, uint32_t mask) noexcept {
  const QpState before = attr_.state;
  if ((mask & kAttrAccessFlags) != 0) attr_.access = attr.access;
  if ((mask & kAttrQkey) != 0) attr_.qkey = attr.qkey;
  if ((mask & kAttrAv) != 0) attr_.route = attr.route;
  if ((mask & kAttrDestQpn) != 0) attr_.dest_qpn = attr.dest_qpn;
  if ((mask & kAttrTimeout) != 0) attr_.timeout = attr.timeout;
  if ((mask & kAttrRetryCnt) != 0) attr_.retry_cnt = attr.retry_cnt;
  if ((mask & kAttrRnrRetry) != 0) attr_.rnr_retry = attr.rnr_retry;
  if ((mask & kAttrMinRnrTimer) != 0) attr_.min_rnr_timer = attr.min_rnr_timer;
  if ((mask & kAttrMaxRdAtomic) != 0) attr_.max_rd_atomic = attr.max_rd_atomic;
  if ((mask & kAttrMaxDestRdAtomic) != 0) attr_.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  if ((mask & kAttrRqPsn) != 0) attr_.rq_psn = attr.rq_psn;
  if ((mask & kAttrSqPsn) != 0) attr_.sq_psn = attr.sq_psn;
  if ((mask & (kAttrAccessFlags | kAttrMaxDestRdAtomic)) != 0) on_access_changed();
  if ((mask & kAttrState) == 0) return;
  if (attr.state == QpState::err || attr.state == QpState::reset) take_what_arrived();
  if (attr.state == QpState::err) {
    take_answers();
    return fail();
  }
  attr_.state = attr.state;
  if (attr.state == QpState::reset) {
    stop();
    sq_.clear();
    if (ReceiveQueue* const own = receiving_.own()) own->clear();
    if (spec_.send_cq != nullptr) spec_.send_cq->forget(*this);
    if (spec_.recv_cq != nullptr) spec_.recv_cq->forget(*this);
    attr_ = {};
    fatal_ = false;
  } else if (attr.state == QpState::sqd) {
    if (before != QpState::sqd) {
      drain_told_ = false;
      attr_.en_sqd_async = (mask & kAttrEnSqdAsync) != 0 && attr.en_sqd_async;
    }
    check_drained();
  } else if (attr.state == QpState::rts) {
    run_send_queue();
  }
}

void QueuePair::leave() noexcept {
  take_what_arrived();
  stop();
  if (spec_.srq != nullptr) spec_.srq->forget(*this);
  if (spec_.type == QpType::xrc_recv) spec_.windows->forget_waiter(*this);
  if (spec_.send_cq != nullptr) spec_.send_cq->forget(*this);
  if (spec_.recv_cq != nullptr) spec_.recv_cq->forget(*this);
}

bool QueuePair::has_untaken_successes() noexcept {
  take_what_arrived();
  take_answers();
  return (spec_.send_cq != nullptr && spec_.send_cq->has_success_of(*this)) ||
         (spec_.recv_cq != nullptr && spec_.recv_cq->has_success_of(*this));
}

void QueuePair::check_drained() noexcept {
  if (attr_.state != QpState::sqd || drain_told_ || is_draining()) return;
  drain_told_ = true;
  if (attr_.en_sqd_async) raise(AsyncEvent::sq_drained);
}

void QueuePair::complete_head() noexcept {
  const bool failed = sq_.wqe(sq_.head).status != WcStatus::success;
  if (!sq_.complete_oldest() && attr_.state != QpState::err) [[unlikely]]
    return fail_fatally();
  if (failed) [[unlikely]]
    fail_send_queue();
}

// IBTA 10.3.1.6: only what is reliable cannot go on receiving when a send has failed.
void QueuePair::fail_send_queue() noexcept {
  if (spec_.type != QpType::uc && spec_.type != QpType::ud) return fail();
  if (attr_.state == QpState::sqe || attr_.state == QpState::err) return;
  APERTURE_DEBUG_ASSERT(attr_.state == QpState::rts || attr_.state == QpState::sqd);
  attr_.state = QpState::sqe;
  flush();
}

void QueuePair::fail_fatally() noexcept {
  if (attr_.state == QpState::err) return;  // which fail() may be about to tell
  fatal_ = attr_.state != QpState::reset;
  fail();
}

void QueuePair::fail() noexcept {
  if (attr_.state == QpState::err || attr_.state == QpState::reset) {
    if (attr_.state == QpState::reset) attr_.state = QpState::err;
    return;
  }
  if (!may_fail_now()) return;
  attr_.state = QpState::err;
  stop();
  flush();
  APERTURE_DEBUG_ASSERT(!has_pending() &&
                        (receiving_.own() == nullptr || receiving_.own()->empty()));
  if (spec_.srq != nullptr) raise(AsyncEvent::qp_last_wqe_reached);
  if (std::exchange(fatal_, false)) raise(AsyncEvent::qp_fatal);
}

void QueuePair::flush() noexcept {
  assert(attr_.state == QpState::err || attr_.state == QpState::sqe);
  sq_.next = sq_.tail;
  while (!sq_.is_empty()) {
    Wqe& w = sq_.wqe(sq_.head);
    w.status = WcStatus::wr_flush_err;
    w.denial = 0;
    complete_head();
  }
  ReceiveQueue* const own = receiving_.own();
  if (own == nullptr || attr_.state != QpState::err) return;
  TakenRecv taken;
  while (!own->empty()) {
    own->take(taken);
    receiving_.fail(taken, WcStatus::wr_flush_err);
  }
}

}  // namespace aperture::ib
