// Offered messages when something is not to be had for a while, or at all: a pull is kept out, or
// there is no memory for the ring through which the sender pushes (tests/spin/offer.pml).
#include <sys/uio.h>

#include <cerrno>

#include "qp/pair.hpp"

namespace aperture::qp::test {
namespace {

// A lane without memory for the payload of its responses.
class StarvedLane final : public link::Lane {
 public:
  explicit StarvedLane(std::unique_ptr<link::Lane> lane) : lane_(std::move(lane)) {
    request_tx = lane_->request_tx;
    request_rx = lane_->request_rx;
    response_tx = lane_->response_tx;
    response_rx = lane_->response_rx;
    claims_out = lane_->claims_out;
    claims_in = lane_->claims_in;
    direct = lane_->direct;
    remote = lane_->remote;
    remote_domain = lane_->remote_domain;
    fence_always = lane_->fence_always;
  }
  bool prepare_request_bytes() noexcept override { return lane_->prepare_request_bytes(); }
  bool prepare_response_bytes() noexcept override { return false; }
  void ring_doorbell() noexcept override { lane_->ring_doorbell(); }

 private:
  std::unique_ptr<link::Lane> lane_;
};

class Offer : public OnePair<LinkKind> {
 protected:
  Offer() : OnePair(GetParam()) {}
  bool sent() { return !a().tx_cq.empty(); }
  bool arrived() { return !b().sink.messages.empty() && b().sink.all_done(); }

  std::vector<std::byte> data_ = pattern(1 << 20, 1);
};

TEST_P(Offer, message_whose_chunk_cannot_be_pushed_ends_with_its_connection_and_not_before) {
  pair_.lane_a = std::make_unique<StarvedLane>(std::move(pair_.lane_a));
  pair_.attach();
  ASSERT_TRUE(a().send(iov_of(data_), 1));
  ASSERT_TRUE(pair_.until([&] { return a().qp->broken(); }));
  EXPECT_EQ(a().qp->ending().why(), Errc::no_memory);
  EXPECT_FALSE(sent()) << "the receiver may be pulling from its buffer";
  const auto lane = a().qp->finish(Errc::peer_lost);
  ASSERT_TRUE(sent());
  EXPECT_EQ(take_end(a().tx_cq), Errc::no_memory);
  EXPECT_TRUE(a().tx_cq.empty());
  b().qp->ending().lose(Errc::peer_lost);
  ASSERT_TRUE(pair_.until([&] { return b().qp->needs_wind_up(); }, false, true));
  b().qp->finish(Errc::peer_lost);
  ASSERT_TRUE(arrived());
  EXPECT_EQ(b().sink.messages[0].err, Errc::peer_lost);
}

TEST_P(Offer, other_messages_and_their_sender_learn_of_it_once) {
  pair_.lane_a = std::make_unique<StarvedLane>(std::move(pair_.lane_a));
  pair_.attach();
  for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(a().send(iov_of(data_), i));
  ASSERT_TRUE(pair_.until([&] { return a().qp->broken(); }));
  pair_.settle();
  a().qp->finish(Errc::peer_lost);
  size_t for_want_of_memory = 0;
  for (int i = 0; i < 3; ++i) for_want_of_memory += take_end(a().tx_cq) == Errc::no_memory;
  EXPECT_TRUE(a().tx_cq.empty());
  EXPECT_EQ(for_want_of_memory, 1u);
}

// only a lane in shared memory can be without memory for its bytes
INSTANTIATE_TEST_SUITE_P(Links, Offer, kEachShared, link_name);

// Its receiver pulls, since the sender does not push.
class Pull : public testing::Test {
 protected:
  Pull() { pair_.attach(); }
  Side& a() { return *pair_.a; }
  Side& b() { return *pair_.b; }
  // False: the connection is over, or it takes too long.
  bool arrives(bool sender_pushes) {
    auto& messages = b().sink.messages;
    const bool over =
        pair_.until([&] { return b().qp->broken() || (!messages.empty() && b().sink.all_done()); },
                    sender_pushes, true);
    return over && !b().qp->broken() && messages[0].err == Errc::ok && messages[0].payload == data_;
  }

  Pair pair_{LinkKind::direct};
  std::vector<std::byte> data_ = pattern(1 << 20, 1);
};

// What its slot says, or the gate, when the pull looks at it is not what they say a moment later.
TEST_F(Pull, one_that_meets_another_permit_keeps_its_chunk_and_goes_on_under_its_own) {
  std::atomic<uint64_t>& gate = a().qp->lane()->request_rx.words().gate;
  const uint64_t number = gate.load();
  ASSERT_TRUE(a().send(iov_of(data_), 1));
  gate = number + 1;
  const uint64_t end = now_ns() + 50'000'000;  // many times the patience of a receiver
  while (now_ns() < end) b().poll();
  ASSERT_FALSE(b().qp->broken());
  EXPECT_FALSE(b().sink.all_done());
  gate = number;
  EXPECT_TRUE(arrives(false));
}

int g_refusals = 0;
ssize_t read_short_of_memory(pid_t pid, const iovec* local, unsigned long n_local,
                             const iovec* remote, unsigned long n_remote, unsigned long flags) {
  if (g_refusals > 0) {
    --g_refusals;
    errno = ENOMEM;
    return -1;
  }
  return ::process_vm_readv(pid, local, n_local, remote, n_remote, flags);
}

TEST_F(Pull, one_that_the_kernel_has_no_memory_for_is_tried_again) {
  auto* view = const_cast<protect::PeerKeyView*>(b().qp->lane()->direct.keys);
  view->set_copy_calls(nullptr, &read_short_of_memory);
  g_refusals = 3;
  ASSERT_TRUE(a().send(iov_of(data_), 1));
  EXPECT_TRUE(arrives(false));
  EXPECT_EQ(g_refusals, 0);
  ASSERT_TRUE(pair_.until([&] { return !a().tx_cq.empty(); }));
  EXPECT_EQ(take_end(a().tx_cq), Errc::ok);
}

}  // namespace
}  // namespace aperture::qp::test
