// verbs_send_rate and verbs_send_bw: a stream of messages in one direction.
//
// The completions of a reliable connection are its acknowledgements, so nothing else limits the
// sender; a receiver that is late with its receives holds it up (receiver not ready). A part of the
// measure ends when the receiver has looked at everything, so that the next does not overtake it.
#include <cstring>

#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"
#include "verbbench/messages.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kSmall = 64;  // up to here every message has a buffer of its own

class Stream final : public VerbsTask {
 public:
  Stream(const Setup& setup, Side& side, size_t size_bytes, size_t window)
      : VerbsTask(setup, side),
        size_(size_bytes),
        window_(window),
        small_(size_bytes <= kSmall),
        channel_(side.channel),
        receives_(2 * window),
        memory_(small_ ? receives_ * kSmall : size_bytes, Pages::Kind::own),
        mr_(session_.register_memory(memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE)),
        piece_(piece_of(memory_.data(), size_, mr_)) {
    send_.sg_list = &piece_;
    send_.num_sge = 1;
    send_.opcode = IBV_WR_SEND;
    send_.send_flags = session_.can_inline(size_) ? unsigned{IBV_SEND_INLINE} : 0;
    if (rank_ == 1) {
      for (size_t i = 0; i < receives_; i++) post_receive(i);
    }
  }

  uint64_t granule() const override { return window_; }

  void verify(uint64_t seed, Channel& channel) override {
    if (rank_ == 0) {
      fill_pattern(memory_.data(), size_, seed);
      channel.receive_word();  // the target has wiped its buffers
      send(window_, [](uint64_t) {});
      return;
    }
    std::memset(memory_.data(), 0, memory_.size());
    channel.send_word(0);
    receive(window_, [&](const std::byte* at) {
      const size_t wrong = first_mismatch(at, size_, seed);
      if (wrong != size_) throw Failure("wrong data at byte %zu of %zu", wrong, size_);
    });
  }

  void initiate(uint64_t count, Samples&) override {
    send(count, [this](uint64_t i) {
      if (small_) std::memcpy(memory_.data(), &i, sizeof i);
    });
  }

  void respond(uint64_t count) override {
    uint64_t sum = 0;
    receive(count, [&](const std::byte* at) {
      uint64_t word;
      std::memcpy(&word, at, sizeof word);
      sum += word;
    });
    if (small_ && sum != count * (count - 1) / 2) {
      throw Failure("%lu messages arrived with wrong contents", count);
    }
  }

  std::string note() const override {
    return "send, window " + std::to_string(window_) +
           (small_ ? ", inline" : ", one buffer reused");
  }

 private:
  template <typename Prepare>
  void send(uint64_t count, Prepare&& prepare) {
    uint64_t acked = 0;
    const uint64_t span = small_ ? window_ / 2 : 1;
    const auto reap = [&] { acked += span * session_.poll_tx([](const ibv_wc&) {}); };
    for (uint64_t i = 0; i < count; i++) {
      Patience patience("the completion of a send");
      while (i >= acked + window_) {
        reap();
        patience.tick();
      }
      prepare(i);
      const bool ask = (i + 1) % span == 0;
      send_.send_flags = (send_.send_flags & ~unsigned{IBV_SEND_SIGNALED}) |
                         (ask ? unsigned{IBV_SEND_SIGNALED} : 0);
      link_.post(send_);
    }
    Patience patience("the completions of the last sends");
    while (acked < count) {
      reap();
      patience.tick();
    }
    channel_.receive_word();  // the target has looked at all of them
  }

  // count messages, each shown to look(buffer) before its receive is posted again.
  template <typename Look>
  void receive(uint64_t count, Look&& look) {
    for (uint64_t left = count; left > 0;) {
      Patience patience("a message");
      size_t got;
      while ((got = session_.poll_rx([&](const ibv_wc& wc) {
               if (wc.byte_len != size_) {
                 throw Failure("%u bytes arrived instead of %zu", wc.byte_len, size_);
               }
               look(buffer(wc.wr_id));
               post_receive(wc.wr_id);
             })) == 0) {
        patience.tick();
      }
      left -= got;
    }
    channel_.send_word(0);
  }

  std::byte* buffer(size_t slot) const noexcept {
    return memory_.data() + (small_ ? slot * kSmall : 0);
  }

  void post_receive(size_t slot) {
    ibv_sge piece = piece_of(buffer(slot), size_, mr_);
    ibv_recv_wr wr{};
    wr.wr_id = slot;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    link_.post(wr);
  }

  const size_t size_, window_;
  const bool small_;
  Channel& channel_;
  const size_t receives_;
  Pages memory_;
  Mr mr_;
  ibv_sge piece_;
  ibv_send_wr send_{};
};

}  // namespace

std::unique_ptr<VerbsTask> make_stream(const Setup& setup, Side& side, size_t size_bytes,
                                       size_t window) {
  return std::make_unique<Stream>(setup, side, size_bytes, window);
}

}  // namespace aperture::bench
