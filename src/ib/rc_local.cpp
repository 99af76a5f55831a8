// Work that is done at this end: windows are bound and invalidated, in the order of the send queue,
// and invalidated for the peer by its sends. IBTA vol. 1, 10.6.6; ibv_bind_mw(3), ibv_post_send(3).
//
// An invalidation, or a bind that ends an older one, is over when nothing older can land any more.
// Until then this queue pair waits, and no other.
#include "base/log.hpp"
#include "ib/rc_qp.hpp"
#include "ib/window_book.hpp"

namespace aperture::ib {

using protect::Window;
using protect::WindowAnswer;

namespace {

// Wc::vendor_err of a bind or invalidation that was refused: beyond every protect::Denial.
constexpr uint32_t kWindowVendor = 256;

}  // namespace

protect::WindowBind RcQp::in_windows_words(const BindWr& wr) noexcept {
  return {.region = spec_.windows->find_region(wr.region_key),
          .addr = wr.addr,
          .length = wr.len,
          .rights = wr.rights,
          .zero_based = wr.zero_based,
          .by_work_request = wr.by_work_request,
          .key = wr.rkey,
          .pd = spec_.pd,
          .through = id_,
          .of_endpoint = &windows_bound(),
          .bound_at = wr.bound_at};
}

WindowAnswer RcQp::bind_window(const BindWr& wr) noexcept {
  Window* window = spec_.windows->windows.find(wr.window_key);
  return window == nullptr ? WindowAnswer::not_a_window : window->bind(in_windows_words(wr));
}

// True: it is over, well or badly. False: peers may still be inside what it ends.
bool RcQp::end_local(Wqe& w, WindowAnswer answer) noexcept {
  local_waits_ = answer == WindowAnswer::waits;
  if (local_waits_) return false;
  if (answer == WindowAnswer::done) {
    w.stage = Wqe::Stage::finished;
    return true;
  }
  w.denial = kWindowVendor + static_cast<uint32_t>(answer);
  fail_wqe(w, WcStatus::mw_bind_err);
  if (log_level() < LogLevel::warn) return true;
  const Window* window =
      w.op == SendOp::bind_mw ? spec_.windows->windows.find(w.bind.window_key) : nullptr;
  try {
    const std::string why =
        window != nullptr
            ? protect::explain(*window, in_windows_words(w.bind), answer, *spec_.wording)
        : w.op == SendOp::bind_mw
            ? "the memory window of a bind is there no more; call ibv_dealloc_mw() after its binds "
              "have completed"
            : protect::explain_invalidation(w.imm, answer, *spec_.wording);
    APERTURE_WARN("queue pair 0x%x: %s", spec_.qpn, why.c_str());
  } catch (...) {
    APERTURE_WARN("queue pair 0x%x: %s", spec_.qpn, protect::sentence(answer));
  }
  return true;
}

// The windows that a WQE or a message waits for are looked up each time: they may be gone.
WindowAnswer RcQp::poll_window(uint32_t key) const noexcept {
  Window* window = spec_.windows->windows.find(key);
  return window == nullptr ? WindowAnswer::not_a_window : window->poll();
}

// Nothing at all is before it, so no fence holds it up and no lane is asked for.
bool RcQp::post_local_at_once(const SendWr& wr) noexcept {
  const bool binds = wr.op == SendOp::bind_mw && wr.bind != nullptr;
  if ((wr.flags & ~kSignaled) != 0 || wr.sge_count != 0 || wr.inline_parts != nullptr ||
      !(binds || wr.op == SendOp::local_inv) || spec_.type != QpType::rc || !may_send() ||
      sq_head_ != sq_tail_ || sq_tail_ - sq_released_ >= spec_.max_send_wr) {
    return false;
  }
  const Driving driving(*this);
  stopped_ = local_waits_ = false;  // all that had failed is flushed
  const protect::WindowAnswer answer =
      binds ? bind_window(*wr.bind) : spec_.windows->windows.invalidate(wr.imm, spec_.pd, id_);
  if (answer == protect::WindowAnswer::done && spec_.send_cq->has_room()) [[likely]] {
    complete_now(wr, binds ? WcOpcode::bind_mw : WcOpcode::local_inv, 0);
    return true;
  }
  const uint32_t at = sq_tail_++;
  Wqe& w = wqe(at);
  note(w, wr);
  w.stage = Wqe::Stage::begun;
  w.is_inline = w.in_ring = false;
  w.len = w.begin_pos = w.end_pos = 0;
  if (binds) w.bind = *wr.bind;
  if (end_local(w, answer)) {
    ++sq_next_;
    retire();
  }
  busy_ = sq_head_ != sq_tail_;
  return true;
}

bool RcQp::put_bind(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  return end_local(w, local_waits_ ? poll_window(w.bind.window_key) : bind_window(w.bind));
}

bool RcQp::put_local_inv(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  return end_local(w, local_waits_ ? poll_window(w.imm)
                                   : spec_.windows->windows.invalidate(w.imm, spec_.pd, id_));
}

// For a send with invalidate, whose bytes are in place. Neither done nor waits: it was refused, and
// a reliable queue pair is in the error state.
WindowAnswer RcQp::invalidate_for_peer(uint32_t rkey) noexcept {
  const WindowAnswer answer =
      ending_ ? poll_window(rkey) : spec_.windows->windows.invalidate(rkey, spec_.pd, id_);
  ending_ = answer == WindowAnswer::waits;
  if (ending_ || answer == WindowAnswer::done) return answer;
  explain_refused_invalidation(rkey, answer);
  refuse(WcStatus::rem_access_err, nullptr, protect::denial_of(answer));
  return answer;
}

}  // namespace aperture::ib
