// What every kind of queue pair does the same way: see queue_pair.hpp.
#include "ib/queue_pair.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/guarded_copy.hpp"
#include "base/log.hpp"
#include "ib/window_book.hpp"
#include "wire/datagram.hpp"

namespace aperture::ib {

using protect::Rights;

namespace {

constexpr bool reads_local(SendOp op) noexcept {
  return op == SendOp::write || op == SendOp::write_with_imm || op == SendOp::send ||
         op == SendOp::send_with_imm || op == SendOp::send_with_inv;
}

constexpr bool is_atomic(SendOp op) noexcept {
  return op == SendOp::cmp_swap || op == SendOp::fetch_add;
}

constexpr bool offered(QpType type, SendOp op) noexcept {
  switch (type) {
    case QpType::rc:
    case QpType::xrc_send: return true;
    case QpType::uc: return op != SendOp::read && !is_atomic(op);
    case QpType::ud: return op == SendOp::send || op == SendOp::send_with_imm;
    case QpType::xrc_recv: return false;
  }
  return false;
}

constexpr WcOpcode opcode_of(SendOp op) noexcept {
  switch (op) {
    case SendOp::write:
    case SendOp::write_with_imm: return WcOpcode::write;
    case SendOp::read: return WcOpcode::read;
    case SendOp::cmp_swap: return WcOpcode::cmp_swap;
    case SendOp::fetch_add: return WcOpcode::fetch_add;
    case SendOp::local_inv: return WcOpcode::local_inv;
    case SendOp::bind_mw: return WcOpcode::bind_mw;
    default: return WcOpcode::send;
  }
}

}  // namespace

Qp::Qp(const QpSpec& spec)
    : spec_(spec),
      id_(protect::new_endpoint_id()),
      pd_now_(spec.pd),
      recv_cq_now_(spec.recv_cq),
      max_sge_(std::max(spec.max_send_sge, 1u)),
      sq_mask_(std::bit_ceil(std::max(spec.max_send_wr, 1u)) - 1),
      wqes_(size_t{sq_mask_} + 1, spec.memory),
      sges_((size_t{sq_mask_} + 1) * max_sge_, spec.memory),
      inline_((size_t{sq_mask_} + 1) * spec.max_inline_bytes, spec.memory) {
  if (spec.srq == nullptr) {
    rq_ = std::make_unique<ReceiveQueue>(spec.max_recv_wr, spec.max_recv_sge, nullptr, spec.memory);
  }
}

Qp::~Qp() = default;

Status Qp::judge(const SendWr& wr) const noexcept {
  if (attr_.state < QpState::rts) return Errc::bad_state;
  if (static_cast<unsigned>(wr.op) >= kSendOps || !offered(spec_.type, wr.op)) {
    return Errc::invalid;
  }
  uint64_t len = 0;
  if (wr.inline_parts != nullptr) {
    if (!reads_local(wr.op)) return Errc::invalid;
    for (uint32_t i = 0; i < wr.inline_count; ++i) len += wr.inline_parts[i].len;
    if (len > spec_.max_inline_bytes) return Errc::invalid;
  } else {
    if (wr.sge_count > spec_.max_send_sge) return Errc::invalid;
    for (uint32_t i = 0; i < wr.sge_count; ++i) len += wr.sge[i].length;
    if ((wr.flags & kInline) != 0 && (!reads_local(wr.op) || len > spec_.max_inline_bytes)) {
      return Errc::invalid;
    }
  }
  if (spec_.type == QpType::ud) {
    if (wr.route == nullptr || wr.remote_qpn > wire::kMulticastQpn) return Errc::invalid;
    if (len > wire::kDatagramMtu) return Errc::invalid;
  }
  if (len > kMaxMessageBytes) return Errc::invalid;
  if (is_atomic(wr.op) && len != sizeof(uint64_t)) return Errc::invalid;
  if (wr.op == SendOp::bind_mw && wr.bind == nullptr) return Errc::invalid;
  return {};
}

Status Qp::may_post(const SendWr& wr, uint32_t ahead) const noexcept {
  if (Status s = judge(wr); !s) [[unlikely]]
    return s;
  return sq_tail_ - sq_released_ + ahead >= spec_.max_send_wr ? Errc::no_space : Errc::ok;
}

Status Qp::post_send(const SendWr& wr) noexcept {
  if (post_at_once(wr)) return {};
  if (Status s = may_post(wr, 0); !s) [[unlikely]]
    return s;
  fill(sq_tail_, wr);
  ++sq_tail_;
  if (attr_.state == QpState::err || attr_.state == QpState::sqe) [[unlikely]] {
    flush();
    return {};
  }
  run_send_queue();
  return {};
}

void Qp::fill(uint32_t at, const SendWr& wr) noexcept {
  Wqe& w = wqe(at);
  w.id = wr.id;
  w.op = wr.op;
  w.signaled = spec_.sq_sig_all || (wr.flags & kSignaled) != 0;
  if (w.signaled) ++signaled_out_;
  w.fence = (wr.flags & kFence) != 0;
  w.solicited = (wr.flags & kSolicited) != 0;
  w.is_inline = false;
  w.sge_count = 0;
  w.imm = wr.imm;
  w.rkey = wr.rkey;
  w.len = 0;
  w.remote_addr = wr.remote_addr;
  w.compare_add = wr.compare_add;
  w.swap = wr.swap;
  w.srq_number = wr.srq_number;
  w.stage = Wqe::Stage::queued;
  w.status = WcStatus::success;
  w.in_ring = w.owner_only = w.copied = false;
  w.denial = 0;
  w.done = w.begin_pos = w.end_pos = w.region = 0;
  if (wr.bind != nullptr) w.bind = *wr.bind;
  if (wr.route != nullptr) {
    w.route = *wr.route;
    w.remote_qpn = wr.remote_qpn;
    w.remote_qkey = wr.remote_qkey;
  }
  if (wr.inline_parts != nullptr || (wr.flags & kInline) != 0) {
    w.is_inline = true;
    std::byte* to = inline_of(at);
    const auto take = [&](const void* from, uint64_t n) {
      if (n != 0) std::memcpy(to + w.len, from, n);
      w.len += n;
    };
    for (uint32_t i = 0; i < wr.inline_count; ++i) {
      take(wr.inline_parts[i].bytes, wr.inline_parts[i].len);
    }
    for (uint32_t i = 0; wr.inline_parts == nullptr && i < wr.sge_count; ++i) {
      take(reinterpret_cast<const void*>(wr.sge[i].addr), wr.sge[i].length);
    }
    return;
  }
  Sge* to = sges_of(at);
  w.sge_count = static_cast<uint8_t>(wr.sge_count);
  for (uint32_t i = 0; i < wr.sge_count; ++i) {
    to[i] = wr.sge[i];
    // there is no memory to be copied from or to by our own hand
    if (to[i].lkey == kNullLkey) [[unlikely]]
      w.owner_only = true;
    w.len += wr.sge[i].length;
  }
}

Status Qp::post_recv(const RecvWr& wr) noexcept {
  const bool xrc = spec_.type == QpType::xrc_send || spec_.type == QpType::xrc_recv;
  if (rq_ == nullptr || xrc) return Errc::invalid;
  if (attr_.state == QpState::reset) return Errc::bad_state;
  if (Status s = rq_->post(wr); !s) [[unlikely]]
    return s;
  if (attr_.state == QpState::err) [[unlikely]] {
    flush();
    return {};
  }
  on_receive_posted();
  return {};
}

void Qp::modify(const QpAttributes& attr, uint32_t mask) noexcept {
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
    return enter_error();
  }
  attr_.state = attr.state;
  if (attr.state == QpState::reset) {
    stop();
    sq_head_ = sq_next_ = sq_tail_ = sq_released_ = signaled_out_ = 0;
    if (rq_ != nullptr) rq_->clear();
    if (spec_.send_cq != nullptr) spec_.send_cq->forget(*this);
    if (spec_.recv_cq != nullptr) spec_.recv_cq->forget(*this);
    attr_ = {};
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

void Qp::leave() noexcept {
  take_what_arrived();
  stop();
  if (spec_.srq != nullptr) spec_.srq->forget(*this);
  if (spec_.type == QpType::xrc_recv) spec_.windows->forget_waiter(*this);
  if (spec_.send_cq != nullptr) spec_.send_cq->forget(*this);
  if (spec_.recv_cq != nullptr) spec_.recv_cq->forget(*this);
}

void Qp::check_drained() noexcept {
  if (attr_.state != QpState::sqd || drain_told_) return;
  if (sq_head_ != sq_next_ || is_begun(sq_next_)) return;
  drain_told_ = true;
  if (attr_.en_sqd_async) raise(AsyncEvent::sq_drained);
}

void Qp::complete_head() noexcept {
  const Wqe& w = wqe(sq_head_);
  const bool failed = w.status != WcStatus::success;
  ++sq_head_;
  if (w.signaled) --signaled_out_;
  if (w.signaled || failed) {
    Cqe* cqe = spec_.send_cq->next();
    if (cqe == nullptr) [[unlikely]] {
      if (on_overrun()) return;
    } else {
      cqe->wc = {};
      cqe->wc.id = w.id;
      cqe->wc.status = w.status;
      cqe->wc.opcode = opcode_of(w.op);
      cqe->wc.byte_len = static_cast<uint32_t>(w.len);
      cqe->wc.qpn = spec_.qpn;
      cqe->wc.vendor_err = w.denial;
      if (w.op == SendOp::local_inv) cqe->wc.imm = w.imm;
      cqe->qp = this;
      cqe->released = &sq_released_;
      cqe->release = sq_head_;
      spec_.send_cq->push();
    }
  }
  if (failed) [[unlikely]]
    fail_send_queue();
}

// IBTA 10.3.1.6: only what is reliable cannot go on receiving when a send has failed.
void Qp::fail_send_queue() noexcept {
  if (spec_.type != QpType::uc && spec_.type != QpType::ud) return enter_error();
  if (attr_.state == QpState::sqe || attr_.state == QpState::err) return;
  attr_.state = QpState::sqe;
  flush();
}

// A completion of this queue pair is lost. True: that has brought it into the error state.
bool Qp::on_overrun() noexcept {
  if (attr_.state == QpState::err) return false;
  enter_error();
  raise(AsyncEvent::qp_fatal);
  return true;
}

void Qp::complete_recv(const TakenRecv& taken, const Wc& wc) noexcept {
  Cqe* cqe = recv_cq_now_->next();
  if (cqe == nullptr) [[unlikely]] {
    on_overrun();
    return;
  }
  cqe->wc = wc;
  cqe->wc.id = taken.id;
  cqe->wc.qpn = spec_.qpn;
  // of XRC it is its receive queue's, and stays when this goes
  const bool own = spec_.type != QpType::xrc_recv;
  cqe->qp = own ? this : nullptr;
  cqe->released = own ? receives().released() : nullptr;
  cqe->release = taken.release;
  recv_cq_now_->push();
}

void Qp::enter_error() noexcept {
  if (attr_.state == QpState::err || attr_.state == QpState::reset) {
    if (attr_.state == QpState::reset) attr_.state = QpState::err;
    return;
  }
  attr_.state = QpState::err;
  stop();
  flush();
  if (spec_.srq != nullptr) raise(AsyncEvent::qp_last_wqe_reached);
}

void Qp::flush() noexcept {
  sq_next_ = sq_tail_;
  while (sq_head_ != sq_tail_) {
    Wqe& w = wqe(sq_head_);
    w.status = WcStatus::wr_flush_err;
    w.denial = 0;
    complete_head();
  }
  if (rq_ == nullptr || attr_.state != QpState::err) return;
  TakenRecv taken;
  Wc wc;
  wc.status = WcStatus::wr_flush_err;
  wc.opcode = WcOpcode::recv;
  while (!rq_->empty()) {
    rq_->take(taken);
    complete_recv(taken, wc);
  }
}

namespace {

// Calls fn(lkey, address, n, at) for the pieces of [offset, offset + n), each inside one entry and
// no longer than one grant, until it says other than success.
template <typename Fn>
WcStatus each_local(const Sge* sge, uint32_t count, uint64_t offset, uint64_t n, Fn&& fn) noexcept {
  uint64_t at = 0;
  for (uint32_t i = 0; i < count && at < n; ++i) {
    if (offset >= sge[i].length) {
      offset -= sge[i].length;
      continue;
    }
    uint64_t left = std::min<uint64_t>(n - at, sge[i].length - offset);
    uint64_t addr = sge[i].addr + offset;
    offset = 0;
    while (left > 0) {
      const uint64_t part = std::min(left, protect::kChunkBytes);
      if (const WcStatus s = fn(sge[i].lkey, addr, part, at); s != WcStatus::success) return s;
      addr += part;
      at += part;
      left -= part;
    }
  }
  return WcStatus::success;
}

}  // namespace

WcStatus Qp::refuse_local(uint32_t lkey, uint64_t addr, uint64_t len, Rights need) noexcept {
  if (log_level() < LogLevel::warn) return WcStatus::loc_prot_err;
  const protect::AccessAsk ask = local_ask(lkey, addr, len, need);
  const protect::Checked checked = spec_.keys->check(ask);
  try {
    APERTURE_WARN("queue pair 0x%x, a buffer of its own: %s", spec_.qpn,
                  spec_.keys->explain(ask, checked.denial(), *spec_.wording).c_str());
  } catch (...) {
    APERTURE_WARN("queue pair 0x%x, a buffer of its own: %s", spec_.qpn,
                  protect::rule(*spec_.wording, checked.denial()));
  }
  return WcStatus::loc_prot_err;
}

WcStatus Qp::gather(uint32_t at, uint64_t offset, std::byte* to, uint64_t n) noexcept {
  const Wqe& w = wqe(at);
  if (w.is_inline) {
    std::memcpy(to, inline_of(at) + offset, n);
    return WcStatus::success;
  }
  return each_local(sges_of(at), w.sge_count, offset, n,
                    [&](uint32_t lkey, uint64_t addr, uint64_t part, uint64_t done) noexcept {
                      if (lkey == kNullLkey) [[unlikely]] {
                        std::memset(to + done, 0, part);
                        return WcStatus::success;
                      }
                      const protect::Checked checked = spec_.keys->check(
                          local_ask(lkey, addr, part, Rights::local_read), &hint_);
                      if (!checked) return refuse_local(lkey, addr, part, Rights::local_read);
                      return checked.grant().copy_out(to + done, part) ? WcStatus::success
                                                                       : WcStatus::loc_prot_err;
                    });
}

WcStatus Qp::scatter(const Sge* sge, uint32_t count, uint64_t offset, const std::byte* from,
                     uint64_t n) noexcept {
  // the usual thing: one piece has it all, and no loop is needed to find that out
  if (count == 1 && offset == 0 && n - 1 < protect::kChunkBytes && n <= sge->length &&
      sge->lkey != kNullLkey) [[likely]] {
    const protect::Checked checked =
        spec_.keys->check(local_ask(sge->lkey, sge->addr, n, Rights::local_write), &hint_);
    if (!checked) return refuse_local(sge->lkey, sge->addr, n, Rights::local_write);
    return checked.grant().copy_in(from, n) ? WcStatus::success : WcStatus::loc_prot_err;
  }
  return each_local(sge, count, offset, n,
                    [&](uint32_t lkey, uint64_t addr, uint64_t part, uint64_t done) noexcept {
                      if (lkey == kNullLkey) [[unlikely]]
                        return WcStatus::success;
                      const protect::Checked checked = spec_.keys->check(
                          local_ask(lkey, addr, part, Rights::local_write), &hint_);
                      if (!checked) return refuse_local(lkey, addr, part, Rights::local_write);
                      return checked.grant().copy_in(from + done, part) ? WcStatus::success
                                                                        : WcStatus::loc_prot_err;
                    });
}

WcStatus Qp::check_local(const Sge* sge, uint32_t count, uint64_t n, Rights need) noexcept {
  for (uint32_t i = 0; i < count && n > 0; ++i) {
    const uint64_t part = std::min<uint64_t>(sge[i].length, n);
    n -= part;
    if (part == 0 || sge[i].lkey == kNullLkey) continue;
    const protect::Checked checked =
        spec_.keys->check(local_ask(sge[i].lkey, sge[i].addr, part, need), &hint_);
    if (!checked) return refuse_local(sge[i].lkey, sge[i].addr, part, need);
  }
  return WcStatus::success;
}

}  // namespace aperture::ib
