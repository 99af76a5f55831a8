// verbs_read_lat, verbs_atomic_lat, verbs_write_bw, verbs_read_bw and their kin: rank 0 operates on
// the memory of rank 1, which polls or sleeps.
#include "verbbench/one_sided.hpp"

#include "harness/contents.hpp"
#include "harness/one_sided.hpp"

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

class Operations : public VerbsTask {
 public:
  Operations(const Setup& setup, Side& side, Target target, Verb verb, size_t size_bytes,
             size_t window, Ways ways)
      : VerbsTask(setup, side, target),
        size_(size_bytes),
        window_(window),
        ways_(ways),
        memory_(size_bytes, Pages::Kind::own),
        verb_(verb),
        span_(window >= 4 && size_bytes <= kFewBytes ? window / 4 : 1),
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

  std::string note() const override {
    std::string text = target_ == Target::asleep ? "target asleep" : "target polling";
    if (ways_ == Ways::both) text = "both ways";
    if (inline_) text += ", inline";
    if (window_ == 1) return text;
    return text + ", window " + std::to_string(window_) + ", one in " + std::to_string(span_) +
           " signalled";
  }

 protected:
  void stream(uint64_t count) {
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

  bool fetches() const noexcept { return verb_ != Verb::write; }
  void begin_samples() noexcept { sum_ = word() + 1; }
  void check_fetched() {
    if (verb_ == Verb::read && word() == 0) {
      throw Failure("a read completed before its data came");
    }
    if (verb_ == Verb::fetch_add && word() != sum_++) {
      throw Failure("an atomic fetched %lu instead of %lu", word(), sum_ - 1);
    }
  }

  void operate_once() {
    post(true);
    session_.await_tx(awaited());
  }

  const size_t size_, window_;
  const Ways ways_;
  Pages memory_;

 private:
  uint64_t word() const noexcept { return load_word(memory_.data()); }

  void post(bool ask) {
    wr_.send_flags =
        (inline_ ? unsigned{IBV_SEND_INLINE} : 0) | (ask ? unsigned{IBV_SEND_SIGNALED} : 0);
    link_.post(wr_);
  }

  const char* awaited() const noexcept {
    return target_ == Target::asleep ? "an operation (target asleep)" : "an operation";
  }

  const Verb verb_;
  const size_t span_;
  bool inline_ = false;
  uint64_t sum_ = 0;  // that the next atomic has to fetch
  RemoteRegion theirs_{};
  Mr mr_;
  ibv_sge piece_;
  ibv_send_wr wr_{};
};

}  // namespace

std::unique_ptr<VerbsTask> make_one_sided(const Setup& setup, Side& side, Target target, Verb verb,
                                          size_t size_bytes, size_t window, Ways ways) {
  return std::make_unique<OneSided<Operations>>(setup, side, target, verb, size_bytes, window,
                                                ways);
}

}  // namespace aperture::bench
