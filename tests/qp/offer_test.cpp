// Offered messages when there is no memory for the ring through which the sender pushes
// (tests/spin/offer.pml).
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
  EXPECT_FALSE(sent()) << "the receiver may be pulling from its buffer";
  const auto lane = a().qp->finish(Errc::peer_lost);
  ASSERT_TRUE(sent());
  EXPECT_EQ(take_end(a().tx_cq), Errc::no_memory);
  EXPECT_TRUE(a().tx_cq.empty());
  b().qp->lose(Errc::peer_lost);
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

INSTANTIATE_TEST_SUITE_P(Links, Offer, kEachLink, link_name);

}  // namespace
}  // namespace aperture::qp::test
