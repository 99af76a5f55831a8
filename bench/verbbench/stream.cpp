// verbs_send_rate and verbs_send_bw: a stream of messages in one direction.
//
// The completions of a reliable connection are its acknowledgements, so nothing else limits the
// sender; a receiver that is late with its receives holds it up (receiver not ready). A part of the
// measure ends when the receiver has looked at everything, so that the next does not overtake it.
#include "harness/stream.hpp"
#include "harness/contents.hpp"
#include "verbbench/messages.hpp"

namespace aperture::bench {

namespace {

class Ends : public VerbsTask {
 public:
  Ends(const Setup& setup, Side& side, size_t size_bytes, size_t window)
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

  void initiate(uint64_t count, Samples&) override {
    send(count, [this](uint64_t i) {
      if (small_) store_word(memory_.data(), i);
    });
  }

  std::string note() const override {
    return "send, window " + std::to_string(window_) +
           (small_ ? ", inline" : ", one buffer reused");
  }

 protected:
  void fill(uint64_t seed) { fill_pattern(memory_.data(), size_, seed); }
  void send_window() {
    send(window_, [](uint64_t) {});
  }

  template <typename Look>
  size_t take_some(Look& look) {
    return session_.poll_rx([&](const ibv_wc& wc) {
      expect_length(wc.byte_len, size_);
      look(buffer(wc.wr_id));
      post_receive(wc.wr_id);
    });
  }
  void taken(size_t, uint64_t left) {
    if (left == 0) channel_.send_word(0);
  }

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

  const size_t size_, window_;
  const bool small_;
  Channel& channel_;
  const size_t receives_;
  Pages memory_;

 private:
  std::byte* buffer(size_t slot) const noexcept { return stream_buffer(memory_, small_, slot); }

  void post_receive(size_t slot) {
    ibv_sge piece = piece_of(buffer(slot), size_, mr_);
    ibv_recv_wr wr{};
    wr.wr_id = slot;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    link_.post(wr);
  }

  Mr mr_;
  ibv_sge piece_;
  ibv_send_wr send_{};
};

}  // namespace

std::unique_ptr<VerbsTask> make_stream(const Setup& setup, Side& side, size_t size_bytes,
                                       size_t window) {
  return std::make_unique<Stream<Ends>>(setup, side, size_bytes, window);
}

}  // namespace aperture::bench
