// verbs_send_steps and verbs_write_imm_steps: a ping-pong for counting instructions.
//
// Both ends lie in rank 0, each with a device context of its own, and take turns without a pause:
// nobody polls in vain, and the device's thread, which takes over where nobody polls for a while,
// has nothing to do. bench/instructions has callgrind count only inside the two functions with C
// names: the cost of one message to its sender and to its receiver.
#include "base/clock.hpp"
#include "verbbench/exchange.hpp"

namespace aperture::bench {

// One end of the connection, as the counter sees it.
struct StepEnd {
  StepEnd(const Setup& setup, Message message, size_t size_bytes)
      : session(setup),
        link(session),
        exchange(session, link, message, size_bytes),
        posts(session, link, kQuietSpan) {
    if (!session.can_inline(size_bytes)) throw Failure("the device cannot inline so much");
  }

  Session session;
  Link link;
  Exchange exchange;
  SendPosts posts;
};

extern "C" {

__attribute__((noinline)) void bench_step_send(StepEnd& end) {
  end.link.post(end.exchange.wr());
}

// One look at the queue; then the next receive is posted, as any receiver has to.
__attribute__((noinline)) int bench_step_receive(StepEnd& end, ibv_wc& wc) {
  const int got = ibv_poll_cq(end.session.rx_cq(), 1, &wc);
  if (got == 1) end.exchange.post_receive();
  return got;
}

}  // extern "C"

namespace {

class Steps final : public Task {
 public:
  Steps(const Setup& setup, Side& side, Message message, size_t size_bytes)
      : Task(side, Target::asleep) {
    if (rank_ != 0) return;
    for (auto& end : ends_) end = std::make_unique<StepEnd>(setup, message, size_bytes);
    for (int i = 0; i < 2; i++) {
      ends_[i]->link.connect(ends_[1 - i]->link.end());
      ends_[i]->exchange.learn(ends_[1 - i]->exchange.mine());
    }
    for (auto& end : ends_) end->exchange.post_receive();
  }

  // Uncounted, and often enough for the ends to have found their path.
  void verify(uint64_t seed, Channel&) override {
    for (uint64_t i = 0; rank_ == 0 && i < kMeetings; i++) {
      for (int from = 0; from < 2; from++) {
        Exchange& out = ends_[from]->exchange;
        Exchange& in = ends_[1 - from]->exchange;
        fill_pattern(out.out(), out.size(), seed + i);
        ends_[from]->posts.post(out.wr());
        in.expect_pattern(await(1 - from), seed + i);
        in.post_receive();
      }
    }
  }

  void initiate(uint64_t count, Samples& samples) override {
    for (uint64_t i = 0; i < count; i++) {
      const uint64_t start = ticks();
      for (int from = 0; from < 2; from++) pass(from, i);
      samples.add(ticks() - start);
    }
  }

  void progress(int calls) override {
    for (auto& end : ends_) {
      if (end) end->session.progress(calls);
    }
  }

  std::string note() const override {
    char text[96];
    std::snprintf(text, sizeof text, "one process, %s, inline, %.2f polls per message",
                  ends_[0] ? ends_[0]->exchange.text() : "",
                  static_cast<double>(polls_) / static_cast<double>(messages_));
    return text;
  }

 private:
  static constexpr uint64_t kMeetings = 100;

  // Both ends are progressed: they meet only if both are.
  ibv_wc await(int at) {
    ibv_wc seen{};
    bool here = false;
    Patience patience("a message");
    while (!here) {
      patience.tick();
      progress(1);
      here = ibv_poll_cq(ends_[at]->session.rx_cq(), 1, &seen) == 1;
    }
    if (seen.status != IBV_WC_SUCCESS) throw_completion_error(seen);
    return seen;
  }

  void pass(int from, uint64_t sequence) {
    StepEnd& out = *ends_[from];
    StepEnd& in = *ends_[1 - from];
    out.exchange.stamp(sequence);
    out.posts.post(out.exchange.wr(), [&] { bench_step_send(out); });
    Patience patience("a message");
    ibv_wc wc{};
    for (polls_++; bench_step_receive(in, wc) == 0; polls_++) patience.tick();
    if (wc.status != IBV_WC_SUCCESS) throw_completion_error(wc);
    in.exchange.expect_stamp(wc, sequence);
    messages_++;
  }

  std::unique_ptr<StepEnd> ends_[2];  // rank 0
  uint64_t polls_ = 0;
  uint64_t messages_ = 0;
};

}  // namespace

std::unique_ptr<Task> make_steps(const Setup& setup, Side& side, Message message,
                                 size_t size_bytes) {
  return std::make_unique<Steps>(setup, side, message, size_bytes);
}

}  // namespace aperture::bench
