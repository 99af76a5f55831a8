// Guarded copies: exact where there is memory, an answer where there is none, and every other fault
// still where it belongs.
#include "base/guarded_copy.hpp"

#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>

#include "base/forked.hpp"

namespace aperture {
namespace {

constexpr size_t kPage = 4096;

// Two pages, of which the second is not there.
class Edge {
 public:
  Edge()
      : at_(static_cast<std::byte*>(::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_EQ(::munmap(at_ + kPage, kPage), 0);
  }
  ~Edge() { ::munmap(at_, kPage); }
  std::byte* end() const { return at_ + kPage; }
  void protect(int how) const { EXPECT_EQ(::mprotect(at_, kPage, how), 0); }

 private:
  std::byte* at_;
};

class GuardedCopy : public ::testing::Test {
 protected:
  void SetUp() override { install_fault_guard(); }
};

TEST_F(GuardedCopy, copies_every_length_and_nothing_else) {
  std::vector<std::byte> from(512), to(512 + 32);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (size_t n = 0; n <= 400; ++n) {
    for (size_t shift : {0, 1, 7}) {
      std::memset(to.data(), 0xee, to.size());
      ASSERT_TRUE(guarded_copy(to.data() + 16 + shift, from.data() + shift, n)) << n;
      ASSERT_EQ(std::memcmp(to.data() + 16 + shift, from.data() + shift, n), 0) << n;
      for (size_t i = 0; i < 16 + shift; ++i) ASSERT_EQ(to[i], std::byte{0xee}) << n;
      for (size_t i = 16 + shift + n; i < to.size(); ++i) ASSERT_EQ(to[i], std::byte{0xee}) << n;
    }
  }
}

TEST_F(GuardedCopy, copies_large_pieces_too) {
  std::vector<std::byte> from(300000), to(300000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (size_t n :
       {size_t{2047}, size_t{2048}, size_t{2049}, size_t{4096}, size_t{65537}, from.size()}) {
    std::fill(to.begin(), to.end(), std::byte{0xee});
    ASSERT_TRUE(guarded_copy(to.data() + 1, from.data(), n - 1)) << n;
    ASSERT_EQ(std::memcmp(to.data() + 1, from.data(), n - 1), 0) << n;
    ASSERT_EQ(to[0], std::byte{0xee});
    if (n < to.size()) {
      ASSERT_EQ(to[n], std::byte{0xee});
    }
  }
}

TEST_F(GuardedCopy, copies_up_to_the_last_byte_that_is_mapped) {
  Edge edge;
  std::byte in[300] = {std::byte{5}};
  for (size_t n = 1; n <= sizeof in; ++n) {
    ASSERT_TRUE(guarded_copy(edge.end() - n, in, n)) << n;
    ASSERT_TRUE(guarded_copy(in, edge.end() - n, n)) << n;
  }
}

TEST_F(GuardedCopy, one_byte_that_is_not_mapped_is_an_answer) {
  Edge edge;
  std::byte other[4000] = {};
  for (size_t n = 1; n <= sizeof other; n += n < 300 ? 1 : 100) {
    ASSERT_FALSE(guarded_copy(edge.end() - n + 1, other, n)) << n;
    ASSERT_FALSE(guarded_copy(other, edge.end() - n + 1, n)) << n;
    ASSERT_FALSE(guarded_copy(edge.end(), other, n)) << n;
  }
}

TEST_F(GuardedCopy, memory_that_can_only_be_read_is_not_written) {
  Edge edge;
  edge.protect(PROT_READ);
  std::byte other[16] = {};
  EXPECT_TRUE(guarded_copy(other, edge.end() - 16, 16));
  EXPECT_FALSE(guarded_copy(edge.end() - 16, other, 16));
  EXPECT_TRUE(guarded_touch(edge.end() - 16, 16, false));
  EXPECT_FALSE(guarded_touch(edge.end() - 16, 16, true));
}

TEST_F(GuardedCopy, a_touch_sees_each_page_and_changes_nothing) {
  Edge edge;
  std::memset(edge.end() - 16, 0x5a, 16);
  EXPECT_TRUE(guarded_touch(edge.end() - 16, 16, true));
  EXPECT_FALSE(guarded_touch(edge.end() - 16, 17, true));
  EXPECT_FALSE(guarded_touch(edge.end() - 16, 17, false));
  for (int i = 1; i <= 16; ++i) EXPECT_EQ(edge.end()[-i], std::byte{0x5a});
}

TEST_F(GuardedCopy, a_file_that_was_cut_short_is_an_answer) {
  const int fd = ::memfd_create("guarded-copy-test", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, kPage), 0);
  void* at = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_EQ(::ftruncate(fd, 0), 0);
  std::byte other[8] = {};
  EXPECT_FALSE(guarded_copy(at, other, sizeof other));  // SIGBUS
  ::munmap(at, kPage);
  ::close(fd);
}

// Copies are on the data path. In a child that the kernel kills at any call but the return from a
// signal.
TEST_F(GuardedCopy, asks_nothing_of_the_kernel) {
  Edge edge;
  constexpr int kNoSuchMode = 77;
  const int status = test::status_of_child([&] {
    std::byte other[100] = {};
    if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) ::_exit(kNoSuchMode);
    const bool right =
        guarded_copy(edge.end() - 100, other, 100) && !guarded_copy(other, edge.end() - 99, 100) &&
        guarded_touch(edge.end() - 1, 1, true) && !guarded_touch(edge.end(), 1, false);
    ::syscall(SYS_exit, right ? 0 : 1);
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoSuchMode) {
    GTEST_SKIP() << "the kernel has no strict seccomp here (or this is an emulator)";
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// In a child, since it ends the process. ASan and TSan have a handler of their own, which exits.
TEST_F(GuardedCopy, another_fault_still_ends_the_process) {
  Edge edge;
  const int status = test::status_of_child([&] {
    ::close(2);
    *reinterpret_cast<volatile char*>(edge.end()) = 1;
  });
  EXPECT_TRUE(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0);
}

TEST_F(GuardedCopy, a_signal_that_somebody_sent_still_ends_the_process) {
  const int status = test::status_of_child([] {
    ::close(2);
    ::raise(SIGBUS);
  });
  EXPECT_TRUE(WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS : WEXITSTATUS(status) != 0);
}

}  // namespace
}  // namespace aperture
