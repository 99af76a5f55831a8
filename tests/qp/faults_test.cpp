// Faults that a user asks for (link/faulty), as queue pairs of libfabric meet them: what is pending
// ends once, with the error of the fault; what was acknowledged before it is a success.
#include "qp/pair.hpp"

namespace aperture::qp::test {
namespace {

using protect::Rights;
using Ends = std::vector<Errc>;

class Faults : public testing::TestWithParam<LinkKind> {
 protected:
  // The ends of five writes, of which a fault strikes the one behind the first `before`, which are
  // over by then.
  static Ends ends_of_writes(const std::string& plan, size_t before, Errc struck) {
    Pair p(GetParam());
    p.set_faults(plan);
    p.make(p.a->domain, p.b->domain);
    p.attach();
    Guarded memory(64), from(8, 3);
    const auto region = p.region(*p.b, memory, Rights::remote_write);
    const RemoteRange there{memory.address(), from.size(), region.key};
    for (uint64_t i = 0; i < 5; ++i) {
      if (i == before) {
        EXPECT_TRUE(p.until([&] { return p.a->tx_cq.size() == before; }));
      }
      EXPECT_TRUE(p.a->write(iov_of(from), there, i + 1));
    }
    EXPECT_TRUE(p.until([&] { return p.struck(LanePair::Of::a) != Errc::ok; }));
    EXPECT_EQ(p.struck(LanePair::Of::a), struck);
    p.a->qp->ending().lose(struck);  // as first contact tells it
    EXPECT_TRUE(p.until([&] { return p.a->qp->ending().is_over(); }));
    EXPECT_NE(p.a->qp->finish(struck), nullptr);
    Ends ends;
    while (!p.a->tx_cq.empty()) ends.push_back(take_end(p.a->tx_cq));
    p.close(region);
    return ends;
  }
};

INSTANTIATE_TEST_SUITE_P(links, Faults,
                         testing::Values(LinkKind::delayed, LinkKind::delayed_stream), link_name);

TEST_P(Faults, a_write_that_nobody_answers_is_timed_out) {
  EXPECT_EQ(ends_of_writes("retry=after:2", 2, Errc::timed_out),
            (Ends{Errc::ok, Errc::ok, Errc::timed_out, Errc::timed_out, Errc::timed_out}));
}

TEST_P(Faults, writes_that_are_flushed_are_canceled) {
  EXPECT_EQ(ends_of_writes("flush=after:3", 3, Errc::canceled),
            (Ends{Errc::ok, Errc::ok, Errc::ok, Errc::canceled, Errc::canceled}));
}

TEST_P(Faults, writes_to_a_peer_that_dies_are_lost) {
  EXPECT_EQ(ends_of_writes("death=after:0", 0, Errc::peer_lost), Ends(5, Errc::peer_lost));
}

TEST_P(Faults, a_message_that_finds_no_receive_comes_later) {
  Pair p(GetParam());
  p.set_faults("rnr=5ms:after:1,delay=1ms:20%");
  p.make(p.a->domain, p.b->domain);
  p.attach();
  Guarded from(8, 3);
  const uint64_t begun = now_ns();
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(p.a->send(iov_of(from), i + 1));
  EXPECT_TRUE(p.until([&] { return p.b->sink.messages.size() == 4; }));
  EXPECT_GE(now_ns() - begun, 5'000'000u);
  EXPECT_TRUE(p.until([&] { return p.a->tx_cq.size() == 4; }));
  EXPECT_EQ(take_contexts(p.a->tx_cq), (std::vector<uint64_t>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace aperture::qp::test
