// A peer whose accessor slots were made dormant: its next access goes through the ring, and those
// after it go directly again.
#include "qp/pair.hpp"

namespace aperture::qp::test {
namespace {

using protect::Rights;

class Dormant : public testing::Test {
 protected:
  void SetUp() override {
    pair_.attach();
    b().qp->fall_asleep(ring::kUnnumbered);
  }
  Side& a() { return *pair_.a; }
  Side& b() { return *pair_.b; }
  protect::Accessors& accessors() { return pair_.keys->accessors(); }
  // Whether it ends well; the target takes part, or not.
  bool write(bool target_polls) {
    const iovec local = iov_of(from_);
    if (!a().write(local, {target_.address(), target_.size(), region_.key}, 1)) return false;
    // no target is woken as fast as that; one that is has no need of direct accesses
    for (int i = 0; i < 3; ++i) a().poll();
    return pair_.until([&] { return !a().tx_cq.empty(); }, true, target_polls) &&
           take(a().tx_cq).len == target_.size();
  }
  void make_dormant() {
    clock_ += 2 * protect::Accessors::kLookPauseNs;
    accessors().look_for_idle(clock_);  // forgets what was
    accessors().look_for_idle(clock_ + protect::Accessors::kLookPauseNs);
    ASSERT_EQ(accessors().awake(), 0u);
  }

  Pair pair_{LinkKind::direct};
  Guarded target_{64};
  std::vector<std::byte> from_ = pattern(64, 1);
  protect::RegionHandle region_ = pair_.region(b(), target_, Rights::remote_write);
  uint64_t clock_ = 0;
};

TEST_F(Dormant, first_access_goes_through_the_ring_and_the_next_directly) {
  ASSERT_TRUE(write(false)) << "directly: the target does nothing";
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    make_dormant();
    ASSERT_TRUE(write(true));
    ASSERT_TRUE(pair_.until([&] { return accessors().awake() == 1; }));
    b().qp->fall_asleep(ring::kUnnumbered);
    ASSERT_TRUE(write(false)) << "directly again";
  }
  EXPECT_EQ(target_.get(), from_);
  EXPECT_TRUE(target_.canaries_intact());
}

TEST_F(Dormant, many_accesses_ask_once) {
  make_dormant();
  const iovec local = iov_of(from_);
  for (uint64_t i = 1; i <= 40; ++i) {
    ASSERT_TRUE(a().write(local, {target_.address(), target_.size(), region_.key}, i));
    for (int poll = 0; poll < 100; ++poll) a().poll();
  }
  ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 40; }));
  EXPECT_EQ(take_contexts(a().tx_cq).size(), 40u);
  EXPECT_EQ(accessors().awake(), 1u);
  EXPECT_FALSE(a().qp->broken() || b().qp->broken());
}

}  // namespace
}  // namespace aperture::qp::test
