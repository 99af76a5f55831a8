// Raising and fetching completion events: see channel.hpp.
#include "verbs/channel.hpp"

#include <sys/epoll.h>

#include <cassert>
#include <cerrno>
#include <utility>

#include "base/cancellable.h"
#include "base/restart.hpp"
#include "verbs/cq.hpp"
#include "verbs/errors.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

namespace {

constexpr int kRestRounds = 4;

bool watch(int epoll, int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Status Channel::open(Context& its_context) noexcept {
  if (const Status s = ready.open(ReadyFd::Whose::ours); !s) return s;
  fd = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd || !watch(fd.get(), ready.get())) return errc_from_errno(errno);
  path.fd = fd.get();
  base.context = its_context.base();
  base.fd = fd.get();
  context = &its_context;
  use_context = ContextUse(its_context);
  return {};
}

// --- who is woken, the application or the control thread ---

void Channel::set_direct(bool direct) noexcept {
  if (!direct) context->waiters.forget(*this);
  if (direct == is_direct) return;
  nic::Wakers& wakers = context->engine().wakers();
  wakings = wakers.wakings();
  is_direct = direct && wakers.take_path(path);
  if (!is_direct) wakers.hush_path(path);
}

void Channel::leave() noexcept {
  set_direct(false);
  context->engine().wakers().forget_path(path);
}

// That thread, null if it is not known, is woken by this channel from now on, and by no other.
void Channel::wake_by_this(Waiter* who) noexcept {
  if (who != nullptr && who->direct != this) {
    if (who->direct != nullptr) who->direct->set_direct(false);
    who->direct = this;
  }
  set_direct(true);
  if (!is_direct) context->waiters.forget(*this);  // the control thread wakes it, by its events
}

void Channel::on_armed(DeviceCq& cq, bool any) noexcept {
  {
    std::lock_guard guard(mutex);
    has_handed = false;
  }
  waiter = context->waiters.of_this_thread();
  idle_looks = 0;
  if (armed == nullptr) {  // nobody has been promised an event by what was rung before
    context->engine().sleep().hush_after();
    wakings = context->engine().wakers().wakings();
  }
  if (any && !cq.is_armed) {
    cq.is_armed = true;
    cq.next_armed = armed;
    armed = &cq;
  }
  if (armed == nullptr) {
    set_direct(false);  // it wants to sleep through what is not solicited
  } else if (!is_direct &&
             (waiter == nullptr || waiter->direct == nullptr || waiter->direct->is_done_with())) {
    stays = blocks(fd.get());
    if (!stays) wake_by_this(waiter);
  }
}

// None of its CQs is armed, and there is no event after which one may be.
bool Channel::is_done_with() noexcept {
  return armed == nullptr && !has_event();
}

void Channel::disarm(DeviceCq& cq) noexcept {
  if (!cq.is_armed) return;
  cq.is_armed = false;
  DeviceCq** at = &armed;
  while (*at != &cq) at = &(*at)->next_armed;
  *at = cq.next_armed;
}

// True: the engine sleeps. False: there is an event, or a lane that must be polled, which the
// control thread does.
bool Channel::put_to_sleep() noexcept {
  nic::Engine& engine = context->engine();
  for (int round = 0; round < kRestRounds; ++round) {
    if (engine.sleep().prepare()) return true;
    engine.poll();
    if (has_event()) return false;
  }
  return false;
}

void Channel::rest() noexcept {
  Waiter* const who = context->waiters.of_this_thread();
  if (who != nullptr && who->comes_back()) return;
  if (armed != nullptr && !stays) wake_by_this(who);
  if (!put_to_sleep()) return;
  if (is_direct) {
    context->engine().auto_progress().leave_to_application();
  } else {
    context->engine().auto_progress().take_back();
  }
}

// --- events ---

// Of the engine's lock's holder: raised while it looks, an event needs no descriptor. Whether the
// caller comes for another one, after that of the last call.
bool Channel::begin_look() noexcept {
  std::lock_guard guard(mutex);
  ++looking;
  return std::exchange(has_handed, false);
}

void Channel::end_look() noexcept {
  std::lock_guard guard(mutex);
  assert(looking != 0);
  --looking;
  ready.set(first != nullptr);  // others who sleep on the descriptor
}

void Channel::raise(DeviceCq& cq) noexcept {
  disarm(cq);
  std::lock_guard guard(mutex);
  if (first == nullptr && looking == 0 && waiter != nullptr) {
    told = waiter;
    told_number = told->on_ready();
  }
  if (cq.events_waiting++ == 0) {
    cq.next_in_channel = nullptr;
    (last != nullptr ? last->next_in_channel : first) = &cq;
    last = &cq;
  }
  if (looking == 0) ready.set(true);
}

// There is none any more. Its mutex held.
void Channel::note_fetched() noexcept {
  if (first != nullptr || told == nullptr) return;
  told->on_fetched(told_number);
  told = nullptr;
}

bool Channel::take_first(DeviceCq*& cq) noexcept {
  std::lock_guard guard(mutex);
  if (first == nullptr) return false;
  cq = first;
  first = cq->next_in_channel;
  if (first == nullptr) last = nullptr;
  assert(cq->events_waiting != 0);
  if (--cq->events_waiting != 0) {  // the others have their turn before its next one
    cq->next_in_channel = nullptr;
    (last != nullptr ? last->next_in_channel : first) = cq;
    last = cq;
  }
  ready.set(first != nullptr);
  note_fetched();
  has_handed = true;
  // inside our mutex: a destruction that takes the events back sees this one as handed out
  ::pthread_mutex_lock(&cq->ex.mutex);
  ++cq->handed_events;
  ::pthread_mutex_unlock(&cq->ex.mutex);
  return true;
}

// A peer that answers at once is met here, without the two wake-ups (control thread, then we) that
// a sleep costs.
bool Channel::look_a_while(DeviceCq*& cq) noexcept {
  begin_look();
  const bool taken = nic::look_before_sleep(context->engine(), [&] {
    {
      nic::PollGuard guard(context->engine());
      context->engine().poll();
      if (!has_event()) guard.found_nothing();
    }
    return take_first(cq);
  });
  end_look();
  return taken;
}

// What a peer's ring was for, without a detour over the descriptor.
bool Channel::look_once(DeviceCq*& cq) noexcept {
  const bool again = begin_look();
  {
    nic::EngineGuard guard(context->engine());
    nic::Engine& engine = context->engine();
    waiter = context->waiters.of_this_thread();
    // who comes again has not been woken since
    if (!again) {
      engine.poll();
      engine.sleep().hush();
    } else if (!engine.sleep().goes_on()) {
      engine.poll();
      engine.sleep().hush_after();
    }
    // the descriptor has been readable: that is not to be taken back
    if (is_direct && wakings != engine.wakers().wakings() && armed != nullptr && !has_event()) {
      armed->queue->fire();
    }
    wakings = engine.wakers().wakings();
  }
  const bool taken = take_first(cq);
  end_look();
  return taken;
}

// There is no event, and the application is told so. Where no CQ is armed none can be raised: its
// program is about to arm one, and rests then, or wants no more of them.
void Channel::on_none() noexcept {
  nic::EngineGuard guard(context->engine());
  stays = false;
  if (armed != nullptr) {
    rest();
  } else if (++idle_looks >= 2) {
    set_direct(false);
  }
}

Channel::Taken Channel::take(DeviceCq*& cq) noexcept {
  if (take_first(cq) || look_once(cq)) return Taken::event;
  if (!blocks(fd.get())) {
    on_none();
    return take_first(cq) ? Taken::event : Taken::none;
  }
  {
    nic::EngineGuard guard(context->engine());
    stays = true;
    set_direct(false);
  }
  return look_a_while(cq) ? Taken::event : Taken::must_sleep;
}

// The application's thread in place of the control thread, which would have to be woken first.
// False: it cannot, there is a lane that must be polled or something to do.
bool Channel::begin_sleep() noexcept {
  nic::Engine& engine = context->engine();
  nic::EngineGuard guard(engine);
  engine.poll();
  if (has_event() || !put_to_sleep()) return false;
  engine.auto_progress().leave_to_application();
  return true;
}

int Channel::sleep() {
  const bool asleep = begin_sleep();
  pollfd either[] = {{ready.get(), POLLIN, 0}, {context->engine().wakers().sleep_fd(), POLLIN, 0}};
  if (has_event()) return 0;
  // where a lane must be polled, the control thread does that, and raises the event
  const int n = aperture_cancellable_poll(either, asleep ? 2 : 1, -1, nullptr, nullptr);
  return n < 0 ? errno_of_wait(errno) : 0;
}

bool Channel::has_event() noexcept {
  std::lock_guard guard(mutex);
  return first != nullptr;
}

void Channel::forget(DeviceCq& cq) noexcept {
  std::lock_guard guard(mutex);
  DeviceCq* before = nullptr;
  for (DeviceCq* at = first; at != nullptr; before = at, at = at->next_in_channel) {
    if (at != &cq) continue;
    (before != nullptr ? before->next_in_channel : first) = cq.next_in_channel;
    if (last == &cq) last = before;
    break;
  }
  cq.events_waiting = 0;
  assert((first == nullptr) == (last == nullptr));
  ready.set(first != nullptr);
  note_fetched();
}

namespace {

int make_channel(Context& context, Channel*& made) {
  auto channel = std::make_unique<Channel>();
  if (const Status opened = channel->open(context); !opened.ok())
    return refuse(errno_of(opened), "ibv_create_comp_channel: its descriptor: %s",
                  describe(opened.error()));
  made = channel.release();
  return 0;
}

int destroy(Channel& channel) {
  {
    std::lock_guard guard(channel.mutex);
    if (channel.base.refcnt != 0)
      return refuse(EBUSY, "ibv_destroy_comp_channel: %d completion queues still use it",
                    channel.base.refcnt);
  }
  {
    nic::EngineGuard guard(channel.context->engine());
    channel.leave();
  }
  delete &channel;
  return 0;
}

}  // namespace

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  APERTURE_FORWARD(is_ours(context), nullptr, ibv_create_comp_channel, "IBVERBS_1.0", context);
  return guarded_new_base<Channel>("ibv_create_comp_channel", life_of(context), [&](Channel*& out) {
    return make_channel(context_of(context), out);
  });
}

