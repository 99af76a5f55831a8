// Waking a thread that sleeps on a completion queue or a counter: see wake_fd.hpp.
#include "qp/wake_fd.hpp"

#include <sys/eventfd.h>

#include <cassert>
#include <cerrno>

#include "base/event_fd.hpp"
#include "base/invariant.hpp"

namespace aperture::qp {

Status WakeFd::open() noexcept {
  if (fd_) return {};
  assert((who_waits_ & kThread) == 0);
  UniqueFd made(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made) return errc_from_errno(errno);
  fd_ = move_high(std::move(made));
  return {};
}

void WakeFd::tell(bool from_call) noexcept {
  APERTURE_DEBUG_ASSERT(((who_waits_ & kListener) != 0) == (listener_ != nullptr));
  if ((who_waits_ & kThread) != 0) wake();
  if ((who_waits_ & kListener) != 0) listener_->on_arrival(from_call);
}

void WakeFd::wake() noexcept {
  signal_eventfd(fd_.get());
  // relaxed: a hint, which may come late
  readable_.store(true, std::memory_order_relaxed);
}

void WakeFd::disarm() noexcept {
  stand_down();
  // relaxed: as in wake()
  if (!readable_.load(std::memory_order_relaxed)) return;
  readable_.store(false, std::memory_order_relaxed);  // before: a signal after it is noted again
  drain_eventfd(fd_.get());
}

}  // namespace aperture::qp
