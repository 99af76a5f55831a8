// send_rate_threads_N: the threads of each process share one endpoint and its queues.
#include "harness/shared_stream.hpp"

#include <memory>

#include "fabbench/messages.hpp"
#include "fabbench/messenger.hpp"
#include "harness/contents.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kWord = 8;

class Ends : public FabricTask {
 public:
  Ends(const Setup& setup, Side& side, unsigned threads)
      : FabricTask(setup, side),
        threads_(threads),
        messenger_(session_, Matching::plain, slots()),
        memory_(slots() * kSmall, Pages::Kind::own),
        region_(session_.register_local(memory_.data(), memory_.size())) {
    if (!session_.can_inject(kWord)) throw Failure("the provider injects less than 8 bytes");
    for (size_t i = 0; i < slots(); i++) post_receive(i);
  }

  std::string note() const override {
    return "inject, one endpoint for the threads of each side: " + std::to_string(threads_) + ", " +
           session_.registration_text();
  }

 protected:
  unsigned threads() const noexcept { return threads_; }

  void send_one(unsigned, uint64_t word, bool) { inject(word); }

  template <typename Credit>
  void poll_credits(Credit&& credit) {
    take_some([&](uint64_t word) { credit(static_cast<unsigned>(word)); });
  }

  template <typename Look>
  size_t take_some(Look&& look) {
    return session_.poll_rx([&](const fi_cq_tagged_entry& entry) {
      expect_length(entry.len, kWord);
      const size_t slot = messenger_.slot_of(entry.op_context);
      const uint64_t word = load_word(buffer(slot));
      post_receive(slot);
      look(word);
    });
  }

  void acknowledge(unsigned thread) { inject(thread); }

 private:
  // Of what all threads of the other side may have under way, and of acknowledgements less.
  size_t slots() const noexcept { return threads_ * kSpan * (kSpans + 1); }
  std::byte* buffer(size_t slot) const noexcept { return memory_.data() + slot * kSmall; }
  void post_receive(size_t slot) { messenger_.receive(buffer(slot), kWord, region_.desc, slot); }
  void inject(uint64_t word) {
    session_.post("room to inject", [&] { return messenger_.try_inject(&word, sizeof word); });
  }

  const unsigned threads_;
  Messenger messenger_;
  Pages memory_;
  Region region_;
};

}  // namespace

std::unique_ptr<FabricTask> make_shared_stream(const Setup& setup, Side& side, unsigned threads) {
  return std::make_unique<SharedStream<Ends>>(setup, side, threads);
}

}  // namespace aperture::bench
