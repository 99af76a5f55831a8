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

// True: it is over, well or badly. False: peers may still be inside what it ends.
bool RcQp::end_local(Wqe& w, WindowAnswer answer, const Window* window,
                     const protect::WindowBind* bind) noexcept {
  local_waits_ = false;
  if (answer == WindowAnswer::done) {
    w.stage = Wqe::Stage::finished;
    return true;
  }
  w.denial = kWindowVendor + static_cast<uint32_t>(answer);
  fail_wqe(w, WcStatus::mw_bind_err);
  if (log_level() < LogLevel::warn) return true;
  try {
    const std::string why =
        window != nullptr ? protect::explain(*window, *bind, answer, *spec_.wording)
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

bool RcQp::put_bind(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  if (local_waits_) {
    const WindowAnswer answer = poll_window(w.bind.window_key);
    return answer != WindowAnswer::waits && end_local(w, answer);
  }
  Window* window = spec_.windows->windows.find(w.bind.window_key);
  if (window == nullptr) return end_local(w, WindowAnswer::not_a_window);
  protect::WindowBind bind;
  bind.region = spec_.windows->find_region(w.bind.region_key);
  bind.addr = w.bind.addr;
  bind.length = w.bind.len;
  bind.rights = w.bind.rights;
  bind.zero_based = w.bind.zero_based;
  bind.by_work_request = w.bind.by_work_request;
  bind.key = w.bind.rkey;
  bind.pd = spec_.pd;
  bind.through = id_;
  bind.of_endpoint = &windows_bound();
  bind.bound_at = w.bind.bound_at;
  const WindowAnswer answer = window->bind(bind);
  local_waits_ = answer == WindowAnswer::waits;
  return !local_waits_ && end_local(w, answer, window, &bind);
}

bool RcQp::put_local_inv(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  const WindowAnswer answer =
      local_waits_ ? poll_window(w.imm) : spec_.windows->windows.invalidate(w.imm, spec_.pd, id_);
  local_waits_ = answer == WindowAnswer::waits;
  return !local_waits_ && end_local(w, answer);
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
