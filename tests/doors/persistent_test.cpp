// Persistent memory: FI_RMA_PMEM regions and FI_COMMIT_COMPLETE writes. fi_mr(3) "FLAGS",
// fi_endpoint(3), fi_cq(3).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/synced.hpp"
#include "doors/window.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kSize = 1 << 20;

using test::forget_syncs;

bool was_synced(const void* at, size_t n) {
  const std::vector<test::Synced> all = test::synced();
  const auto from = reinterpret_cast<uintptr_t>(at);
  return std::any_of(all.begin(), all.end(),
                     [&](const test::Synced& s) { return s.from <= from && from + n <= s.end; });
}

// A file that is mapped shared, and gone in the end.
class MappedFile {
 public:
  MappedFile() {
    const int fd = ::mkstemp(name_);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(::ftruncate(fd, kSize), 0);
    at_ = static_cast<uint8_t*>(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    EXPECT_NE(at_, MAP_FAILED);
    ::close(fd);
  }
  ~MappedFile() {
    ::munmap(at_, kSize);
    ::unlink(name_);
  }
  uint8_t* at() { return at_; }
  const char* name() const { return name_; }

 private:
  char name_[32] = "/tmp/aperture-pmem-XXXXXX";
  uint8_t* at_;
};

Options pmem_options() {
  return {.caps = FI_MSG | FI_RMA | FI_RMA_PMEM | FI_RMA_EVENT,
          .counters = true,
          .remote_counters = true};
}

class Persistent : public testing::Test {
 protected:
  Fid<fid_mr> reg(void* at, size_t n, uint64_t key, uint64_t flags = FI_RMA_PMEM) {
    fid_mr* mr = nullptr;
    code = fi_mr_reg(pair.b.domain(), at, n, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, key, flags, &mr,
                     nullptr);
    return Fid<fid_mr>(mr);
  }
  int write(size_t n, uint64_t offset, uint64_t key, uint64_t flags, uint64_t data = 0) {
    return write_ranges({{offset, n, key}}, flags, data);
  }
  int write_ranges(std::vector<fi_rma_iov> ranges, uint64_t flags, uint64_t data = 0) {
    size_t n = 0;
    for (const fi_rma_iov& r : ranges) n += r.len;
    source.assign(n, 0x5a);
    iovec iov{source.data(), n};
    Op op;
    fi_msg_rma m{&iov, nullptr, 1, pair.to_b, ranges.data(), ranges.size(), &op, data};
    const int64_t rc = pair.a.post(fi_writemsg, &m, flags | FI_COMPLETION);
    return rc != 0 ? static_cast<int>(rc) : pair.a.wait(&op).err;
  }
  NodePair pair{pmem_options()};
  MappedFile file;
  std::vector<uint8_t> source;
  int code = 0;
};

TEST_F(Persistent, a_committed_write_is_synced_before_it_completes) {
  const auto mr = reg(file.at(), kSize, 1);
  ASSERT_EQ(code, 0);
  for (size_t n : {size_t{1}, size_t{8}, size_t{256}, size_t{5000}, size_t{300000}}) {
    forget_syncs();
    ASSERT_EQ(write(n, 100, 1, FI_COMMIT_COMPLETE), 0) << n;
    EXPECT_TRUE(was_synced(file.at() + 100, n)) << n;
    EXPECT_TRUE(
        std::all_of(file.at() + 100, file.at() + 100 + n, [](uint8_t b) { return b == 0x5a; }));
  }
}

TEST_F(Persistent, a_commit_of_nothing_is_checked_and_completes) {
  const auto mr = reg(file.at(), 4096, 1);
  ASSERT_EQ(code, 0);
  EXPECT_EQ(write(0, 100, 1, FI_COMMIT_COMPLETE), 0);
  EXPECT_EQ(write(0, 4097, 1, FI_COMMIT_COMPLETE), FI_EACCES);
  EXPECT_EQ(write(0, 0, 3, FI_COMMIT_COMPLETE), FI_EACCES);
  EXPECT_EQ(write(8, 0, 1, FI_COMMIT_COMPLETE), 0) << "both endpoints live";
}

TEST_F(Persistent, other_writes_are_not_synced) {
  const auto mr = reg(file.at(), kSize, 1);
  ASSERT_EQ(code, 0);
  forget_syncs();
  ASSERT_EQ(write(8, 100, 1, FI_DELIVERY_COMPLETE), 0);
  EXPECT_FALSE(was_synced(file.at() + 100, 8));
}

TEST_F(Persistent, every_range_is_synced) {
  const auto mr = reg(file.at(), kSize, 1);
  ASSERT_EQ(code, 0);
  forget_syncs();
  ASSERT_EQ(write_ranges({{0, 100, 1}, {500000, 4000, 1}}, FI_COMMIT_COMPLETE), 0);
  EXPECT_TRUE(was_synced(file.at(), 100));
  EXPECT_TRUE(was_synced(file.at() + 500000, 4000));
}

TEST_F(Persistent, data_and_counts_come_once_and_after_the_sync) {
  const auto mr = reg(file.at(), kSize, 1);
  ASSERT_EQ(code, 0);
  forget_syncs();
  ASSERT_EQ(write(8, 100, 1, FI_COMMIT_COMPLETE | FI_REMOTE_CQ_DATA, 77), 0);
  const Completion c = pair.b.wait_any();
  EXPECT_EQ(c.data, 77u);
  EXPECT_TRUE(was_synced(file.at() + 100, 8));
  EXPECT_EQ(fi_cntr_read(pair.b.remote_write_cntr()), 1u);
  ASSERT_EQ(write(8, 100, 1, FI_COMMIT_COMPLETE), 0);
  EXPECT_EQ(fi_cntr_read(pair.b.remote_write_cntr()), 2u);
  EXPECT_TRUE(pair.b.quiet());
}

TEST_F(Persistent, a_commit_to_another_region_is_refused) {
  std::vector<uint8_t> memory(4096);
  const auto plain = reg(memory.data(), memory.size(), 2, 0);
  ASSERT_EQ(code, 0);
  EXPECT_EQ(write(8, 0, 2, FI_COMMIT_COMPLETE), FI_EACCES);
  EXPECT_EQ(write(8, 0, 2, FI_COMMIT_COMPLETE | FI_REMOTE_CQ_DATA, 5), FI_EACCES);
  EXPECT_EQ(write(8, 0, 2, 0), 0) << "without it, it is a region like others";
  EXPECT_TRUE(pair.b.quiet()) << "no data of what was refused";
  EXPECT_EQ(fi_cntr_read(pair.b.remote_write_cntr()), 1u);
}

TEST_F(Persistent, a_range_outside_is_refused_and_changes_nothing) {
  const auto mr = reg(file.at(), 4096, 1);
  ASSERT_EQ(code, 0);
  EXPECT_EQ(write(8, 4089, 1, FI_COMMIT_COMPLETE), FI_EACCES);
  EXPECT_TRUE(std::all_of(file.at(), file.at() + kSize, [](uint8_t b) { return b == 0; }));
}

TEST_F(Persistent, memory_that_is_no_file_cannot_be_registered_so) {
  std::vector<uint8_t> heap(4096);
  EXPECT_FALSE(reg(heap.data(), heap.size(), 2));
  EXPECT_EQ(code, -FI_EINVAL);
  void* own = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_FALSE(reg(own, 4096, 2));
  EXPECT_EQ(code, -FI_EINVAL) << "shared, but of no file";
  ::munmap(own, 4096);
  const int fd = ::open(file.name(), O_RDWR);
  void* copy = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  EXPECT_FALSE(reg(copy, 4096, 2));
  EXPECT_EQ(code, -FI_EINVAL) << "a private mapping never reaches its file";
  ::munmap(copy, 4096);
  ::close(fd);
}

// A window of a region is as persistent as the region is, within its own bounds.
class PersistentWindow : public Persistent {
 protected:
  void SetUp() override {
    ops_ = &mr::window_ops(pair.b.domain());
    window_ = mr::make_window(pair.b.domain());
  }
  // Over the region's bytes from 8192 to 16384; peers give offsets from its own start.
  uint64_t bind_to(fid_mr* mr) {
    const aperture_window_bind bind = mr::part_of(mr, 8192, 8192, FI_REMOTE_WRITE);
    uint64_t key = 0;
    EXPECT_EQ(ops_->bind(window_.get(), &bind, &key), 0);
    return key;
  }
  aperture_window_ops* ops_ = nullptr;
  Fid<aperture_window> window_;
};

TEST_F(PersistentWindow, commits_what_is_written_through_it) {
  const auto mr = reg(file.at(), kSize, 1);
  ASSERT_EQ(code, 0);
  const uint64_t key = bind_to(mr.get());
  uint8_t* const begin = file.at() + 8192;
  for (size_t n : {size_t{1}, size_t{256}, size_t{8192}}) {
    forget_syncs();
    ASSERT_EQ(write(n, 0, key, FI_COMMIT_COMPLETE), 0) << n;
    EXPECT_TRUE(was_synced(begin, n)) << n;
    EXPECT_TRUE(std::all_of(begin, begin + n, [](uint8_t b) { return b == 0x5a; }));
  }
  forget_syncs();
  EXPECT_EQ(write(8, 8185, key, FI_COMMIT_COMPLETE), FI_EACCES) << "inside the region alone";
  ASSERT_EQ(write(8, 0, key, FI_DELIVERY_COMPLETE), 0);
  EXPECT_FALSE(was_synced(begin, 8)) << "not asked for";
  EXPECT_EQ(ops_->invalidate(window_.get()), 0);
  EXPECT_EQ(write(8, 0, key, FI_COMMIT_COMPLETE), FI_EACCES);
  EXPECT_EQ(file.at()[8191], 0);
  EXPECT_EQ(begin[8192], 0);
}

TEST_F(PersistentWindow, of_another_region_commits_nothing) {
  std::vector<uint8_t> memory(kSize);
  const auto plain = reg(memory.data(), memory.size(), 2, 0);
  ASSERT_EQ(code, 0);
  const uint64_t key = bind_to(plain.get());
  EXPECT_EQ(write(8, 0, key, FI_COMMIT_COMPLETE), FI_EACCES);
  EXPECT_EQ(write(8, 0, key, 0), 0);
  EXPECT_EQ(ops_->invalidate(window_.get()), 0);
}

TEST(PersistentCaps, the_level_can_be_the_default_of_an_endpoint) {
  Options o = pmem_options();
  o.tx_op_flags = FI_COMMIT_COMPLETE;
  NodePair pair(o);
  MappedFile file;
  const Fid<fid_mr> mr =
      registered(pair.b.domain(), file.at(), kSize, FI_REMOTE_WRITE, 1, FI_RMA_PMEM);
  forget_syncs();
  const uint64_t value = 1;
  ASSERT_EQ(pair.a.run(fi_write, &value, 8, nullptr, pair.to_b, 64, 1), 0);
  EXPECT_TRUE(was_synced(file.at() + 64, 8));
}

}  // namespace
}  // namespace aperture::doors