APERTURE_VERB int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  APERTURE_FORWARD(is_ours(channel->context), EOPNOTSUPP, ibv_destroy_comp_channel, "IBVERBS_1.0",
                   channel);
  return guarded_release("ibv_destroy_comp_channel", life_of(channel),
                         [&] { return destroy(object_of<Channel>(channel)); });
}

namespace {

// Not inlined: see base/cancellable.h.
[[gnu::noinline]] int look_for_event(Channel& channel, Channel::Taken& answer,
                                     DeviceCq*& cq) noexcept {
  return guarded("ibv_get_cq_event", life_of(&channel.base), [&] {
    answer = channel.take(cq);
    return answer == Channel::Taken::none ? EAGAIN : 0;
  });
}

}  // namespace

// A cancellation point while it sleeps, as read(2) of the kernel's descriptor is.
APERTURE_VERB int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  APERTURE_FORWARD(is_ours(channel->context), -1, ibv_get_cq_event, "IBVERBS_1.1", channel, cq,
                   cq_context);
  auto& ours = object_of<Channel>(channel);
  while (true) {
    DeviceCq* taken = nullptr;
    Channel::Taken answer = Channel::Taken::none;
    int error = look_for_event(ours, answer, taken);
    if (error == 0 && answer == Channel::Taken::event) {
      *cq = taken->base();
      *cq_context = taken->ex.cq_context;
      return 0;
    }
    if (error == 0) error = ours.sleep();
    if (error == 0) continue;
    errno = error;
    return -1;
  }
}

APERTURE_VERB void ibv_ack_cq_events(ibv_cq* cq, unsigned int nevents) {
  APERTURE_REAL(ibv_ack_cq_events, "IBVERBS_1.1");
  if (!is_ours(cq->context)) {
    auto* real_ack = real.get();
    if (real_ack != nullptr) real_ack(cq, nevents);
    return;
  }
  if (life_of(cq).is_over()) return;  // a thread of the parent's may hold the mutex for ever
  ::pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += nevents;
  ::pthread_cond_signal(&cq->cond);
  ::pthread_mutex_unlock(&cq->mutex);
}
