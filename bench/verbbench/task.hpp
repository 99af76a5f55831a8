// A measure over one reliable connection.
#pragma once

#include "stopwatch/task.hpp"
#include "verbbench/session.hpp"

namespace aperture::bench {

class VerbsTask : public Task {
 public:
  VerbsTask(const Setup& setup, Side& side, Target target = Target::polling)
      : Task(side, target), session_(setup), link_(session_, side.channel) {}

  void progress(int calls) override { session_.progress(calls); }

 protected:
  Session session_;
  Link link_;
};

// Work requests of which one in so many asks for a completion, because a send queue gets its slots
// back only with one. At most two of these spans are under way.
class SendPosts {
 public:
  SendPosts(Session& session, Link& link, uint32_t span)
      : session_(session), link_(link), span_(span) {}

  void post(ibv_send_wr& wr) {
    post(wr, [&] { link_.post(wr); });
  }
  template <typename Post>
  void post(ibv_send_wr& wr, Post&& post) {
    if (++since_ < span_) {
      post();
      return;
    }
    since_ = 0;
    settle();
    wr.send_flags |= IBV_SEND_SIGNALED;
    post();
    wr.send_flags &= ~unsigned{IBV_SEND_SIGNALED};
    pending_ = true;
  }
  // The last completion that was asked for.
  void settle() {
    if (!pending_) return;
    session_.await_tx("the completion of a work request");
    pending_ = false;
  }
  bool asks_each_time() const noexcept { return span_ == 1; }

 private:
  Session& session_;
  Link& link_;
  const uint32_t span_;
  uint32_t since_ = 0;
  bool pending_ = false;
};

inline constexpr uint32_t kQuietSpan = 64;

}  // namespace aperture::bench
