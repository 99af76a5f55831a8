// send_lat and tagged_lat: one message each way in turn.
//
// Every message carries its sequence number in its first and last eight bytes, and both are checked
// at every arrival, so that a stale or early completion fails the measure.
#include <cstring>

#include "fabbench/messages.hpp"
#include "fabbench/messenger.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kSendSlot = 0, kReceiveSlot = 1;
// Longer messages are sent by fi_send although they might be injected: what an application does.
constexpr size_t kMostInjected = 256;

class PingPong final : public FabricTask {
 public:
  PingPong(const Setup& setup, Side& side, Matching matching, size_t size_bytes)
      : FabricTask(setup, side),
        messenger_(session_, matching, 2),
        size_(size_bytes),
        inject_(size_bytes <= kMostInjected && session_.can_inject(size_bytes)),
        out_(size_bytes, Pages::Kind::own),
        in_(size_bytes, Pages::Kind::own),
        out_region_(session_.register_local(out_.data(), size_bytes)),
        in_region_(session_.register_local(in_.data(), size_bytes)) {
    if (rank_ == 1) post_receive();
  }

  void verify(uint64_t seed, Channel&) override {
    if (rank_ == 1) {
      take();
      expect_pattern(seed);
      std::memcpy(out_.data(), in_.data(), size_);
      send();
      post_receive();
    } else {
      fill_pattern(out_.data(), size_, seed);
      std::memset(in_.data(), 0, size_);
      send();
      post_receive();
      take();
      expect_pattern(seed);
    }
    settle();
  }

  void initiate(uint64_t count, Samples& samples) override {
    uint64_t last = ticks();
    for (uint64_t i = 1; i <= count; i++) {
      stamp(i);
      send();
      const uint64_t now = ticks();  // while the message travels
      if (i > 1) samples.add(now - last);
      last = now;
      post_receive();
      take();
      expect_stamp(i);
    }
    settle();
  }

  void respond(uint64_t count) override {
    for (uint64_t i = 1; i <= count; i++) {
      take();
      expect_stamp(i);
      stamp(i);
      send();
      post_receive();
    }
    settle();
  }

  std::string note() const override {
    return (inject_ ? "inject, " : "send, ") + session_.registration_text();
  }

 private:
  void send() {
    if (inject_) {
      session_.post("room to inject", [&] { return messenger_.try_inject(out_.data(), size_); });
      return;
    }
    session_.post("room to send", [&] {
      return messenger_.try_send(out_.data(), size_, out_region_.desc, kSendSlot);
    });
    pending_ = true;
  }

  // The outgoing buffer is ours again.
  void settle() {
    if (!pending_) return;
    session_.await_tx("the completion of a send");
    pending_ = false;
  }

  void post_receive() { messenger_.receive(in_.data(), size_, in_region_.desc, kReceiveSlot); }

  void take() {
    const fi_cq_tagged_entry entry = session_.await_rx("a message");
    if (entry.len != size_) throw Failure("%zu bytes arrived instead of %zu", entry.len, size_);
  }

  void stamp(uint64_t sequence) {
    settle();
    std::memcpy(out_.data(), &sequence, sizeof sequence);
    std::memcpy(out_.data() + size_ - sizeof sequence, &sequence, sizeof sequence);
  }

  void expect_stamp(uint64_t sequence) const {
    uint64_t first, last;
    std::memcpy(&first, in_.data(), sizeof first);
    std::memcpy(&last, in_.data() + size_ - sizeof last, sizeof last);
    if (first != sequence || last != sequence) {
      throw Failure("message %lu arrived with the contents of %lu", sequence, first);
    }
  }

  void expect_pattern(uint64_t seed) const {
    const size_t at = first_mismatch(in_.data(), size_, seed);
    if (at != size_) throw Failure("wrong data at byte %zu of %zu", at, size_);
  }

  Messenger messenger_;
  const size_t size_;
  const bool inject_;
  bool pending_ = false;
  Pages out_, in_;
  Region out_region_, in_region_;
};

}  // namespace

std::unique_ptr<FabricTask> make_ping_pong(const Setup& setup, Side& side, Matching matching,
                                           size_t size_bytes) {
  return std::make_unique<PingPong>(setup, side, matching, size_bytes);
}

}  // namespace aperture::bench
