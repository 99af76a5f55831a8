// When an initiator takes the owner of a request for away: not while it polls, and later where it
// was wrong before. Lower bounds of time alone are asserted, which hold on a busy machine, too.
#include "transport/one_sided.hpp"

#include "base/barrier.hpp"
#include "link/lane_pair.hpp"

namespace aperture::transport {
namespace {

using link::test::LanePair;
using link::test::LinkKind;

class Patience : public testing::Test {
 protected:
  Patience() : pair_(LinkKind::direct) {
    pair_.make(1, 2);
    a_.attach(std::move(pair_.lane_a));
    b_.attach(std::move(pair_.lane_b));
    initiator_.begin();
  }
  ~Patience() override { initiator_.end(); }

  // How long a request at pos has to stand there until it is to be claimed; owner() is called while
  // it is waited for.
  template <typename Owner>
  uint64_t patience_ns(uint64_t pos, Owner&& owner) {
    const uint64_t began = now_ns();
    while (!initiator_.has_stalled(pos, 0) && now_ns() - began < kLongNs) owner();
    return now_ns() - began;
  }
  uint64_t patience_ns(uint64_t pos) {
    return patience_ns(pos, [] {});
  }
  // What becomes of a claim of a request that the owner is at, or is not.
  OneSided::Claimed claim(uint64_t pos, bool owner_is_there) {
    b_->request_rx.words().executing.store(pos + (owner_is_there ? 1 : 0));
    return initiator_.claim(pos, [] { return true; });
  }

  static constexpr uint64_t kLongNs = 50'000'000;
  LanePair pair_;
  LaneEnd a_, b_;
  OneSided initiator_{a_};
};

TEST_F(Patience, ends_for_an_owner_that_does_not_poll) {
  const uint64_t waited = patience_ns(0);
  EXPECT_GE(waited, kStallNs * 9 / 10);
  EXPECT_TRUE(initiator_.has_stalled(0, 0));
}

TEST_F(Patience, does_not_end_while_the_owner_polls) {
  uint64_t polls = 0;
  EXPECT_GE(patience_ns(0, [&] { b_->request_rx.count_poll(++polls); }), kLongNs);
}

TEST_F(Patience, is_longer_after_each_claim_that_the_owner_had_come_to_first_and_shorter_again) {
  uint64_t pos = 0;
  for (int i = 0; i < 5; ++i, ++pos) {
    EXPECT_EQ(claim(pos, true), OneSided::Claimed::not_ours);
  }
  EXPECT_GE(patience_ns(pos), 32 * kStallNs * 9 / 10);
  for (int i = 0; i < 5; ++i, ++pos) {
    EXPECT_EQ(claim(pos, false), OneSided::Claimed::done);
  }
  patience_ns(pos);
  EXPECT_TRUE(initiator_.has_stalled(pos, 0));
}

TEST_F(Patience, begins_anew_once_an_owner_that_was_away_polls) {
  EXPECT_EQ(claim(0, false), OneSided::Claimed::done);
  EXPECT_TRUE(initiator_.is_known_away());
  b_->request_rx.count_poll(16);
  EXPECT_FALSE(initiator_.is_known_away());
}

TEST_F(Patience, is_kept_with_heavy_barriers_that_are_counted) {
  const uint64_t before = heavy_barriers_passed();
  EXPECT_EQ(claim(0, false), OneSided::Claimed::done);
  EXPECT_EQ(heavy_barriers_passed(), before + 1);
  EXPECT_EQ(claim(1, true), OneSided::Claimed::not_ours);  // a look ahead spares it
  EXPECT_EQ(heavy_barriers_passed(), before + 1);
}

}  // namespace
}  // namespace aperture::transport
