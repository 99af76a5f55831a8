// send_rate, tagged_rate, send_bw and tagged_bw: a stream of messages in acknowledged windows.
#include <vector>

#include "fabbench/messages.hpp"
#include "fabbench/messenger.hpp"
#include "harness/contents.hpp"
#include "harness/stream.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kAck = 8;      // bytes of an acknowledgement
constexpr size_t kWindows = 2;  // in flight

class Ends : public FabricTask {
 public:
  Ends(const Setup& setup, Side& side, Matching matching, size_t size_bytes, size_t window)
      : FabricTask(setup, side),
        size_(size_bytes),
        window_(window),
        small_(size_bytes <= kSmall),
        inject_(small_ && session_.can_inject(size_bytes)),
        slots_(window * kWindows),
        // the stream's slots first, then those of the acknowledgements
        messenger_(session_, matching, slots_ + kWindows),
        memory_(small_ ? slots_ * kSmall : size_bytes, Pages::Kind::own),
        acks_(kWindows * kSmall, Pages::Kind::own),
        region_(session_.register_local(memory_.data(), memory_.size())),
        ack_region_(session_.register_local(acks_.data(), acks_.size())) {
    for (size_t i = 0; i < slots_; i++) free_.push_back(i);
    for (size_t i = 0; i < kWindows; i++) free_acks_.push_back(slots_ + i);
    if (rank_ == 1) {
      for (size_t i = 0; i < slots_; i++) post_receive(i);
    } else {
      for (size_t i = 0; i < kWindows; i++) post_ack_receive(slots_ + i);
    }
  }

  void initiate(uint64_t count, Samples&) override {
    const uint64_t windows = count / window_;
    uint64_t acked = 0, sequence = 0;
    for (uint64_t w = 0; w < windows; w++) {
      while (w >= acked + kWindows) acked += await_acks(1);
      for (size_t i = 0; i < window_; i++) send_next(sequence++);
    }
    if (acked < windows) await_acks(windows - acked);
    settle();
  }

  std::string note() const override {
    return std::string(inject_ ? "inject, " : "send, ") + "window " + std::to_string(window_) +
           (small_ ? ", " : ", one buffer reused, ") + session_.registration_text();
  }

 protected:
  void fill(uint64_t seed) {
    settle();
    for (size_t i = 0; i < slots_; i++) fill_pattern(buffer(i), size_, seed);
  }
  void send_window() {
    for (size_t i = 0; i < window_; i++) send_from(take_slot());
    await_acks(1);
    settle();
  }

  template <typename Look>
  size_t take_some(Look& look) {
    return session_.poll_rx([&](const fi_cq_tagged_entry& entry) {
      expect_length(entry.len, size_);
      const size_t slot = messenger_.slot_of(entry.op_context);
      look(buffer(slot));
      post_receive(slot);
    });
  }
  void taken(size_t got, uint64_t) {
    for (in_window_ += got; in_window_ >= window_; in_window_ -= window_) acknowledge();
  }

  const size_t size_, window_;
  const bool small_, inject_;
  const size_t slots_;
  Messenger messenger_;
  Pages memory_, acks_;

 private:
  std::byte* buffer(size_t slot) const noexcept { return stream_buffer(memory_, small_, slot); }
  std::byte* ack_buffer(size_t slot) const noexcept {
    return acks_.data() + (slot - slots_) * kSmall;
  }

  void post_receive(size_t slot) { messenger_.receive(buffer(slot), size_, region_.desc, slot); }
  void post_ack_receive(size_t slot) {
    messenger_.receive(ack_buffer(slot), kAck, ack_region_.desc, slot);
  }

  // Completed sends give their slots back.
  void reap() {
    session_.poll_tx([this](const void* context) {
      const size_t slot = messenger_.slot_of(context);
      (slot < slots_ ? free_ : free_acks_).push_back(slot);
    });
  }

  void settle() {
    Patience patience("the completions of the last sends");
    while (free_.size() != slots_) {
      reap();
      session_.linger(patience);
    }
  }

  size_t take_slot() {
    Patience patience("the completion of a send");
    while (free_.empty()) {
      reap();
      session_.linger(patience);
    }
    const size_t slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void send_from(size_t slot) {
    if (inject_) {
      session_.post(
          "room to inject", [&] { return messenger_.try_inject(buffer(slot), size_); },
          [this] { relieve(); });
      free_.push_back(slot);
      return;
    }
    session_.post(
        "room to send",
        [&] { return messenger_.try_send(buffer(slot), size_, region_.desc, slot); },
        [this] { relieve(); });
  }

  void send_next(uint64_t sequence) {
    if (inject_) {
      store_word(memory_.data(), sequence);
      session_.post(
          "room to inject", [&] { return messenger_.try_inject(memory_.data(), size_); },
          [this] { relieve(); });
      return;
    }
    const size_t slot = take_slot();
    if (small_) store_word(buffer(slot), sequence);
    send_from(slot);
  }

  void relieve() {
    reap();
    session_.progress();
  }

  // At least that many acknowledgements; returns how many came.
  uint64_t await_acks(uint64_t least) {
    Patience patience("the acknowledgement of a window");
    uint64_t got = 0;
    while (got < least) {
      got += session_.poll_rx([this](const fi_cq_tagged_entry& entry) {
        if (entry.len != kAck) throw Failure("an acknowledgement of %zu bytes", entry.len);
        post_ack_receive(messenger_.slot_of(entry.op_context));
      });
      if (got < least && free_.size() != slots_) reap();
      session_.linger(patience);
    }
    return got;
  }

  void acknowledge() {
    if (session_.can_inject(kAck)) {
      session_.post("room to inject", [&] { return messenger_.try_inject(acks_.data(), kAck); });
      return;
    }
    Patience patience("the completion of an acknowledgement");
    while (free_acks_.empty()) {
      reap();
      session_.linger(patience);
    }
    const size_t slot = free_acks_.back();
    free_acks_.pop_back();
    session_.post("room to send", [&] {
      return messenger_.try_send(ack_buffer(slot), kAck, ack_region_.desc, slot);
    });
  }

  Region region_, ack_region_;
  std::vector<size_t> free_, free_acks_;
  size_t in_window_ = 0;  // messages taken and not yet acknowledged
};

}  // namespace

std::unique_ptr<FabricTask> make_stream(const Setup& setup, Side& side, Matching matching,
                                        size_t size_bytes, size_t window) {
  return std::make_unique<Stream<Ends>>(setup, side, matching, size_bytes, window);
}

}  // namespace aperture::bench
