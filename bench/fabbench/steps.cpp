// send_steps and tagged_steps: see lockstep.hpp.
#include "fabbench/messages.hpp"
#include "fabbench/messenger.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/lockstep.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

// The two ends of a message as the counter sees them.
struct StepEnd {
  Session& session;
  Messenger& messenger;
  std::byte* out;
  std::byte* in;
  size_t size;
};

extern "C" {

__attribute__((noinline)) ssize_t bench_step_send(StepEnd& end) {
  return end.messenger.try_inject(end.out, end.size);
}

// One look at the queue; then the next receive is posted, as any receiver has to.
__attribute__((noinline)) size_t bench_step_receive(StepEnd& end) {
  const size_t got = end.session.poll_rx([](const fi_cq_tagged_entry&) {}, 1);
  if (got != 0) end.messenger.receive(end.in, end.size, nullptr, 0);
  return got;
}

}  // extern "C"

namespace {

class Steps final : public Lockstep<FabricTask> {
 public:
  Steps(const Setup& setup, Side& side, Matching matching, size_t size_bytes)
      : Lockstep(setup, side),
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

 protected:
  void prepare(uint64_t seed) override { fill_pattern(out_.data(), end_.size, seed); }
  void send_uncounted() override {
    session_.post("room to inject", [&] { return messenger_.try_inject(end_.out, end_.size); });
  }
  void take_uncounted(uint64_t seed) override {
    session_.await_rx("a message");
    const size_t at = first_mismatch(in_.data(), end_.size, seed);
    if (at != end_.size) throw Failure("wrong data at byte %zu of %zu", at, end_.size);
    messenger_.receive(in_.data(), end_.size, nullptr, 0);
  }
  void step_send() override {
    session_.post("room to inject", [&] { return bench_step_send(end_); });
  }
  bool step_receive() override { return bench_step_receive(end_) != 0; }

 private:
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
