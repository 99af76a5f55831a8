// Events and their descriptors: see async.hpp. ibv_get_async_event(3), "ibv_ack_async_event".
#include "verbs/async.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>

#include "base/event_fd.hpp"
#include "base/restart.hpp"
#include "verbs/context.hpp"
#include "verbs/cq.hpp"
#include "verbs/entry.hpp"
#include "verbs/qp.hpp"
#include "verbs/real.hpp"
#include "verbs/srq.hpp"

namespace aperture::verbs {

bool blocks(int fd) noexcept {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_NONBLOCK) == 0;
}

Status ReadyFd::open(Whose whose) noexcept {
  is_ours_ = whose == Whose::ours;
  UniqueFd made(::eventfd(0, EFD_CLOEXEC | (is_ours_ ? EFD_NONBLOCK : 0)));
  if (!made) return errc_from_errno(errno);
  fd_ = std::move(made);
  return {};
}

void ReadyFd::set(bool ready) noexcept {
  if (ready == ready_) return;
  ready_ = ready;
  if (ready) {
    signal_eventfd(fd_.get());
    return;
  }
  // it is readable, since we have made it so; but if the application has read from it itself,
  // reading would block
  if (is_ours_ || is_readable(fd_.get())) drain_eventfd(fd_.get());
}

int ReadyFd::wait() const {
  if (!blocks(fd_.get())) return EAGAIN;
  pollfd wanted{fd_.get(), POLLIN, 0};
  return ::poll(&wanted, 1, -1) < 0 ? errno_of_wait(errno) : 0;
}

void AsyncQueue::push(const ibv_async_event& event) noexcept {
  try {
    std::lock_guard guard(mutex_);
    if (events_.size() >= kMaxEvents) {
      APERTURE_WARN(
          "an asynchronous event is lost: %zu are waiting, and nobody reads them with "
          "ibv_get_async_event",
          events_.size());
      return;
    }
    assert(events_.size() < kMaxEvents);
    events_.push_back(event);
    ready_.set(true);
  } catch (...) {
    APERTURE_WARN("an asynchronous event is lost: out of memory");
  }
}

bool AsyncQueue::take(ibv_async_event& event) noexcept {
  std::lock_guard guard(mutex_);
  if (events_.empty()) return false;
  event = events_.front();
  events_.pop_front();
  note_handed(event);
  ready_.set(!events_.empty());
  return true;
}

void AsyncQueue::forget(const void* element) noexcept {
  std::lock_guard guard(mutex_);
  std::erase_if(events_, [element](const ibv_async_event& event) {
    // the pointers of the union are one
    return event.element.qp == element;
  });
  ready_.set(!events_.empty());
}

void wait_for_acknowledgements(pthread_mutex_t& mutex, pthread_cond_t& condition,
                               const uint32_t& completed, const uint32_t& handed) noexcept {
  ::pthread_mutex_lock(&mutex);
  while (completed != handed) ::pthread_cond_wait(&condition, &mutex);
  ::pthread_mutex_unlock(&mutex);
}

namespace {

// Who an event is about, and the words of that object's that count acknowledgements.
struct Affiliate {
  ibv_context* context = nullptr;
  pthread_mutex_t* mutex = nullptr;
  pthread_cond_t* condition = nullptr;
  uint32_t* completed = nullptr;
};

Affiliate affiliate_of(const ibv_async_event& event) noexcept {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR: {
      ibv_cq* cq = event.element.cq;
      return {cq->context, &cq->mutex, &cq->cond, &cq->async_events_completed};
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      ibv_qp* qp = event.element.qp;
      return {qp->context, &qp->mutex, &qp->cond, &qp->events_completed};
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      ibv_srq* srq = event.element.srq;
      return {srq->context, &srq->mutex, &srq->cond, &srq->events_completed};
    }
    case IBV_EVENT_WQ_FATAL: {
      ibv_wq* wq = event.element.wq;
      return {wq->context, &wq->mutex, &wq->cond, &wq->events_completed};
    }
    default: return {};  // of a port or the device: nothing waits for it
  }
}

}  // namespace

void note_handed(const ibv_async_event& event) noexcept {
  const Affiliate who = affiliate_of(event);
  if (who.mutex == nullptr) return;
  ::pthread_mutex_lock(who.mutex);
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR: ++object_of<DeviceCq>(event.element.cq).handed_async; break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: ++object_of<Srq>(event.element.srq).handed_async; break;
    default: ++object_of<DeviceQp>(event.element.qp).handed_async; break;
  }
  ::pthread_mutex_unlock(who.mutex);
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

namespace {

// Not inlined: see base/cancellable.h.
[[gnu::noinline]] int look_for_event(Context& context, ibv_async_event& event,
                                     bool& taken) noexcept {
  return guarded("ibv_get_async_event", context.its_engine.life(), [&] {
    taken = context.async.take(event);
    return 0;
  });
}

}  // namespace

APERTURE_VERB int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  APERTURE_FORWARD(is_ours(context), -1, ibv_get_async_event, "IBVERBS_1.1", context, event);
  AsyncQueue& events = context_of(context).async;
  while (true) {
    bool taken = false;
    int error = look_for_event(context_of(context), *event, taken);
    if (error == 0 && taken) return 0;
    if (error == 0) error = events.wait();  // threads that wait here are commonly cancelled
    if (error == 0) continue;
    errno = error;
    return -1;
  }
}

APERTURE_VERB void ibv_ack_async_event(ibv_async_event* event) {
  APERTURE_REAL(ibv_ack_async_event, "IBVERBS_1.1");
  const Affiliate who = affiliate_of(*event);
  if (who.context == nullptr) return;
  if (!is_ours(who.context)) {
    auto* real_ack = real.get();
    if (real_ack != nullptr) real_ack(event);
    return;
  }
  if (life_of(who.context).is_over()) return;
  ::pthread_mutex_lock(who.mutex);
  assert(who.completed != nullptr && who.condition != nullptr);
  ++*who.completed;
  ::pthread_cond_signal(who.condition);
  ::pthread_mutex_unlock(who.mutex);
}
