// verbs_connect_lat: see connecting.hpp.
#include "verbbench/connecting.hpp"

#include "base/clock.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

namespace {

class Connecting final : public VerbsTask {
 public:
  Connecting(const Setup& setup, Side& side, size_t size_bytes)
      : VerbsTask(setup, side),
        out_(size_bytes, Pages::Kind::own),
        in_(size_bytes, Pages::Kind::own),
        out_mr_(session_.register_memory(out_.data(), size_bytes, 0)),
        in_mr_(session_.register_memory(in_.data(), size_bytes, IBV_ACCESS_LOCAL_WRITE)) {}

  void verify(uint64_t seed, Channel&) override { meet(seed); }

  void initiate(uint64_t count, Samples& samples) override {
    for (uint64_t i = 0; i < count; i++) {
      const uint64_t start = ticks();
      const std::unique_ptr<Link> link = meet(i);
      samples.add(ticks() - start);
    }
  }

  void respond(uint64_t count) override {
    for (uint64_t i = 0; i < count; i++) meet(i);
  }

  std::string note() const override {
    return "a queue pair each, numbers over a unix socket, RESET to RTS, a message and its answer";
  }

 private:
  // A link of both sides over which one message has gone each way.
  std::unique_ptr<Link> meet(uint64_t seed) {
    auto link = std::make_unique<Link>(session_);
    link->connect(channel_.exchange(link->end(), "address"));
    ibv_sge place = piece_of(in_.data(), in_.size(), in_mr_);
    ibv_recv_wr receive{};
    receive.sg_list = &place;
    receive.num_sge = 1;
    link->post(receive);
    channel_.send_word(0);  // ready to receive
    channel_.receive_word();
    if (rank_ == 0) say(*link, seed);
    const ibv_wc got = session_.await_rx("the first message");
    if (got.byte_len != in_.size())
      throw Failure("%u bytes instead of %zu", got.byte_len, in_.size());
    expect_pattern(in_.data(), in_.size(), rank_ == 0 ? ~seed : seed);
    if (rank_ == 1) say(*link, ~seed);
    session_.await_tx("the completion of a send");
    return link;
  }

  void say(Link& link, uint64_t seed) {
    fill_pattern(out_.data(), out_.size(), seed);
    ibv_sge piece = piece_of(out_.data(), out_.size(), out_mr_);
    ibv_send_wr send{};
    send.sg_list = &piece;
    send.num_sge = 1;
    send.opcode = IBV_WR_SEND;
    send.send_flags = IBV_SEND_SIGNALED;
    link.post(send);
  }

  Pages out_, in_;
  Mr out_mr_, in_mr_;
};

}  // namespace

std::unique_ptr<VerbsTask> make_connecting(const Setup& setup, Side& side, size_t size_bytes) {
  return std::make_unique<Connecting>(setup, side, size_bytes);
}

}  // namespace aperture::bench
