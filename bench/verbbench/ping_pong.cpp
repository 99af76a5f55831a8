// verbs_send_lat and verbs_write_imm_lat: one message each way in turn, both sides polling.
#include "harness/ping_pong.hpp"
#include "verbbench/exchange.hpp"

namespace aperture::bench {

namespace {

class Letters : public VerbsTask {
 public:
  Letters(const Setup& setup, Side& side, Message message, Signals signals, size_t size_bytes)
      : VerbsTask(setup, side, setup.waiting == Waiting::epoll ? Target::asleep : Target::polling),
        exchange_(session_, link_, message, size_bytes),
        // a buffer that is not copied at the post is not touched before its completion
        posts_(session_, link_,
               signals == Signals::all || !session_.can_inline(size_bytes) ? 1 : kQuietSpan) {
    exchange_.tell(side.channel);
  }

  std::string note() const override {
    return std::string(session_.setup().waiting == Waiting::epoll ? "epoll, " : "") +
           exchange_.text() + (session_.can_inline(exchange_.size()) ? ", inline" : "") +
           (posts_.asks_each_time() ? ", each signalled" : ", one in 64 signalled");
  }

 protected:
  std::byte* out() const noexcept { return exchange_.out(); }
  std::byte* in() const noexcept { return exchange_.in(); }
  size_t size() const noexcept { return exchange_.size(); }

  void send() { posts_.post(exchange_.wr()); }
  void settle() { posts_.settle(); }
  void post_receive() { exchange_.post_receive(); }
  void take_stamped(uint64_t sequence) { exchange_.expect_stamp(take(), sequence); }
  void take_pattern(uint64_t seed) { exchange_.expect_pattern(take(), seed); }
  void stamp(uint64_t sequence) {
    if (posts_.asks_each_time()) posts_.settle();
    exchange_.stamp(sequence);
  }

 private:
  ibv_wc take() { return session_.await_rx("a message"); }

  Exchange exchange_;
  SendPosts posts_;
};

}  // namespace

std::unique_ptr<VerbsTask> make_ping_pong(const Setup& setup, Side& side, Message message,
                                          Signals signals, size_t size_bytes) {
  return std::make_unique<PingPong<Letters>>(setup, side, message, signals, size_bytes);
}

}  // namespace aperture::bench
