// verbs_send_rate_epoll: one server, many clients, each connection with a completion channel of its
// own, as servers written for sockets have it once they speak verbs.
#include "harness/clients.hpp"

#include <vector>

#include "verbbench/event_queue.hpp"
#include "verbbench/messages.hpp"

namespace aperture::bench {

namespace {

constexpr int kCqes = 64;

class Ends : public VerbsTask {
 public:
  Ends(const Setup& setup, Side& side, size_t size_bytes)
      : VerbsTask(setup, side, Target::asleep),
        size_(size_bytes),
        out_(kClients * size_bytes, Pages::Kind::own),
        in_(kClients * size_bytes, Pages::Kind::own),
        out_mr_(session_.register_memory(out_.data(), out_.size(), 0)),
        in_mr_(session_.register_memory(in_.data(), in_.size(), IBV_ACCESS_LOCAL_WRITE)) {
    for (size_t i = 0; i < kClients; i++) {
      connections_.push_back(std::make_unique<Connection>(session_, side.channel));
      epoll_.add(connections_[i]->queue.fd(), i);
      post_receive(i);
    }
  }

  std::string note() const override {
    return "epoll, " + std::to_string(kClients) +
           " connections with a completion channel each, one send in 64 signalled";
  }

 protected:
  static constexpr size_t clients() noexcept { return kClients; }
  size_t size() const noexcept { return size_; }
  std::byte* out(size_t i) const noexcept { return out_.data() + i * size_; }
  std::byte* in(size_t i) const noexcept { return in_.data() + i * size_; }

  void send(size_t i) {
    Connection& connection = *connections_[i];
    ibv_sge piece = piece_of(out(i), size_, out_mr_);
    ibv_send_wr wr{};
    wr.wr_id = i;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = session_.can_inline(size_) ? unsigned{IBV_SEND_INLINE} : 0;
    if (++connection.since == kQuietSpan) {
      connection.since = 0;
      await_room(connection);
      connection.pending = true;
      wr.send_flags |= IBV_SEND_SIGNALED;
    }
    connection.link.post(wr);
  }

  template <typename Look>
  void take_some(Look&& look) {
    epoll_.wait("a message", [&](uint64_t i) {
      Connection& connection = *connections_[i];
      connection.queue.heed();
      // its peer sends no more before it has its answer: one receive is enough
      const auto take = [&](const ibv_wc& wc) {
        expect_length(wc.byte_len, size_);
        post_receive(i);
        look(i, in(i));
      };
      while (session_.poll(connection.queue.cq(), take) != 0) continue;
    });
  }

 private:
  struct Connection {
    Connection(Session& session, Channel& channel)
        : queue(session.context(), kCqes), link(session, queue.cq(), channel) {}

    EventQueue queue;
    Link link;
    uint32_t since = 0;    // sends since the last one that asked for a completion
    bool pending = false;  // which has not come yet
  };

  void post_receive(size_t i) {
    ibv_sge piece = piece_of(in(i), size_, in_mr_);
    ibv_recv_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    connections_[i]->link.post(wr);
  }

  void await_room(const Connection& connection) {
    Patience patience("the completion of a send");
    while (connection.pending) {
      session_.poll_tx([this](const ibv_wc& wc) { connections_[wc.wr_id]->pending = false; });
      patience.tick();
    }
  }

  const size_t size_;
  Pages out_, in_;
  Mr out_mr_, in_mr_;
  std::vector<std::unique_ptr<Connection>> connections_;
  Epoll epoll_;
};

}  // namespace

std::unique_ptr<VerbsTask> make_clients(const Setup& setup, Side& side, size_t size_bytes) {
  return std::make_unique<Clients<Ends>>(setup, side, size_bytes);
}

}  // namespace aperture::bench
