// Binding and invalidating windows: see rc_windows.hpp.
#include "ib/rc_windows.hpp"

#include "ib/rc_explain.hpp"

namespace aperture::ib {

using protect::Window;
using protect::WindowAnswer;

namespace {

// Wc::vendor_err of a bind or invalidation that was refused: beyond every protect::Denial.
constexpr uint32_t kWindowVendor = 256;

}  // namespace

protect::WindowBind RcWindows::bind_of(const BindWr& wr) noexcept {
  return {.region = q_.spec_.windows->find_region(wr.region_key),
          .addr = wr.addr,
          .length = wr.len,
          .rights = wr.rights,
          .zero_based = wr.zero_based,
          .by_work_request = wr.by_work_request,
          .key = wr.rkey,
          .pd = q_.spec_.pd,
          .through = q_.id_,
          .of_endpoint = &q_.windows_bound(),
          .bound_at = wr.bound_at};
}

WindowAnswer RcWindows::bind(const BindWr& wr) noexcept {
  Window* window = q_.spec_.windows->windows.find(wr.window_key);
  return window == nullptr ? WindowAnswer::not_a_window : window->bind(bind_of(wr));
}

WindowAnswer RcWindows::invalidate(uint32_t key) noexcept {
  return q_.spec_.windows->windows.invalidate(key, q_.spec_.pd, q_.id_);
}

WindowAnswer RcWindows::poll(uint32_t key) noexcept {
  Window* window = q_.spec_.windows->windows.find(key);
  return window == nullptr ? WindowAnswer::not_a_window : window->poll();
}

// What is asked has come to that.
bool RcWindows::end(Wqe& w, WindowAnswer answer) noexcept {
  assert(is_local(w.op) && w.stage == Wqe::Stage::begun);
  waits_ = answer == WindowAnswer::waits;
  if (waits_) return false;
  if (answer == WindowAnswer::done) {
    w.stage = Wqe::Stage::finished;
    return true;
  }
  w.denial = kWindowVendor + static_cast<uint32_t>(answer);
  q_.fail_wqe(w, WcStatus::mw_bind_err);
  const bool binds = w.op == SendOp::bind_mw;
  explain_failed_window(q_.spec_, w,
                        binds ? q_.spec_.windows->windows.find(w.bind.window_key) : nullptr,
                        binds ? bind_of(w.bind) : protect::WindowBind{}, answer);
  return true;
}

bool RcWindows::carry_out(Wqe& w) noexcept {
  assert(&w == &q_.sq_.wqe(q_.sq_.next));
  const bool binds = w.op == SendOp::bind_mw;
  if (waits_) return end(w, poll(binds ? w.bind.window_key : w.imm));
  return end(w, binds ? bind(w.bind) : invalidate(w.imm));
}

bool RcWindows::post_fast(const SendWr& wr) noexcept {
  const bool binds = wr.op == SendOp::bind_mw && wr.bind != nullptr;
  if ((wr.flags & ~kSignaled) != 0 || wr.sge_count != 0 || wr.inline_parts != nullptr ||
      !(binds || wr.op == SendOp::local_inv) || q_.spec_.type != QpType::rc || !q_.may_send() ||
      !q_.sq_.is_empty() || q_.sq_.is_full()) {
    return false;
  }
  const RcCore::LaneInUse in_use(q_);
  q_.stopped_ = waits_ = false;  // all that had failed is flushed
  const WindowAnswer answer = binds ? bind(*wr.bind) : invalidate(wr.imm);
  if (answer == WindowAnswer::done && q_.spec_.send_cq->has_room()) [[likely]] {
    q_.sq_.complete_fast(wr, 0);
    return true;
  }
  Wqe& w = q_.sq_.wqe(q_.sq_.tail);
  q_.sq_.post(wr);
  w.stage = Wqe::Stage::begun;
  if (end(w, answer)) {
    ++q_.sq_.next;
    answers_.retire();
  }
  q_.busy_ = !q_.sq_.is_empty();
  return true;
}

WindowAnswer RcWindows::invalidate_for_peer(uint32_t rkey) noexcept {
  const WindowAnswer answer = ending_ ? poll(rkey) : invalidate(rkey);
  ending_ = answer == WindowAnswer::waits;
  if (!ending_ && answer != WindowAnswer::done) {
    explain_refused_invalidation({q_.spec_, q_.remote_}, rkey, answer);
  }
  return answer;
}

}  // namespace aperture::ib
