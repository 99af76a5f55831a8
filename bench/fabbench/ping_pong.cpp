// send_lat and tagged_lat: one message each way in turn.
#include "harness/ping_pong.hpp"
#include "fabbench/messages.hpp"
#include "fabbench/messenger.hpp"
#include "harness/contents.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kSendSlot = 0, kReceiveSlot = 1;
// Longer messages are sent by fi_send although they might be injected: what an application does.
constexpr size_t kMostInjected = 256;

// One message of each side, and the buffers of both.
class Letters : public FabricTask {
 public:
  Letters(const Setup& setup, Side& side, Matching matching, size_t size_bytes)
      : FabricTask(setup, side, setup.waiting == Waiting::epoll ? Target::asleep : Target::polling),
        asleep_(setup.waiting == Waiting::epoll),
        messenger_(session_, matching, 2),
        size_(size_bytes),
        inject_(size_bytes <= kMostInjected && session_.can_inject(size_bytes)),
        out_(size_bytes, Pages::Kind::own),
        in_(size_bytes, Pages::Kind::own),
        out_region_(session_.register_local(out_.data(), size_bytes)),
        in_region_(session_.register_local(in_.data(), size_bytes)) {}

  std::string note() const override {
    return std::string(asleep_ ? "epoll, " : "") + (inject_ ? "inject, " : "send, ") +
           session_.registration_text();
  }

 protected:
  std::byte* out() const noexcept { return out_.data(); }
  std::byte* in() const noexcept { return in_.data(); }
  size_t size() const noexcept { return size_; }

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

  void stamp(uint64_t sequence) {
    settle();
    stamp_ends(out(), size_, sequence);
  }

  void take_stamped(uint64_t sequence) {
    take();
    expect_stamped_ends(in(), size_, sequence);
  }

  void take_pattern(uint64_t seed) {
    take();
    expect_pattern(in(), size_, seed);
  }

 private:
  void take() { expect_length(session_.await_rx("a message").len, size_); }

  const bool asleep_;
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
  return std::make_unique<PingPong<Letters>>(setup, side, matching, size_bytes);
}

}  // namespace aperture::bench
