// Raising and fetching completion events: see channel.hpp.
#include "verbs/channel.hpp"

#include <memory>

#include "verbs/cq.hpp"
#include "verbs/errors.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

namespace {

// Whoever waits does not poll: what arrives next shall ring the doorbell at once, rather than when
// the control thread notices that nobody polls.
void rest(Context& context) noexcept {
  nic::EngineGuard guard(context.engine());
  context.engine().poll();
  (void)context.engine().prepare_to_sleep();
}

}  // namespace

void Channel::raise(Cq& cq) noexcept {
  std::lock_guard guard(mutex);
  if (cq.events_waiting++ == 0) {
    cq.next_in_channel = nullptr;
    (last != nullptr ? last->next_in_channel : first) = &cq;
    last = &cq;
  }
  ready.set(true);
}

int Channel::take(Cq*& cq) noexcept {
  for (;;) {
    {
      std::lock_guard guard(mutex);
      if (first != nullptr) {
        cq = first;
        first = cq->next_in_channel;
        if (first == nullptr) last = nullptr;
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
        return 0;
      }
    }
    rest(*context);
    const int error = ready.wait();
    if (error != 0) return error;
  }
}

void Channel::forget(Cq& cq) noexcept {
  std::lock_guard guard(mutex);
  Cq* before = nullptr;
  for (Cq* at = first; at != nullptr; before = at, at = at->next_in_channel) {
    if (at != &cq) continue;
    (before != nullptr ? before->next_in_channel : first) = cq.next_in_channel;
    if (last == &cq) last = before;
    break;
  }
  cq.events_waiting = 0;
  ready.set(first != nullptr);
}

namespace {

int make_channel(Context& context, Channel*& made) {
  auto channel = std::make_unique<Channel>();
  if (const Status opened = channel->ready.open(); !opened.ok()) {
    return APERTURE_REFUSE(errno_of(opened), "ibv_create_comp_channel: its descriptor: %s",
                           describe(opened.error()));
  }
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
    if (channel.base.refcnt != 0) {
      return APERTURE_REFUSE(EBUSY, "ibv_destroy_comp_channel: %d completion queues still use it",
                             channel.base.refcnt);
    }
  }
  delete &channel;
  return 0;
}

}  // namespace

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  APERTURE_REAL(ibv_create_comp_channel, "IBVERBS_1.0");
  if (!is_ours(context)) return real.call_or<ibv_comp_channel*>(nullptr, context);
  auto* made = guarded_new<Channel>("ibv_create_comp_channel", [&](Channel*& out) {
    return make_channel(context_of(context), out);
  });
  return made != nullptr ? &made->base : nullptr;
}

APERTURE_VERB int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  APERTURE_REAL(ibv_destroy_comp_channel, "IBVERBS_1.0");
  if (!is_ours(channel->context)) return real.call_or(EOPNOTSUPP, channel);
  return guarded_release("ibv_destroy_comp_channel",
                         [&] { return destroy(object_of<Channel>(channel)); });
}

APERTURE_VERB int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  APERTURE_REAL(ibv_get_cq_event, "IBVERBS_1.1");
  if (!is_ours(channel->context)) return real.call_or(-1, channel, cq, cq_context);
  const int error = guarded("ibv_get_cq_event", [&] {
    Cq* ours = nullptr;
    const int failed = object_of<Channel>(channel).take(ours);
    if (failed != 0) return failed;
    *cq = ours->base();
    *cq_context = ours->ex.cq_context;
    return 0;
  });
  if (error == 0) return 0;
  errno = error;
  return -1;
}

APERTURE_VERB void ibv_ack_cq_events(ibv_cq* cq, unsigned int nevents) {
  APERTURE_REAL(ibv_ack_cq_events, "IBVERBS_1.1");
  if (!is_ours(cq->context)) {
    auto* real_ack = real.get();
    if (real_ack != nullptr) real_ack(cq, nevents);
    return;
  }
  ::pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += nevents;
  ::pthread_cond_signal(&cq->cond);
  ::pthread_mutex_unlock(&cq->mutex);
}
