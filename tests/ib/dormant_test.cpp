// A peer whose accessor slots were made dormant: its next access goes through the ring, and those
// after it go directly again.
#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

constexpr size_t kBytes = 64 * 1024;  // not one that goes by a cell
constexpr size_t kTarget = 1 << 20;

class Dormant : public testing::TestWithParam<SendOp> {};
INSTANTIATE_TEST_SUITE_P(Ops, Dormant, testing::Values(SendOp::write, SendOp::read),
                         [](const auto& op) {
                           return op.param == SendOp::write ? "write" : "read";
                         });

TEST_P(Dormant, first_access_goes_through_the_ring_and_the_next_directly) {
  ConnectedPair p(LinkKind::direct);
  protect::Accessors& accessors = p.lanes.keys->accessors();
  uint64_t id = 0;
  const auto goes = [&](bool target_polls) {
    p.b->qp->fall_asleep(ring::kUnnumbered);
    EXPECT_TRUE(p.a->post(GetParam(), ++id, 0, kBytes, p.b->address(kTarget), p.b->key()));
    return p.ended_of(p.a->send_cq, 1, true, target_polls) == Ended{{id, success}};
  };
  p.settle();
  ASSERT_TRUE(goes(false)) << "directly: the target does nothing";
  for (uint64_t round = 1; round < 4; ++round) {
    SCOPED_TRACE(round);
    accessors.look_for_idle(4 * round * protect::Accessors::kLookPauseNs);  // forgets what was
    accessors.look_for_idle((4 * round + 1) * protect::Accessors::kLookPauseNs);
    ASSERT_EQ(accessors.awake(), 0u);
    ASSERT_TRUE(goes(true));
    ASSERT_TRUE(p.until([&] { return accessors.awake() == 1; }));
    ASSERT_TRUE(goes(false)) << "directly again";
  }
}

}  // namespace
}  // namespace aperture::ib::test
