// Raising and fetching completion events: see channel.hpp.
#include "verbs/channel.hpp"

#include <cassert>

#include "base/cancellable.h"
#include "base/clock.hpp"
#include "verbs/cq.hpp"
#include "verbs/errors.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

namespace {

constexpr uint64_t kLookNs = 20'000;  // what a sleep and a wake-up cost

// For a thread that sleeps on the descriptor next: what arrives shall ring the doorbell at once,
// rather than when the control thread notices that nobody polls.
void rest(nic::Engine& engine) noexcept {
  nic::EngineGuard guard(engine);
  engine.poll();
  (void)engine.prepare_to_sleep();
}

}  // namespace

void Channel::raise(DeviceCq& cq) noexcept {
  std::lock_guard guard(mutex);
  if (cq.events_waiting++ == 0) {
    cq.next_in_channel = nullptr;
    (last != nullptr ? last->next_in_channel : first) = &cq;
    last = &cq;
  }
  if (looking == 0) ready.set(true);
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
  // inside our mutex: a destruction that takes the events back sees this one as handed out
  ::pthread_mutex_lock(&cq->ex.mutex);
  ++cq->handed_events;
  ::pthread_mutex_unlock(&cq->ex.mutex);
  return true;
}

// A peer that answers at once is met here, without the two wake-ups (control thread, then we) that
// a sleep costs.
bool Channel::look_a_while(DeviceCq*& cq) noexcept {
  {
    std::lock_guard guard(mutex);
    ++looking;
  }
  bool taken = false;
  for (const uint64_t until = now_ns() + kLookNs; !taken && now_ns() < until;) {
    {
      nic::EngineGuard guard(context->engine());
      context->engine().poll();
    }
    taken = take_first(cq);
  }
  std::lock_guard guard(mutex);
  assert(looking != 0);
  --looking;
  ready.set(first != nullptr);  // others who sleep on the descriptor
  return taken;
}

Channel::Taken Channel::take(DeviceCq*& cq) noexcept {
  if (take_first(cq)) return Taken::event;
  if (ready.blocks()) return look_a_while(cq) ? Taken::event : Taken::must_sleep;
  rest(context->engine());
  return take_first(cq) ? Taken::event : Taken::none;
}

// The application's thread in place of the control thread, which would have to be woken first.
// False: it cannot, there is a lane that must be polled or something to do.
bool Channel::begin_sleep() noexcept {
  nic::Engine& engine = context->engine();
  nic::EngineGuard guard(engine);
  engine.poll();
  const bool asleep = engine.prepare_to_sleep();
  if (asleep) engine.begin_wait();
  return asleep;
}

void Channel::end_sleep(void* channel) noexcept {
  nic::Engine& engine = static_cast<Channel*>(channel)->context->engine();
  nic::EngineGuard guard(engine);
  engine.end_wait();
}

int Channel::sleep() {
  const bool asleep = begin_sleep();
  pollfd either[] = {{ready.get(), POLLIN, 0}, {context->engine().sleep_fd(), POLLIN, 0}};
  if (has_event()) {
    if (asleep) end_sleep(this);
    return 0;
  }
  // where a lane must be polled, the control thread does that, and raises the event
  const int n = asleep ? aperture_cancellable_poll(either, 2, -1, &end_sleep, this)
                       : aperture_cancellable_poll(either, 1, -1, nullptr, nullptr);
  return n < 0 ? errno : 0;
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
}

namespace {

int make_channel(Context& context, Channel*& made) {
  auto channel = std::make_unique<Channel>();
  if (const Status opened = channel->ready.open(); !opened.ok())
    return refuse(errno_of(opened), "ibv_create_comp_channel: its descriptor: %s",
                  describe(opened.error()));
  channel->base.context = context.base();
  channel->base.fd = channel->ready.get();
  channel->context = &context;
  channel->use_context = ContextUse(context);
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
