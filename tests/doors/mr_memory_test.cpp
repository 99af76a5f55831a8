// Regions over memory that is not there, not there yet, or not for writing; fi_mr(3): "Scalable
// Memory Registration", FI_MR_ALLOCATED, FI_MR_MMU_NOTIFY and fi_mr_refresh.
#include <sys/mman.h>

#include "doors/mr_target.hpp"

namespace aperture::doors::mr {
namespace {

class Memory : public Regions {};
INSTANTIATE_TEST_SUITE_P(reach, Memory, every_reach(), reach_name);

TEST_P(Memory, need_not_be_backed_when_it_is_registered) {
  open(options_of(0));
  target->unmap(2, 3);
  const Remote r = registered(1, {{0, 8 * kPage}});
  refused(r, 2 * kPage, 8);
  refused(r, 3 * kPage, kPage);
  EXPECT_EQ(write(r, 2 * kPage - 8, 16), FI_EACCES) << "half of it is there";
  EXPECT_EQ(read(r, 4 * kPage + 4000, 200), FI_EACCES);
  alive();
  allowed(r, 0, 2 * kPage);
  allowed(r, 5 * kPage, 3 * kPage);
  target->map(2, 3);
  allowed(r, 2 * kPage, 3 * kPage);
  allowed(r, 0, 8 * kPage);
}

TEST_P(Memory, that_goes_away_in_long_accesses_is_an_error_and_not_a_signal) {
  open(options_of(FI_MR_VIRT_ADDR), 300);
  const Remote r = registered(1, {{0, 300 * kPage}});
  target->unmap(200);
  EXPECT_EQ(write(r, 0, 300 * kPage), FI_EACCES);
  EXPECT_EQ(write(r, 100, 201 * kPage), FI_EACCES);
  EXPECT_EQ(write(r, 200 * kPage, kPage), FI_EACCES);
  alive();
  target->map(200);
  ASSERT_EQ(write(r, 0, 300 * kPage, 12), 0);
  ASSERT_EQ(read(r, 0, 300 * kPage), 0);
  EXPECT_TRUE(got_is(12));
}

TEST_P(Memory, that_is_for_reading_is_not_written) {
  open(options_of(0));
  target->fill({0, 4 * kPage}, 3);
  const Remote r = registered(1, {{0, 4 * kPage}});
  target->protect(1, 2, PROT_READ);
  EXPECT_EQ(write(r, kPage, 8), FI_EACCES);
  EXPECT_EQ(write(r, kPage, 2 * kPage), FI_EACCES);
  EXPECT_EQ(add(r, kPage), FI_EACCES);
  EXPECT_EQ(fetch(r, kPage, FI_SUM), FI_EACCES);
  EXPECT_EQ(compare(r, kPage), FI_EACCES);
  EXPECT_EQ(read(r, 0, 4 * kPage), 0);
  EXPECT_TRUE(got_is(3));
  target->protect(1, 1, PROT_NONE);
  refused(r, kPage, 8);
  alive();
  target->protect(1, 2, PROT_READ | PROT_WRITE);
  EXPECT_TRUE(target->holds({0, 4 * kPage}, 3));
  allowed(r, 0, 4 * kPage);
}

TEST_P(Memory, must_be_backed_with_fi_mr_allocated) {
  open(options_of(FI_MR_ALLOCATED));
  target->unmap(5);
  EXPECT_EQ(target->reg(1, {{0, 8 * kPage}}), -FI_EFAULT) << "a hole";
  EXPECT_EQ(target->reg(1, {{4 * kPage + 1, kPage}}), -FI_EFAULT) << "its last byte";
  EXPECT_EQ(target->reg(1, {{0, kPage}, {5 * kPage, 1}}), -FI_EFAULT) << "in any buffer";
  EXPECT_EQ(target->reg(1, {{4 * kPage, kPage}}), 0) << "up to the hole";
  target->map(5);
  EXPECT_EQ(target->reg(2, {{0, 8 * kPage}}), 0);
  allowed(target->remote(), 0, 8 * kPage);
}

TEST_P(Memory, is_populated_with_fi_mr_allocated) {
  open(options_of(FI_MR_ALLOCATED), 32);
  ASSERT_EQ(target->resident(0, 32), 0u);
  ASSERT_EQ(target->reg(1, {{4 * kPage + 1, 2 * kPage}}), 0);
  EXPECT_EQ(target->resident(4, 3), 3u) << "every page that it touches";
  ASSERT_EQ(target->reg(2, {{16 * kPage, kPage}}, FI_REMOTE_READ), 0);
  EXPECT_EQ(target->resident(8, 8), 0u) << "and no other";
}

TEST_P(Memory, is_not_touched_by_a_registration_without_fi_mr_allocated) {
  open(options_of(0), 32);
  ASSERT_EQ(target->reg(1, {{0, 32 * kPage}}), 0);
  EXPECT_EQ(target->resident(0, 32), 0u);
}

TEST_P(Memory, must_be_writable_with_fi_mr_allocated_if_it_is_to_be_written) {
  open(options_of(FI_MR_ALLOCATED));
  target->protect(0, 1, PROT_READ);
  for (const uint64_t access : {FI_REMOTE_WRITE, FI_READ, FI_RECV}) {
    EXPECT_EQ(target->reg(1, {{0, 100}}, access), -FI_EFAULT) << access;
  }
  for (const uint64_t access : {FI_REMOTE_READ, FI_WRITE, FI_SEND}) {
    EXPECT_EQ(target->reg(1, {{0, 100}}, access), 0) << access;
    EXPECT_EQ(target->close(1), 0);
  }
}

TEST_P(Memory, must_be_told_of_with_fi_mr_mmu_notify) {
  open(options_of(FI_MR_MMU_NOTIFY));
  target->unmap(1);
  target->unmap(3, 2);
  const Remote r = registered(1, {{0, 8 * kPage}});
  allowed(r, 0, kPage);
  allowed(r, 2 * kPage, kPage);
  refused(r, kPage, 8);
  EXPECT_EQ(write(r, kPage - 8, 9), FI_EACCES) << "one byte of an unverified page";
  target->map(1);
  target->map(3, 2);
  refused(r, kPage, 8);
  EXPECT_EQ(write(r, 0, 8 * kPage), FI_EACCES);
  ASSERT_EQ(target->refresh(1, {{3 * kPage + 10, 1}}), 0);
  allowed(r, 2 * kPage, 2 * kPage);
  refused(r, kPage, 8);
  refused(r, 4 * kPage, 8);
  ASSERT_EQ(target->refresh(1), 0) << "no iov: the whole region";
  allowed(r, 0, 8 * kPage);
  alive();
}

TEST_P(Memory, that_went_away_is_refused_after_a_refresh) {
  open(options_of(FI_MR_MMU_NOTIFY));
  const Remote r = registered(1, {{0, 4 * kPage}});
  allowed(r, 0, 4 * kPage);
  target->unmap(2);
  ASSERT_EQ(target->refresh(1, {{2 * kPage, kPage}}), 0);
  refused(r, 2 * kPage, 8);
  target->map(2);
  refused(r, 2 * kPage, 8);
  ASSERT_EQ(target->refresh(1, {{2 * kPage, kPage}, {0, 1}}), 0);
  allowed(r, 0, 4 * kPage);
}

TEST_P(Memory, a_refresh_names_parts_of_the_region) {
  open(options_of(FI_MR_MMU_NOTIFY));
  target->unmap(2);
  const Remote r = registered(1, {{kPage, 2 * kPage}, {5 * kPage, kPage}});
  target->map(2);
  EXPECT_EQ(target->refresh(1, {{0, kPage}}), -FI_EINVAL) << "outside";
  EXPECT_EQ(target->refresh(1, {{kPage - 1, 2}}), -FI_EINVAL) << "one byte before";
  EXPECT_EQ(target->refresh(1, {{2 * kPage, kPage + 1}}), -FI_EINVAL) << "one byte behind";
  EXPECT_EQ(target->refresh(1, {{kPage, 5 * kPage}}), -FI_EINVAL) << "what lies between buffers";
  EXPECT_EQ(target->refresh(1, {{2 * kPage, kPage}, {0, 1}}), -FI_EINVAL) << "every iov";
  refused(r, kPage, 8);
  allowed(r, 0, kPage);
  ASSERT_EQ(target->refresh(1, {{2 * kPage, kPage}}), 0);
  allowed(r, 0, 3 * kPage);
  ASSERT_EQ(target->refresh(1, {{kPage, 2 * kPage}, {5 * kPage, kPage}}), 0);
  allowed(r, 0, 3 * kPage);
}

TEST_P(Memory, a_refresh_where_nobody_keeps_pages_leaves_the_region_as_it_is) {
  open(options_of(0));
  const Remote r = registered(1, {{0, 4 * kPage}});
  EXPECT_EQ(target->refresh(1), 0);
  EXPECT_EQ(target->refresh(1, {{kPage, 1}}), 0);
  EXPECT_EQ(target->refresh(1, {{4 * kPage, 1}}), -FI_EINVAL);
  allowed(r, 0, 4 * kPage);
}

TEST_P(Memory, a_refresh_with_fi_mr_allocated_backs_the_pages_again) {
  open(options_of(FI_MR_ALLOCATED));
  const Remote r = registered(1, {{0, 4 * kPage}});
  target->map(1, 2);
  EXPECT_EQ(target->resident(1, 2), 0u);
  ASSERT_EQ(target->refresh(1, {{kPage, kPage}}), 0);
  EXPECT_EQ(target->resident(1, 2), 1u);
  target->unmap(2);
  EXPECT_EQ(target->refresh(1), -FI_EFAULT);
  allowed(r, 0, 2 * kPage);
}

TEST_P(Memory, accesses_during_a_refresh_land_or_fail_and_work_afterwards) {
  for (const int mode : {FI_MR_MMU_NOTIFY, FI_MR_ALLOCATED}) {
    open(options_of(mode), 64);
    const Remote r = registered(1, {{0, 64 * kPage}});
    std::vector<uint8_t> bytes(64 * kPage);
    fill(bytes, 77);
    int landed = 0;
    for (int round = 0; round < 60; ++round) {
      const size_t len = round % 3 == 0 ? 8 : bytes.size();
      Op ops[4];
      for (Op& op : ops) {
        ASSERT_EQ(node->post(fi_write, bytes.data(), len, nullptr, to, r.base, r.key, &op), 0);
      }
      ASSERT_EQ(target->refresh(1), 0);
      for (Op& op : ops) {
        const int err = node->wait(&op).err;
        ASSERT_TRUE(err == 0 || err == FI_EACCES) << err;
        landed += err == 0;
      }
    }
    EXPECT_GT(landed, 0);
    allowed(r, 0, 64 * kPage);
    alive();
    node.reset();
    target.reset();
  }
}

TEST(MemoryCall, of_every_kind_can_be_registered_in_scalable_mode) {
  Node node(options_of(0));
  void* hole = mmap(nullptr, 4 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  munmap(hole, 4 * kPage);
  const struct {
    void* at;
    size_t len;
  } ranges[] = {{hole, 4 * kPage}, {nullptr, 1}, {nullptr, SIZE_MAX}, {hole, 0}};
  uint64_t key = 1;
  for (const auto& r : ranges) {
    Fid<fid_mr> mr = registered(node.domain(), r.at, r.len, kAllAccess, key++);
    EXPECT_EQ(fi_close(&mr.release()->fid), 0);
  }
}

}  // namespace
}  // namespace aperture::doors::mr
