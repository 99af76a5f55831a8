// verbs_send_steps and verbs_write_imm_steps: see lockstep.hpp.
#include "stopwatch/lockstep.hpp"

#include "verbbench/exchange.hpp"

namespace aperture::bench {

// The two ends of a message as the counter sees them.
struct StepEnd {
  Session& session;
  Exchange& exchange;
};

extern "C" {

__attribute__((noinline)) int bench_step_send(StepEnd& end) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(end.session.link().qp(), &end.exchange.wr(), &bad);
}

// One look at the queue; then the next receive is posted, as any receiver has to.
__attribute__((noinline)) int bench_step_receive(StepEnd& end) {
  ibv_wc wc;
  const int got = ibv_poll_cq(end.session.rx_cq(), 1, &wc);
  if (got == 1 && wc.status == IBV_WC_SUCCESS) end.exchange.post_receive();
  return got == 1 && wc.status != IBV_WC_SUCCESS ? -1 : got;
}

}  // extern "C"

namespace {

class Steps final : public Lockstep<VerbsTask> {
 public:
  Steps(const Setup& setup, Side& side, Message message, size_t size_bytes)
      : Lockstep(setup, side),
        exchange_(session_, side.channel, message, size_bytes),
        posts_(session_, kQuietSpan),
        end_{session_, exchange_} {
    if (!session_.can_inline(size_bytes)) throw Failure("the device cannot inline so much");
    exchange_.post_receive();
  }

 protected:
  void prepare(uint64_t seed) override { fill_pattern(exchange_.out(), exchange_.size(), seed); }
  void send_uncounted() override { posts_.post(exchange_.wr()); }
  void take_uncounted(uint64_t seed) override {
    exchange_.expect_pattern(session_.await_rx("a message"), seed);
    exchange_.post_receive();
  }

  // One in 64 asks for a completion, which is taken uncounted.
  void step_send() override {
    posts_.post(exchange_.wr(), [this] { check("ibv_post_send", bench_step_send(end_)); });
  }
  bool step_receive() override {
    const int got = bench_step_receive(end_);
    if (got < 0) throw Failure("a receive that failed");
    return got == 1;
  }

 private:
  Exchange exchange_;
  SendPosts posts_;
  StepEnd end_;
};

}  // namespace

std::unique_ptr<VerbsTask> make_steps(const Setup& setup, Side& side, Message message,
                                      size_t size_bytes) {
  return std::make_unique<Steps>(setup, side, message, size_bytes);
}

}  // namespace aperture::bench
