// Several buffers as one region: fi_mr(3), fi_mr_regv, mr_iov and iov_count.
#include "doors/mr_target.hpp"

namespace aperture::doors::mr {
namespace {

class SeveralBuffers : public Regions {};
INSTANTIATE_TEST_SUITE_P(reach, SeveralBuffers, every_reach(), reach_name);

TEST_P(SeveralBuffers, are_one_range_in_the_order_given) {
  open(options_of(0));
  target->fill({0, 8 * kPage}, 7);
  const std::vector<Part> parts = {
      {4 * kPage + 100, 50}, {0, 0}, {kPage + 4000, 200}, {64, 1}, {5 * kPage, 2 * kPage}};
  const Remote r = registered(1, parts);
  ASSERT_EQ(r.size, 251 + 2 * kPage);
  ASSERT_EQ(write(r, 0, r.size, 5), 0);
  uint64_t at = 0;
  for (const Part& p : parts) {
    EXPECT_TRUE(target->holds(p, 5, at)) << p.offset;
    // neither side of it was touched
    if (p.offset != 0) {
      EXPECT_TRUE(target->holds({p.offset - 8, 8}, 7, p.offset - 8)) << p.offset;
    }
    const uint64_t end = p.offset + p.len;
    if (p.len != 0) {
      EXPECT_TRUE(target->holds({end, 8}, 7, end)) << p.offset;
    }
    at += p.len;
  }
  ASSERT_EQ(read(r, 0, r.size), 0);
  EXPECT_TRUE(got_is(5));
  // every place where one buffer ends and the next begins, and around it
  for (const uint64_t edge : {uint64_t{50}, uint64_t{250}, uint64_t{251}}) {
    for (uint64_t before = 0; before < 4; ++before) {
      ASSERT_EQ(write(r, edge - before, 4, 100 + before), 0);
      ASSERT_EQ(read(r, edge - before, 4), 0);
      EXPECT_TRUE(got_is(100 + before));
    }
  }
  refused(r, r.size - 7, 8);
  EXPECT_EQ(write(r, r.size, 1), FI_EACCES);
  EXPECT_EQ(write(r, r.size, 0), 0) << "no bytes at its end";
  alive();
}

TEST_P(SeveralBuffers, are_addressed_from_the_first_ones_address_with_fi_mr_virt_addr) {
  open(options_of(FI_MR_VIRT_ADDR));
  const Remote r = registered(1, {{5 * kPage, 100}, {0, 100}});
  ASSERT_NE(r.base, 0u);
  ASSERT_EQ(write(r, 0, 200, 6), 0);
  EXPECT_TRUE(target->holds({5 * kPage, 100}, 6));
  EXPECT_TRUE(target->holds({0, 100}, 6, 100));
  Remote second = r;
  second.base -= 5 * kPage;  // where the second buffer lies
  refused(second, 0, 8);
  refused(r, ~uint64_t{0}, 1);
  refused(r, 193, 8);
  alive();
}

TEST_P(SeveralBuffers, may_be_sixteen) {
  open(options_of(0), 400);
  std::vector<Part> parts;
  uint64_t total = 0;
  for (uint64_t i = 0; i < 16; ++i) {
    parts.push_back({(15 - i) * 24 * kPage + i * 8, i % 4 == 3 ? 20 * kPage + 3 : 100 + i});
    total += parts.back().len;
  }
  const Remote r = registered(1, parts);
  ASSERT_EQ(write(r, 0, total, 8), 0);
  uint64_t at = 0;
  for (const Part& p : parts) {
    EXPECT_TRUE(target->holds(p, 8, at)) << p.offset;
    at += p.len;
  }
  ASSERT_EQ(read(r, 1, total - 1), 0);
  EXPECT_TRUE(got_is(8, 1));
  refused(r, 1, total);
  parts.push_back({0, 8});
  EXPECT_EQ(target->reg(2, parts), -FI_EINVAL) << "one more than mr_iov_limit";
  EXPECT_GE(node->info()->domain_attr->mr_iov_limit, 16u);
}

TEST_P(SeveralBuffers, atomics_stay_in_one_of_them) {
  open(options_of(0));
  const Remote r = registered(1, {{0, 12}, {kPage, 12}, {2 * kPage + 4, 24}});
  const auto all_refused = [&](uint64_t offset) {
    EXPECT_EQ(add(r, offset), FI_EACCES) << offset;
    EXPECT_EQ(fetch(r, offset, FI_SUM), FI_EACCES) << offset;
    EXPECT_EQ(compare(r, offset), FI_EACCES) << offset;
  };
  ASSERT_EQ(write(r, 0, 48, 9), 0);
  all_refused(8);   // the end of the first and the beginning of the second
  all_refused(20);  // likewise, of the second and the third
  all_refused(24);  // inside the third, but not aligned there
  EXPECT_EQ(read(r, 0, 48), 0);
  EXPECT_TRUE(got_is(9)) << "refused atomics change nothing";
  EXPECT_EQ(add(r, 0), 0);
  EXPECT_EQ(add(r, 12), 0) << "the beginning of the second buffer is aligned";
  EXPECT_EQ(add(r, 28), 0) << "it is the address that counts";
  alive();
}

TEST_P(SeveralBuffers, long_accesses_run_over_all_of_them) {
  open(options_of(FI_MR_VIRT_ADDR), 300);
  const Remote r = registered(1, {{100 * kPage + 5, 100 * kPage}, {3, 90 * kPage}});
  ASSERT_EQ(write(r, 0, r.size, 11), 0);
  EXPECT_TRUE(target->holds({3, 90 * kPage}, 11, 100 * kPage));
  ASSERT_EQ(read(r, 0, r.size), 0);
  EXPECT_TRUE(got_is(11));
}

TEST(SeveralBuffersCall, every_one_is_checked) {
  Node node(options_of(FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY));
  std::vector<uint8_t> memory(3 * kPage);
  const auto reg = [&](iovec second, size_t count = 2) {
    const iovec iov[] = {{memory.data(), 100}, second, {memory.data(), 1}};
    fid_mr* mr = nullptr;
    const int rc = fi_mr_regv(node.domain(), iov, count, kAllAccess, 0, 0, 0, &mr, nullptr);
    EXPECT_EQ(rc == 0, mr != nullptr);
    if (mr != nullptr) fi_close(&mr->fid);
    return rc;
  };
  EXPECT_EQ(reg({memory.data() + kPage, kPage}), 0);
  EXPECT_EQ(reg({memory.data() + kPage, 0}), 0) << "an empty buffer is one";
  EXPECT_EQ(reg({nullptr, 8}), -FI_EFAULT) << "FI_MR_ALLOCATED holds for every buffer";
  EXPECT_EQ(reg({memory.data(), SIZE_MAX}), -FI_EINVAL) << "runs past the end of memory";
  EXPECT_EQ(reg({nullptr, SIZE_MAX - 50}), -FI_EINVAL) << "together they do";
  EXPECT_EQ(reg({memory.data(), 8}, 0), -FI_EINVAL) << "no buffer at all";
}

}  // namespace
}  // namespace aperture::doors::mr
