// A completion queue with a completion channel of its own, for a loop that sleeps in epoll on the
// channel's descriptor.
//
// As ibv_get_cq_event(3) has it: take the events until there are none, ask for the next one, then
// empty the queue, and only then sleep. Events are acknowledged in batches, since that is a mutex.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>

#include "stopwatch/epoll.hpp"
#include "verbbench/session.hpp"

namespace aperture::bench {

class EventQueue {
 public:
  EventQueue(ibv_context* context, int cqes)
      : channel_(check("ibv_create_comp_channel", ibv_create_comp_channel(context))),
        cq_(check("ibv_create_cq", ibv_create_cq(context, cqes, nullptr, channel_.get(), 0))) {
    make_nonblocking(channel_->fd);
    ask();
  }
  ~EventQueue() { acknowledge(); }  // ibv_destroy_cq(3) waits for it
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  ibv_cq* cq() const noexcept { return cq_.get(); }
  int fd() const noexcept { return channel_->fd; }

  // What has to be done once the descriptor can be read; the queue is to be emptied afterwards.
  void heed() {
    ibv_cq* cq;
    void* context;
    while (ibv_get_cq_event(channel_.get(), &cq, &context) == 0) unacknowledged_++;
    if (errno != EAGAIN) throw_errno("ibv_get_cq_event", errno);
    if (unacknowledged_ >= kAcknowledgedAtOnce) acknowledge();
    ask();
  }

 private:
  static constexpr unsigned kAcknowledgedAtOnce = 64;

  void ask() { check("ibv_req_notify_cq", ibv_req_notify_cq(cq_.get(), 0)); }
  void acknowledge() noexcept {
    if (unacknowledged_ != 0) ibv_ack_cq_events(cq_.get(), unacknowledged_);
    unacknowledged_ = 0;
  }

  OwnedVerbs<ibv_comp_channel, ibv_destroy_comp_channel> channel_;
  OwnedVerbs<ibv_cq, ibv_destroy_cq> cq_;
  unsigned unacknowledged_ = 0;
};

}  // namespace aperture::bench
