// verbs_send_lat and verbs_write_imm_lat: one message each way in turn, both sides polling.
//
// Every message carries its sequence number, which is checked at every arrival, so that a stale or
// early completion fails the measure.
#include "base/clock.hpp"
#include "verbbench/exchange.hpp"

namespace aperture::bench {

namespace {

class PingPong final : public VerbsTask {
 public:
  PingPong(const Setup& setup, Side& side, Message message, Signals signals, size_t size_bytes)
      : VerbsTask(setup, side),
        exchange_(session_, link_, message, size_bytes),
        // a buffer that is not copied at the post is not touched before its completion
        posts_(session_, link_,
               signals == Signals::all || !session_.can_inline(size_bytes) ? 1 : kQuietSpan) {
    exchange_.tell(side.channel);
    if (rank_ == 1) exchange_.post_receive();
  }

  void verify(uint64_t seed, Channel&) override {
    if (rank_ == 1) {
      exchange_.expect_pattern(take(), seed);
      std::memcpy(exchange_.out(), exchange_.in(), exchange_.size());
      send();
      exchange_.post_receive();
    } else {
      fill_pattern(exchange_.out(), exchange_.size(), seed);
      std::memset(exchange_.in(), 0, exchange_.size());
      send();
      exchange_.post_receive();
      exchange_.expect_pattern(take(), seed);
    }
    posts_.settle();
  }

  void initiate(uint64_t count, Samples& samples) override {
    uint64_t last = ticks();
    for (uint64_t i = 1; i <= count; i++) {
      stamp(i);
      send();
      const uint64_t now = ticks();  // while the message travels
      if (i > 1) samples.add(now - last);
      last = now;
      exchange_.post_receive();
      exchange_.expect_stamp(take(), i);
    }
    posts_.settle();
  }

  void respond(uint64_t count) override {
    for (uint64_t i = 1; i <= count; i++) {
      exchange_.expect_stamp(take(), i);
      stamp(i);
      send();
      exchange_.post_receive();
    }
    posts_.settle();
  }

  std::string note() const override {
    return std::string(exchange_.text()) +
           (session_.can_inline(exchange_.size()) ? ", inline" : "") +
           (posts_.asks_each_time() ? ", each signalled" : ", one in 64 signalled");
  }

 private:
  void send() { posts_.post(exchange_.wr()); }
  ibv_wc take() { return session_.await_rx("a message"); }
  void stamp(uint64_t sequence) {
    if (posts_.asks_each_time()) posts_.settle();
    exchange_.stamp(sequence);
  }

  Exchange exchange_;
  SendPosts posts_;
};

}  // namespace

std::unique_ptr<VerbsTask> make_ping_pong(const Setup& setup, Side& side, Message message,
                                          Signals signals, size_t size_bytes) {
  return std::make_unique<PingPong>(setup, side, message, signals, size_bytes);
}

}  // namespace aperture::bench
