// verbs_read_lat, verbs_atomic_lat, verbs_write_bw, verbs_read_bw and their kin: rank 0 operates on
// the memory of rank 1, which polls or sleeps.
#include "verbbench/one_sided.hpp"
#include "base/clock.hpp"

#include <cstring>

#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kFewBytes = 4096;  // up to here several operations share a completion

ibv_wr_opcode opcode_of(Verb verb) noexcept {
  switch (verb) {
    case Verb::read: return IBV_WR_RDMA_READ;
    case Verb::write: return IBV_WR_RDMA_WRITE;
    case Verb::fetch_add: return IBV_WR_ATOMIC_FETCH_AND_ADD;
  }
  return IBV_WR_RDMA_READ;
}

class OneSided final : public VerbsTask {
 public:
  OneSided(const Setup& setup, Side& side, Target target, Verb verb, size_t size_bytes,
           size_t window)
      : VerbsTask(setup, side, target),
        verb_(verb),
        size_(size_bytes),
        window_(window),
        span_(window >= 4 && size_bytes <= kFewBytes ? window / 4 : 1),
        memory_(size_bytes, Pages::Kind::own),
        mr_(session_.register_remote(memory_.data(), size_bytes, side.channel, theirs_)),
        piece_(piece_of(memory_.data(), size_bytes, mr_)) {
    wr_.sg_list = &piece_;
    wr_.num_sge = 1;
    wr_.opcode = opcode_of(verb);
    if (verb == Verb::fetch_add) {
      wr_.wr.atomic = {theirs_.addr, 1, 0, theirs_.rkey};
    } else {
      wr_.wr.rdma = {theirs_.addr, theirs_.rkey};
    }
    inline_ = verb == Verb::write && session_.can_inline(size_bytes);
  }

  void greet() override { operate_once(); }

  void verify(uint64_t seed, Channel& channel) override {
    const bool source = (verb_ == Verb::write) == (rank_ == 0);
    if (source) {
      fill_pattern(memory_.data(), size_, seed);
    } else {
      std::memset(memory_.data(), 0, size_);
    }
    if (rank_ == 0) {
      channel.receive_word();  // the target's memory is ready
      operate_once();
      if (!source) expect_pattern(seed);
      channel.send_word(0);  // done: the target may look
      if (verb_ == Verb::fetch_add) sum_ = word() + 1;
      return;
    }
    channel.send_word(0);
    await_word(channel);
    if (!source) expect_pattern(seed);
  }

  void initiate(uint64_t count, Samples& samples) override {
    if (window_ == 1) {
      one_by_one(count, samples);
      return;
    }
    uint64_t done = 0;
    const auto reap = [&] { done += span_ * session_.poll_tx([](const ibv_wc&) {}); };
    for (uint64_t i = 0; i < count; i++) {
      Patience patience(awaited());
      while (i >= done + window_) {
        reap();
        patience.tick();
      }
      post((i + 1) % span_ == 0);
    }
    Patience patience(awaited());
    while (done < count) {
      reap();
      patience.tick();
    }
  }

  uint64_t granule() const override { return window_; }

  std::string note() const override {
    std::string text = target_ == Target::asleep ? "target asleep" : "target polling";
    if (inline_) text += ", inline";
    if (window_ == 1) return text;
    return text + ", window " + std::to_string(window_) + ", one in " + std::to_string(span_) +
           " signalled";
  }

 private:
  void one_by_one(uint64_t count, Samples& samples) {
    uint64_t last = ticks();
    for (uint64_t i = 0; i < count; i++) {
      // What is fetched must come from there, whatever lay here before.
      if (verb_ != Verb::write) std::memset(memory_.data(), 0, sizeof(uint64_t));
      operate_once();
      const uint64_t now = ticks();
      samples.add(now - last);
      last = now;
      if (verb_ == Verb::read && word() == 0) {
        throw Failure("a read completed before its data came");
      }
      if (verb_ == Verb::fetch_add && word() != sum_++) {
        throw Failure("an atomic fetched %lu instead of %lu", word(), sum_ - 1);
      }
    }
  }

  uint64_t word() const noexcept {
    uint64_t word;
    std::memcpy(&word, memory_.data(), sizeof word);
    return word;
  }

  void post(bool ask) {
    wr_.send_flags =
        (inline_ ? unsigned{IBV_SEND_INLINE} : 0) | (ask ? unsigned{IBV_SEND_SIGNALED} : 0);
    link_.post(wr_);
  }

  void operate_once() {
    post(true);
    session_.await_tx(awaited());
  }

  const char* awaited() const noexcept {
    return target_ == Target::asleep ? "an operation (target asleep)" : "an operation";
  }

  void expect_pattern(uint64_t seed) const {
    const size_t at = first_mismatch(memory_.data(), size_, seed);
    if (at != size_) throw Failure("wrong data at byte %zu of %zu", at, size_);
  }

  const Verb verb_;
  const size_t size_, window_, span_;
  bool inline_ = false;
  uint64_t sum_ = 0;  // that the next atomic has to fetch
  Pages memory_;
  RemoteRegion theirs_{};
  Mr mr_;
  ibv_sge piece_;
  ibv_send_wr wr_{};
};

}  // namespace

std::unique_ptr<VerbsTask> make_one_sided(const Setup& setup, Side& side, Target target, Verb verb,
                                          size_t size_bytes, size_t window) {
  return std::make_unique<OneSided>(setup, side, target, verb, size_bytes, window);
}

}  // namespace aperture::bench
