// send_steps and tagged_steps: a ping-pong in lockstep, for counting instructions.
//
// The sides take turns over the channel, so nobody polls in vain: every message is there before its
// receiver looks. bench/instructions has callgrind count only inside the two functions with C
// names: the cost of one message to its sender and to its receiver.
#include <cstdio>
#include <cstring>

#include "fabbench/messages.hpp"
#include "fabbench/messenger.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

// The two ends of a message as the counter sees them.
struct StepEnd {
  Session& session;
  Messenger& messenger;
  std::byte* out;
  std::byte* in;
  size_t size;
  uint64_t polls = 0;
  uint64_t messages = 0;
};

extern "C" {

__attribute__((noinline)) ssize_t bench_step_send(StepEnd& end) {
  return end.messenger.try_inject(end.out, end.size);
}

// One look at the queue; then the next receive is posted, as any receiver has to.
__attribute__((noinline)) size_t bench_step_receive(StepEnd& end) {
  end.polls++;
  const size_t got = end.session.poll_rx([](const fi_cq_tagged_entry&) {}, 1);
  if (got != 0) end.messenger.receive(end.in, end.size, nullptr, 0);
  return got;
}

}  // extern "C"

namespace {

constexpr uint64_t kMeetings = 100;

class Steps final : public FabricTask {
 public:
  Steps(const Setup& setup, Side& side, Matching matching, size_t size_bytes)
      : FabricTask(setup, side),
        channel_(side.channel),
        messenger_(session_, matching, 1),
        out_(size_bytes, Pages::Kind::own),
        in_(size_bytes, Pages::Kind::own),
        end_{session_, messenger_, out_.data(), in_.data(), size_bytes} {
    if (!session_.can_inject(size_bytes)) throw Failure("the provider cannot inject so much");
    if ((session_.info().domain_attr->mr_mode & FI_MR_LOCAL) != 0) {
      throw Failure("instructions are counted without FI_MR_LOCAL");
    }
    messenger_.receive(in_.data(), size_bytes, nullptr, 0);
  }

  // Uncounted, and often enough for the endpoints to have found their path. Both sides progress the
  // provider while they wait: with manual progress they may not meet without it.
  void verify(uint64_t seed, Channel&) override {
    for (uint64_t i = 0; i < kMeetings; i++) {
      fill_pattern(out_.data(), end_.size, seed + i);
      if (rank_ == 0) send_uncounted();
      session_.await_rx("a message");
      expect_pattern(in_.data(), end_.size, seed + i);
      messenger_.receive(in_.data(), end_.size, nullptr, 0);
      if (rank_ == 1) send_uncounted();
    }
    // Rank 0 has the last message already; rank 1 progresses its own until that is said.
    if (rank_ == 0) channel_.send_word(0);
    if (rank_ == 1) await_word(channel_);
  }

  void initiate(uint64_t count, Samples& samples) override {
    for (uint64_t i = 0; i < count; i++) {
      const uint64_t start = ticks();
      send();
      take();
      samples.add(ticks() - start);
    }
  }

  void respond(uint64_t count) override {
    for (uint64_t i = 0; i < count; i++) {
      take();
      send();
    }
  }

  std::string note() const override {
    char text[96];
    std::snprintf(text, sizeof text, "lockstep, inject, %.2f polls per message",
                  static_cast<double>(end_.polls) / static_cast<double>(end_.messages));
    return text;
  }

 private:
  void send() {
    session_.post("room to inject", [&] { return bench_step_send(end_); });
    channel_.send_word(0);
  }

  void send_uncounted() {
    session_.post("room to inject", [&] { return messenger_.try_inject(end_.out, end_.size); });
  }

  // Asleep until the message is there: nothing of it may be done before the counted call.
  void take() {
    channel_.receive_word();
    Patience patience("a message");
    while (bench_step_receive(end_) == 0) session_.linger(patience);
    end_.messages++;
  }

  Channel& channel_;
  Messenger messenger_;
  Pages out_, in_;
  StepEnd end_;
};

}  // namespace

std::unique_ptr<FabricTask> make_steps(const Setup& setup, Side& side, Matching matching,
                                       size_t size_bytes) {
  return std::make_unique<Steps>(setup, side, matching, size_bytes);
}

}  // namespace aperture::bench
