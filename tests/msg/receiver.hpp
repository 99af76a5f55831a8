// A receiver with a Matcher, and senders that are joined to it by lanes: what an endpoint is,
// without the network around it. Each sender's address-table index is its place in `senders`.
#pragma once

#include "msg/matcher.hpp"
#include "qp/pair.hpp"

namespace aperture::msg::test {

using namespace qp::test;  // NOLINT: what those tests have, these have
using qp::CompletionError;
using qp::RecvWr;
using qp::SendWr;

// A receive into one piece of memory.
inline constexpr auto recv_of = work_of<RecvWr>;

struct Scene {
  LinkKind link = LinkKind::loopback;
  size_t peers = 1;
  size_t cq_entries = 1024;
  bool directed = false;
  bool report_source = true;
};

class Receiver : public Matcher::Host {
 public:
  explicit Receiver(const Scene& scene) {
    const qp::test::Options o{.cq_entries = scene.cq_entries};
    for (size_t i = 0; i < scene.peers; ++i) {
      pairs_.push_back(std::make_unique<qp::test::Pair>(scene.link, o));
    }
    // all receiving queue pairs share the port of the first
    port_ = &pairs_[0]->b->port;
    port_->set_imm_flag(1);
    port_->recv_counter = &received;
    matcher = std::make_unique<Matcher>(*port_, *this, 16, scene.directed, scene.report_source);
    port_->sink = matcher.get();
    for (size_t i = 0; i < scene.peers; ++i) {
      auto& pair = *pairs_[i];
      if (i > 0) {
        Address other = pair.b->qp->remote();  // each peer has an address of its own
        other.port = static_cast<uint16_t>(other.port + i);
        pair.b->qp = std::make_unique<qp::Qp>(*port_, other);
      }
      pair.attach();
    }
  }
  ~Receiver() override {
    for (auto& pair : pairs_) {
      matcher->on_lost(*pair->b->qp, Errc::shut_down);
      pair->b->qp->finish(Errc::shut_down);
      pair->a->qp->finish(Errc::shut_down);
    }
    matcher->cancel_all(Errc::canceled);
  }

  uint64_t source_of(qp::Qp& qp) noexcept override {
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (pairs_[i]->b->qp.get() == &qp) return unknown_peer == i ? qp::kNoSource : i;
    }
    return qp::kNoSource;
  }
  void set_pressure(bool on) noexcept override {
    pressure_told += on ? 1 : -1;
    for (auto& pair : pairs_) pair->b->qp->set_pressure(on);
  }

  // Peer i is gone, as the endpoint tells it.
  void lose(size_t i) {
    matcher->on_lost(qp_of(i), Errc::peer_lost);
    qp_of(i).finish(Errc::peer_lost);
  }

  qp::test::Side& sender(size_t i = 0) { return *pairs_[i]->a; }
  qp::Qp& qp_of(size_t i = 0) { return *pairs_[i]->b->qp; }
  qp::Cq& cq() { return *port_->rx_cq; }

  // What was published arrives, and is not looked at.
  void move() {
    for (auto& pair : pairs_) pair->move();
  }
  void poll(int n = 1) {
    for (; n > 0; --n) {
      for (auto& pair : pairs_) {
        pair->a->poll();
        pair->b->poll();
      }
    }
  }
  bool until(const std::function<bool()>& so) {
    const uint64_t end = now_ns() + 20'000'000'000;
    for (;;) {
      if (so()) return true;
      if (now_ns() > end) return false;
      poll();
    }
  }

