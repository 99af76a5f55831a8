// Regions that belong to one endpoint: fi_mr(3), FI_MR_ENDPOINT, fi_mr_bind and fi_mr_enable.
#include "doors/mr_target.hpp"

namespace aperture::doors::mr {
namespace {

class RegionOfEndpoint : public Regions {
 protected:
  Options options(int more_modes = 0, uint64_t more_caps = 0) {
    return progressing(options_of(FI_MR_ENDPOINT | more_modes, more_caps));
  }
  // A page of the arena, bound to an endpoint and enabled.
  Remote bound(uint32_t id, uint64_t page, bool sibling = false) {
    const Remote r = registered(id, {{page * kPage, kPage}});
    EXPECT_EQ(target->bind_endpoint(id, sibling), 0);
    EXPECT_EQ(target->enable(id), 0);
    return r;
  }
};
INSTANTIATE_TEST_SUITE_P(reach, RegionOfEndpoint, every_reach(), reach_name);

TEST_P(RegionOfEndpoint, waits_to_be_bound_and_enabled) {
  open(options());
  const Remote r = registered(1, {{0, kPage}});
  refused(r, 0, 8);
  EXPECT_EQ(target->enable(1), -FI_EOPBADSTATE) << "to be bound first";
  refused(r, 0, 8);
  ASSERT_EQ(target->bind_endpoint(1), 0);
  refused(r, 0, 8);
  ASSERT_EQ(target->enable(1), 0);
  allowed(r, 0, kPage);
  EXPECT_EQ(target->bind_endpoint(1), -FI_EINVAL) << "it has one";
  alive();
}

TEST_P(RegionOfEndpoint, is_reached_through_that_endpoint_only) {
  open(options());
  const std::vector<uint8_t> sibling = target->open_sibling(options());
  const Remote of_first = bound(1, 0);
  const Remote of_sibling = bound(2, 1, true);
  allowed(of_first, 0, kPage);
  refused(of_sibling, 0, 8);
  reach(sibling);
  allowed(of_sibling, 0, kPage);
  refused(of_first, 0, 8);
  refused(of_first, 0, 0);
}

TEST_P(RegionOfEndpoint, is_reached_by_nobody_once_that_is_closed) {
  open(options(), 8, kStrictly);
  const std::vector<uint8_t> sibling = target->open_sibling(options());
  const Remote r = bound(1, 0);
  allowed(r, 0, 8);
  EXPECT_EQ(target->close(1), -FI_EBUSY) << "the endpoint is open";
  allowed(r, 0, 8);
  target->close_endpoint();
  reach(sibling);
  refused(r, 0, 8);
  target->close_endpoint(true);
  reach(target->open_sibling(options()));
  refused(r, 0, 8);
  EXPECT_EQ(target->close(1), 0);
  refused(r, 0, 8);
}

TEST_P(RegionOfEndpoint, may_have_counters_too) {
  open(options(FI_MR_RMA_EVENT, FI_RMA_EVENT), 8, kStrictly);
  target->open_counter(0);
  const Remote r = registered(1, {{0, kPage}}, kAllAccess, FI_RMA_EVENT);
  ASSERT_EQ(target->bind_counter(1, 0), 0);
  EXPECT_EQ(target->enable(1), -FI_EOPBADSTATE);
  ASSERT_EQ(target->bind_endpoint(1), 0);
  ASSERT_EQ(target->enable(1), 0);
  ASSERT_EQ(write(r, 0, 8), 0);
  EXPECT_TRUE(target->counts_to(0, 1));
  EXPECT_EQ(target->close(1), -FI_EBUSY);
  EXPECT_EQ(target->close_counter(0), 0);
  EXPECT_EQ(target->close(1), -FI_EBUSY) << "its endpoint is bound still";
  target->close_endpoint();
  EXPECT_EQ(target->close(1), 0);
}

TEST_P(RegionOfEndpoint, is_closed_before_it_or_after_it) {
  open(options());
  const Remote first = bound(1, 0), last = bound(2, 1);
  allowed(first, 0, 8);
  EXPECT_EQ(target->close(1), 0) << "its endpoint is open";
  refused(first, 0, 8);
  allowed(last, 0, 8);
  alive();
  target->close_endpoint();
  EXPECT_EQ(target->close(2), 0);
}

TEST_P(RegionOfEndpoint, strictly_is_closed_after_it) {
  open(options(), 8, kStrictly);
  const Remote r = bound(1, 0);
  EXPECT_EQ(target->close(1), -FI_EBUSY);
  allowed(r, 0, 8);
  target->close_endpoint();
  EXPECT_EQ(target->close(1), 0);
}

TEST(RegionOfEndpointCall, is_bound_without_flags_to_one_of_its_domain) {
  Node node(options_of(FI_MR_ENDPOINT)), other(options_of(FI_MR_ENDPOINT));
  uint8_t memory[64];
  Fid<fid_mr> owner = registered(node.domain(), memory, 64, kAllAccess, 1);
  fid_mr* made = owner.get();
  EXPECT_EQ(fi_mr_bind(made, &node.ep()->fid, FI_REMOTE_WRITE), -FI_EBADFLAGS);
  EXPECT_EQ(fi_mr_bind(made, &node.ep()->fid, 1), -FI_EBADFLAGS);
  EXPECT_EQ(fi_mr_bind(made, &other.ep()->fid, 0), -FI_EDOMAIN);
  EXPECT_EQ(fi_close(&owner.release()->fid), 0) << "nothing was bound";
}

}  // namespace
}  // namespace aperture::doors::mr
