// atomic_lat and atomic_rate: FI_SUM of 1 to a 64-bit word of the target, by fi_fetch_atomic and by
// fi_inject_atomic (or fi_atomic where the provider cannot inject). fi_atomic(3).
//
// Every value is accounted for: a fetching add must return the sum of all before it, and a stream
// is over when the word that is fetched holds every one of its additions.
#include "fabbench/atomics.hpp"

#include "fabbench/messenger.hpp"
#include "harness/contents.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kWord = 64;  // a cache line for each word

class Adding : public FabricTask {
 public:
  Adding(const Setup& setup, Side& side, Target target)
      : FabricTask(setup, side, target),
        memory_(3 * kWord, Pages::Kind::own),
        local_(session_.register_local(memory_.data(), 2 * kWord)),
        region_(
            session_.register_remote(memory_.data() + 2 * kWord, kWord, side.channel, remote_)) {}

  void greet() override { fetch_add(0); }

  void verify(uint64_t seed, Channel& channel) override {
    if (rank_ == 1) {
      store_word(word(), seed);
      channel.send_word(0);
      await_word(channel);
      const uint64_t now = load_word(word());
      if (now != seed + 1) throw Failure("the word holds %lu instead of %lu", now, seed + 1);
      channel.send_word(0);
      return;
    }
    channel.receive_word();  // the target's word is ready
    sum_ = seed;
    const uint64_t before = fetch_add(1);
    if (before != seed) throw Failure("an atomic fetched %lu instead of %lu", before, seed);
    channel.send_word(0);  // done: the target may look
    channel.receive_word();
  }

 protected:
  // What was there before.
  uint64_t fetch_add(uint64_t value) {
    store_word(operand(), value);
    session_.post("room for an atomic", [&] {
      return fi_fetch_atomic(session_.ep(), operand(), 1, local_.desc, result(), local_.desc,
                             session_.peer(), remote_.base, remote_.key, FI_UINT64, FI_SUM,
                             &slot_.context);
    });
    session_.await_tx("the completion of a fetching atomic");
    sum_ += value;
    return load_word(result());
  }

  std::byte* operand() const noexcept { return memory_.data(); }
  std::byte* result() const noexcept { return memory_.data() + kWord; }
  std::byte* word() const noexcept { return memory_.data() + 2 * kWord; }  // the peer's to add to

  Pages memory_;
  Slot slot_{};
  RemoteRegion remote_{};
  Region local_, region_;
  uint64_t sum_ = 0;  // what the target's word holds when all is done
};

class Fetching final : public Adding {
 public:
  using Adding::Adding;

  void initiate(uint64_t count, Samples& samples) override {
    uint64_t last = ticks();
    for (uint64_t i = 0; i < count; i++) {
      const uint64_t expected = sum_;
      const uint64_t before = fetch_add(1);
      const uint64_t now = ticks();
      samples.add(now - last);
      last = now;
      if (before != expected) throw Failure("an atomic fetched %lu, not %lu", before, expected);
    }
  }

  std::string note() const override {
    return std::string(target_ == Target::asleep ? "target asleep, " : "target polling, ") +
           session_.registration_text();
  }
};

class Posted final : public Adding {
 public:
  Posted(const Setup& setup, Side& side, size_t window)
      : Adding(setup, side, Target::polling),
        inject_(session_.can_inject(sizeof(uint64_t))),
        slots_(session_, window) {}

  void initiate(uint64_t count, Samples&) override {
    store_word(operand(), 1);
    for (uint64_t i = 0; i < count; i++) inject_ ? inject_one() : post_one();
    sum_ += count;
    slots_.settle("the completions of the last atomics");
    Patience patience("the target's word to hold every addition");
    while (fetch_add(0) != sum_) patience.tick();
  }

  uint64_t granule() const override { return slots_.size(); }

  std::string note() const override {
    return std::string(inject_ ? "fi_inject_atomic, " : "fi_atomic, window ") +
           (inject_ ? "" : std::to_string(slots_.size()) + ", ") + session_.registration_text();
  }

 private:
  void inject_one() {
    session_.post("room to inject", [&] {
      return fi_inject_atomic(session_.ep(), operand(), 1, session_.peer(), remote_.base,
                              remote_.key, FI_UINT64, FI_SUM);
    });
  }

  void post_one() {
    const size_t slot = slots_.take("the completion of an atomic");
    session_.post(
        "room for an atomic",
        [&] {
          return fi_atomic(session_.ep(), operand(), 1, local_.desc, session_.peer(), remote_.base,
                           remote_.key, FI_UINT64, FI_SUM, slots_.context(slot));
        },
        [this] { slots_.reap(); });
  }

  const bool inject_;
  Slots slots_;
};

}  // namespace

std::unique_ptr<FabricTask> make_fetching(const Setup& setup, Side& side, Target target) {
  return std::make_unique<Fetching>(setup, side, target);
}

std::unique_ptr<FabricTask> make_posted(const Setup& setup, Side& side, size_t window) {
  return std::make_unique<Posted>(setup, side, window);
}

}  // namespace aperture::bench