  // A tagged message from sender i; the payload must stay until it is received.
  Status send(uint64_t tag, const std::vector<std::byte>& data, size_t i = 0, bool tagged = true) {
    const iovec iov = iov_of(data);
    SendWr wr = send_of(iov, tag);
    wr.tagged = tagged;
    wr.tag = tag;
    wr.completion = false;
    wr.has_imm = with_imm;
    wr.imm = tag * 3;
    return sender(i).qp->requester().send(wr);
  }
  // Sends it and has it arrive.
  void deliver(uint64_t tag, const std::vector<std::byte>& data, size_t i = 0, bool tagged = true) {
    ASSERT_TRUE(until([&] { return send(tag, data, i, tagged).ok(); }));
    poll(30);
  }
  Status recv(uint64_t tag, Guarded& into, uint64_t context, uint64_t ignore = 0,
              uint64_t source = qp::kAnySource, bool tagged = true) {
    const iovec iov = iov_of(into);
    RecvWr wr = recv_of(iov, context);
    wr.tag = tag;
    wr.ignore = ignore;
    wr.source = source;
    wr.tagged = tagged;
    return matcher->recv(wr);
  }
  // The next completion must be a success of that context; returns it.
  qp::Completion expect(uint64_t context) {
    SCOPED_TRACE("context " + std::to_string(context));
    EXPECT_TRUE(until([&] { return !cq().empty(); }));
    const qp::Completion c = qp::test::take(cq());
    EXPECT_EQ(c.context, reinterpret_cast<void*>(context));
    return c;
  }
  // The next completions must be successes of contexts 0 to n - 1, one each, in the order in which
  // they were matched but for those of offered messages: two offered ones are copied side by side,
  // and the endpoint promises no order of completions (fi_endpoint(3), comp_order FI_ORDER_NONE).
  void expect_each(uint64_t n, bool offered) {
    std::vector<bool> seen(n);
    for (uint64_t i = 0; i < n; ++i) expect_one_of(seen, offered ? n : i);
  }
  // The next completion, of a context not in `seen` before: of `context`, or where that is
  // seen.size() of any.
  void expect_one_of(std::vector<bool>& seen, uint64_t context) {
    ASSERT_TRUE(until([&] { return !cq().empty(); }));
    ASSERT_FALSE(cq().error_first());
    const auto got = reinterpret_cast<uint64_t>(qp::test::take(cq()).context);
    ASSERT_LT(got, seen.size());
    EXPECT_FALSE(seen[got]) << "a second completion of context " << got;
    seen[got] = true;
    EXPECT_TRUE(context == seen.size() || got == context) << got << ", and not " << context;
  }
  // Posts a receive that completes; returns its completion.
  qp::Completion receive(uint64_t tag, Guarded& into, uint64_t context, uint64_t ignore = 0,
                         uint64_t source = qp::kAnySource) {
    EXPECT_TRUE(recv(tag, into, context, ignore, source));
    return expect(context);
  }
  CompletionError expect_error(uint64_t context, Errc err) {
    EXPECT_TRUE(until([&] { return !cq().empty(); }));
    if (cq().empty() || !cq().error_first()) {
      ADD_FAILURE() << "no error for context " << context;
      if (!cq().empty()) cq().pop();
      return {};
    }
    CompletionError e = cq().pop_error();
    EXPECT_EQ(e.entry.context, reinterpret_cast<void*>(context));
    EXPECT_EQ(e.err, err);
    return e;
  }

  std::unique_ptr<Matcher> matcher;
  qp::Counter received;
  bool with_imm = false;
  size_t unknown_peer = ~size_t{0};
  int pressure_told = 0;

 private:
  std::vector<std::unique_ptr<qp::test::Pair>> pairs_;
  qp::Port* port_ = nullptr;
};

// One size for each way a message may travel: in cells, through the byte ring, offered.
inline constexpr size_t kWays[] = {8, 200, 5000, 100000};
inline constexpr bool is_offered(size_t size) {
  return size == 100000;
}

inline bool begins_with(Guarded& memory, const std::vector<std::byte>& data) {
  return memory.canaries_intact() &&
         same_bytes(memory.data(), data.data(), std::min(memory.size(), data.size()));
}

}  // namespace aperture::msg::test
