// Taking responses and acknowledgements: see rc_answers.hpp.
#include "ib/rc_answers.hpp"

#include "base/clock.hpp"
#include "base/log.hpp"
#include "ib/rc_explain.hpp"

namespace aperture::ib {

using wire::RcMessage;
using wire::RcOp;

namespace {

constexpr uint8_t kEndlessly = 7;                // rnr_retry
constexpr uint64_t kPatienceNs = 2'000'000'000;  // of it, before something is said

}  // namespace

bool RcAnswers::poll() noexcept {
  const bool any = q_.lane_.take_responses([this](const std::byte* body) -> uint32_t {
    RcMessage m;
    if (!wire::read_rc_head(body, m)) return 0;
    // positions and numbers of permits are only compared with our own
    const uint64_t pos = wire::load_rc<wire::RcAnswerFields>(body).pos.unchecked();
    if (m.op == RcOp::permit) {
      q_.one_sided_.take_permit(pos, m.code.unchecked());  // a permit too many is not in the gate
    } else if (!q_.is_reliable()) {
      return 0;
    } else {
      switch (m.op) {
        case RcOp::nak: on_nak(m, pos); break;
        case RcOp::rnr: on_rnr(m, pos); break;
        case RcOp::read_inline: on_read_inline(m, pos); break;
        case RcOp::read_data: on_read_data(); break;
        default: return 0;
      }
    }
    return m.n_cells;
  });
  if (q_.lane_.broken()) q_.busy_ = true;
  return any;
}

// The request at that position was refused: its WQE fails, and the responder takes nothing more.
void RcAnswers::on_nak(const RcMessage& m, uint64_t pos) noexcept {
  const auto status = static_cast<WcStatus>(m.code.unchecked());  // one of three, or another's
  const bool known = status == WcStatus::rem_access_err || status == WcStatus::rem_inv_req_err ||
                     status == WcStatus::rem_op_err;
  for (uint32_t at = q_.sq_.head; at != q_.sq_.tail; ++at) {
    Wqe& w = q_.sq_.wqe(at);
    if (!q_.holds(w, pos)) continue;
    if (w.stage == Wqe::Stage::finished) {
      if (w.status != WcStatus::success) return;  // it had failed at this end already
      break;
    }
    w.denial = 0;
    const bool too_long = m.has(wire::kRcRoom);
    if (!too_long) m.imm.bounded(protect::kDenials - 1, w.denial);
    q_.fail_wqe(w, known ? status : WcStatus::rem_op_err);
    // the room there is said, and not used
    explain_refused({q_.spec(), q_.remote_}, q_.lane_, w,
                    too_long ? std::optional(m.imm.unchecked()) : std::nullopt);
    return;
  }
  q_.break_protocol("a refusal of a request that is not under way");
}

// A wire and two NICs give a receiver a few microseconds, and programs that set rnr_retry to 0 (fio
// does, and whatever leaves the connection's counts at zero) live on them. Here a message is at
// its receiver at once, whether the receiver has a core to run on or not. So the first period is
// the responder's: the message lies at the head of its ring for one min_rnr_timer, which is the
// responder's own word for how soon it may be ready, before that counts as not ready. The retries
// follow, as many periods.
void RcAnswers::on_rnr(const RcMessage& m, uint64_t pos) noexcept {
  const bool endless = q_.attr_.rnr_retry == kEndlessly;
  if ((endless && endless_told_) || q_.sq_.is_empty()) return;
  if (q_.rnr_deadline_ns_ != 0 && rnr_pos_ == pos) return;
  rnr_pos_ = pos;
  if (endless) {
    q_.rnr_deadline_ns_ = now_ns() + kPatienceNs;
    return;
  }
  const uint64_t period =
      rnr_timer_ns(static_cast<uint8_t>(m.imm.unchecked()));  // any code will do
  q_.rnr_deadline_ns_ = now_ns() + period * (uint64_t{q_.attr_.rnr_retry} + 1);
}

// Nothing fails; but a program that hangs here shall find out why.
void RcAnswers::tell_endless() noexcept {
  endless_told_ = true;
  APERTURE_WARN(
      "queue pair 0x%x: a message waits for %s to post a receive, and has done so for %u s; "
      "rnr_retry is 7, so it waits for ever: post receives there before sending, or set rnr_retry "
      "to less than 7 to be told by a completion",
      q_.qpn(), q_.remote_.print().c_str(), static_cast<unsigned>(kPatienceNs / 1'000'000'000));
}

void RcAnswers::look_at_rnr_timer() noexcept {
  assert(q_.rnr_deadline_ns_ != 0);
  if (q_.inflight_.done_through() > rnr_pos_) {
    q_.rnr_deadline_ns_ = 0;
    return;
  }
  if (now_ns() < q_.rnr_deadline_ns_) return;
  q_.rnr_deadline_ns_ = 0;
  if (q_.attr_.rnr_retry == kEndlessly) return tell_endless();
  for (uint32_t at = q_.sq_.head; at != q_.sq_.tail; ++at) {
    Wqe& w = q_.sq_.wqe(at);
    if (!q_.holds(w, rnr_pos_) || w.stage == Wqe::Stage::finished) continue;
    q_.fail_wqe(w, WcStatus::rnr_retry_exc_err);
    APERTURE_WARN(
        "queue pair 0x%x: %s has posted no receive for a message in the time that min_rnr_timer "
        "and rnr_retry = %u allow; post receives before the peer sends, or set rnr_retry to 7",
        q_.qpn(), q_.remote_.print().c_str(), q_.attr_.rnr_retry);
    return retire();
  }
}

void RcAnswers::on_read_inline(const RcMessage& m, uint64_t pos) noexcept {
  std::byte flat[wire::kRcMaxInline];
  const ring::CellReader& cells = q_.lane_->response_rx.cells;
  ring::BodyReader(cells, wire::rc_payload_offset(RcOp::read_inline, 0)).copy_out(flat, m.len);
  place_result(pos, 0, m.len, [&](const Sge* sge, uint32_t count, uint64_t at) noexcept {
    return q_.memory_.scatter(sge, count, at, flat, m.len);
  });
}

void RcAnswers::on_read_data() noexcept {
  ring::ChannelRx& rx = q_.lane_->response_rx;
  const auto f = wire::load_rc<wire::RcReadDataFields>(rx.cells.body());
  transport::BytesIn bytes =
      q_.lane_.payload().take_piece(rx, f.byte_pos, f.len.unchecked(), q_.lane_->piece_bytes);
  const auto place = [&](const Sge* sge, uint32_t count, uint64_t at) noexcept {
    return q_.memory_.take_piece(sge, count, at, bytes);
  };
  // position and offset are only compared with our own
  const uint64_t len = bytes ? bytes.len : kNoResult;
  if (place_result(f.pos.unchecked(), f.offset.unchecked(), len, place)) {
    q_.lane_.payload().done_with(rx, bytes);
  }
}

// A piece of the result of the request at pos, which place() puts into its list; kNoResult where it
// lies nowhere. False: no sound peer sends that.
template <typename Place>
bool RcAnswers::place_result(uint64_t pos, uint64_t offset, uint64_t len, Place&& place) noexcept {
  for (uint32_t at = q_.sq_.head; at != q_.sq_.tail; ++at) {
    Wqe& w = q_.sq_.wqe(at);
    if (!q_.holds(w, pos)) continue;
    // in order and never more than was asked for
    if (!returns_data(w.op) || offset != w.done || len > w.len - w.done) break;
    if (w.stage != Wqe::Stage::finished) {
      const WcStatus s = place(q_.sq_.sges_of(at), w.sge_count, w.done);
      if (s != WcStatus::success) q_.fail_wqe(w, s);
    }
    w.done += len;  // what comes after a failure is counted and dropped
    assert(w.done <= w.len);
    q_.target_.restart_clock();  // the owner is at it
    return true;
  }
  q_.break_protocol("a result longer than asked, out of order, or that nobody asked for");
  return false;
}

void RcAnswers::learn_executed() noexcept {
  const uint64_t consumed = q_.lane_.executed([this] { poll(); });
  if (q_.lane_.broken() || consumed <= q_.inflight_.done_through()) return;
  q_.inflight_.retire_through(consumed);
}

inline void RcAnswers::complete_oldest(const Wqe& w) noexcept {
  if (w.result_out) {
    assert(q_.results_out_ != 0);
    --q_.results_out_;
  }
  q_.complete_head();
}

void RcAnswers::retire() noexcept {
  SendQueue& sq = q_.sq_;
  while (sq.head != sq.next) {
    Wqe& w = sq.wqe(sq.head);
    if (w.stage == Wqe::Stage::posted) {
      if (w.end_pos > q_.inflight_.done_through()) break;
      if (returns_data(w.op) && w.done != w.len) {
        w.status = WcStatus::bad_resp_err;  // acknowledged without its data
      }
    } else if (w.stage != Wqe::Stage::finished) {
      break;
    }
    complete_oldest(w);
    if (q_.attr_.state == QpState::err) return;
  }
  // a WQE that has failed while it was being put into the ring
  if (sq.head == sq.next && !sq.is_posted() && q_.stopped_ &&
      sq.wqe(sq.next).stage == Wqe::Stage::finished) {
    sq.post_no_more_of_oldest();
    complete_oldest(sq.wqe(sq.head));
    return;
  }
  q_.check_drained();
}

}  // namespace aperture::ib
