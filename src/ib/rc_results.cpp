// What comes back: results of reads and atomics, refusals, and receiver-not-ready. All of it is a
// peer's word. IBTA vol. 1, 9.7.5.
#include <cstring>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "ib/rc_qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::ib {

using wire::RcHead;
using wire::RcOp;

bool RcQp::poll_responses() noexcept {
  ring::ChannelRx& rx = lane_->response_rx;
  int budget = qp::kPollBudget;
  bool any = false;
  while (budget-- > 0 && rx.cells.ready() && !broken_) {
    const RcHead head = wire::load_rc_head(rx.cells.body());
    const auto op = static_cast<RcOp>(head.op);
    const uint32_t n_cells = wire::rc_cells_of(op, head.flags, head.len);
    switch (n_cells == 0 || !is_reliable() ? RcOp::none : op) {
      case RcOp::nak: on_nak(head); break;
      case RcOp::rnr: on_rnr(head); break;
      case RcOp::read_inline:
      case RcOp::read_data: on_result(head, op); break;
      default: break_protocol("an unknown response"); return true;
    }
    rx.cells.advance(n_cells);
    any = true;
    if (rx.unpublished() >= qp::kAckCells / 4) rx.publish_consumed();
  }
  if (any) {
    rx.publish_consumed();
    published_request();  // who waits for room in its response ring may sleep
  }
  return any;
}

// The request at that position was refused: its WQE fails, and the responder takes nothing more.
void RcQp::on_nak(const RcHead& head) noexcept {
  const auto f = wire::load_rc<wire::RcAnswer>(lane_->response_rx.cells.body());
  const auto status = static_cast<WcStatus>(head.len);
  const bool known = status == WcStatus::rem_access_err || status == WcStatus::rem_inv_req_err ||
                     status == WcStatus::rem_op_err;
  for (uint32_t at = sq_head_; at != sq_tail_; ++at) {
    Wqe& w = wqe(at);
    if (!holds(w, f.pos)) continue;
    if (w.stage == Wqe::Stage::finished) {
      if (w.status != WcStatus::success) return;  // it had failed at this end already
      break;
    }
    w.denial = head.imm < protect::kDenials ? head.imm : 0;
    fail_wqe(w, known ? status : WcStatus::rem_op_err);
    explain_refused(w);
    return;
  }
  break_protocol("a refusal of a request that is not under way");
}

// A wire and two NICs give a receiver a few microseconds, and programs that set rnr_retry to 0 (fio
// does, and whatever leaves rdma_conn_param's counts at zero) live on them. Here a message is at
// its receiver at once, whether the receiver has a core to run on or not. So the first period is
// the responder's: the message lies at the head of its ring for one min_rnr_timer, which is the
// responder's own word for how soon it may be ready, before that counts as not ready. The retries
// follow, as many periods.
void RcQp::on_rnr(const RcHead& head) noexcept {
  const auto f = wire::load_rc<wire::RcAnswer>(lane_->response_rx.cells.body());
  if (attr_.rnr_retry == 7 || sq_head_ == sq_tail_) return;
  if (rnr_deadline_ns_ != 0 && rnr_pos_ == f.pos) return;
  rnr_pos_ = f.pos;
  const uint64_t period = rnr_timer_ns(static_cast<uint8_t>(head.imm));
  rnr_deadline_ns_ = now_ns() + period * (uint64_t{attr_.rnr_retry} + 1);
}

// Nobody has posted a receive for the head in all the time that was allowed.
void RcQp::look_at_rnr_timer() noexcept {
  if (done_through_ > rnr_pos_) {
    rnr_deadline_ns_ = 0;
    return;
  }
  if (now_ns() < rnr_deadline_ns_) return;
  rnr_deadline_ns_ = 0;
  for (uint32_t at = sq_head_; at != sq_tail_; ++at) {
    Wqe& w = wqe(at);
    if (!holds(w, rnr_pos_) || w.stage == Wqe::Stage::finished) continue;
    fail_wqe(w, WcStatus::rnr_retry_exc_err);
    APERTURE_WARN(
        "queue pair 0x%x: %s has posted no receive for a message in the time that min_rnr_timer "
        "and rnr_retry = %u allow; post receives before the peer sends, or set rnr_retry to 7",
        spec_.qpn, remote_.text().c_str(), attr_.rnr_retry);
    return retire();
  }
}

void RcQp::on_result(const RcHead& head, RcOp op) noexcept {
  ring::ChannelRx& rx = lane_->response_rx;
  const std::byte* body = rx.cells.body();
  uint64_t pos = 0;
  uint64_t offset = 0;
  uint64_t len = head.len;
  const std::byte* from = nullptr;
  std::byte flat[wire::kRcMaxInline];
  uint64_t free_after = 0;
  if (op == RcOp::read_data) {
    const auto f = wire::load_rc<wire::RcReadData>(body);
    pos = f.pos;
    offset = f.offset;
    len = f.len;
    from = rx.bytes.view(f.byte_pos, f.len);
    free_after = rx.bytes.after(f.byte_pos, f.len);
  } else {
    pos = wire::load_rc<wire::RcAnswer>(body).pos;
    ring::BodyReader(rx.cells, wire::rc_payload_offset(op, 0)).copy_out(flat, len);
    from = flat;
  }
  for (uint32_t at = sq_head_; at != sq_next_; ++at) {
    Wqe& w = wqe(at);
    if (!holds(w, pos)) continue;
    const bool wants =
        w.op == SendOp::read || w.op == SendOp::cmp_swap || w.op == SendOp::fetch_add;
    // in order and never more than was asked for
    if (!wants || from == nullptr || offset != w.done || len > w.len - w.done) break;
    if (w.stage == Wqe::Stage::posted) {
      const WcStatus s = scatter(sges_of(at), w.sge_count, w.done, from, len);
      if (s != WcStatus::success) fail_wqe(w, s);
    }
    w.done += len;  // what comes after a failure is counted and dropped
    if (free_after != 0) rx.free_bytes_before(free_after);
    stall_since_ = 0;  // the owner is at it
    return;
  }
  break_protocol("a result longer than asked, out of order, or that nobody asked for");
}

void RcQp::break_protocol(const char* what) noexcept {
  if (broken_) return;
  broken_ = busy_ = true;
  APERTURE_WARN("%s sent %s: the connection is closed; check that both sides run the same version",
                remote_.text().c_str(), what);
}

void RcQp::end_if_broken() noexcept {
  if (!broken_) [[likely]]
    return;
  enter_error();
  raise(AsyncEvent::qp_fatal);
}

}  // namespace aperture::ib
