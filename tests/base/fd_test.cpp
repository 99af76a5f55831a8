// Descriptors and memory files: who owns them, what their seals refuse, what a child of fork sees.
#include "base/fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "base/forked.hpp"
#include "base/value_of.hpp"

namespace aperture {
namespace {

using test::value_of;

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

TEST(UniqueFd, closes_once_and_keeps_errno) {
  int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  errno = EXDEV;
  {
    UniqueFd fd(raw);
    EXPECT_TRUE(fd);
    UniqueFd other = std::move(fd);
    EXPECT_FALSE(fd);  // NOLINT: moved-from is defined here
    EXPECT_EQ(other.get(), raw);
  }
  EXPECT_FALSE(is_open(raw));
  EXPECT_EQ(errno, EBADF);  // from is_open
}

TEST(UniqueFd, release_leaves_it_open_and_assignment_closes_the_old) {
  UniqueFd a(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  UniqueFd b(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int first = a.get();
  const int second = b.get();
  a = std::move(b);
  EXPECT_FALSE(is_open(first));
  EXPECT_EQ(a.release(), second);
  EXPECT_TRUE(is_open(second));
  ::close(second);
}

TEST(MoveHigh, leaves_low_numbers_to_the_program) {
  UniqueFd fd = move_high(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  ASSERT_TRUE(fd);
  EXPECT_GE(fd.get(), 512);
  EXPECT_EQ(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_FALSE(move_high(UniqueFd()));
}

TEST(SealedMemfd, size_can_change_for_nobody) {
  auto fd = value_of(make_sealed_memfd("aperture-test", 8192));
  EXPECT_TRUE(is_sealed_and_at_least(fd.get(), 8192));
  EXPECT_FALSE(is_sealed_and_at_least(fd.get(), 8193));
  EXPECT_NE(::ftruncate(fd.get(), 4096), 0);
  EXPECT_NE(::ftruncate(fd.get(), 16384), 0);
  EXPECT_NE(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SealedMemfd, what_is_not_sealed_is_not_trusted) {
  const UniqueFd open_memfd(::memfd_create("aperture-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open_memfd.get(), 8192), 0);
  EXPECT_FALSE(is_sealed_and_at_least(open_memfd.get(), 8192));
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(is_sealed_and_at_least(null.get(), 0));
  EXPECT_FALSE(is_sealed_and_at_least(-1, 0));
  std::FILE* plain = std::tmpfile();
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(::ftruncate(::fileno(plain), 8192), 0);
  EXPECT_FALSE(is_sealed_and_at_least(::fileno(plain), 8192));
  std::fclose(plain);
}

TEST(AllocatePages, has_memory_behind_it_and_refuses_beyond_the_end) {
  auto fd = value_of(make_sealed_memfd("aperture-test", 1 << 20));
  struct stat before, after;
  ::fstat(fd.get(), &before);
  EXPECT_TRUE(allocate_pages(fd.get(), 0, 64 * 1024));
  ::fstat(fd.get(), &after);
  EXPECT_EQ(after.st_blocks - before.st_blocks, 64 * 2);
  EXPECT_FALSE(allocate_pages(fd.get(), 1 << 20, 4096));  // sealed against growth
}

TEST(PublishedMemfd, only_the_maker_writes) {
  auto file = value_of(make_published_memfd("aperture-test", 8192));
  std::memcpy(file.mapping.data(), "kept", 5);
  const int fd = file.fd.get();
  EXPECT_TRUE(is_sealed_and_at_least(fd, 8192));
  EXPECT_FALSE(Mapping::map_shared(fd, 8192, Mapping::Access::read_write));
  char byte = 'x';
  EXPECT_EQ(::pwrite(fd, &byte, 1, 0), -1);
  EXPECT_NE(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  // reopening by name gives no more
  const UniqueFd again(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC));
  if (again) {
    EXPECT_EQ(::pwrite(again.get(), &byte, 1, 0), -1);
  }
  auto view = value_of(Mapping::map_shared(fd, 8192, Mapping::Access::read_only));
  EXPECT_STREQ(reinterpret_cast<char*>(view.data()), "kept");
  EXPECT_NE(::mprotect(view.data(), 8192, PROT_READ | PROT_WRITE), 0);
}

TEST(PublishedMemfd, pages_can_still_be_allocated) {
  auto file = value_of(make_published_memfd("aperture-test", 1 << 20));
  EXPECT_TRUE(allocate_pages(file.fd.get(), 4096, 4096));
}

TEST(Mapping, moves_and_is_absent_in_a_forked_child) {
  auto made = value_of(Mapping::map_anonymous(4096));
  Mapping m = std::move(made);
  ASSERT_TRUE(m);
  EXPECT_EQ(m.data()[100], std::byte{0});
  EXPECT_TRUE(test::holds_in_child([&m] {
    unsigned char resident;
    return ::mincore(m.data(), 4096, &resident) != 0 && errno == ENOMEM;
  }));
}

TEST(Mapping, bad_arguments_are_errors) {
  EXPECT_FALSE(Mapping::map_shared(-1, 4096, Mapping::Access::read_only));
  EXPECT_FALSE(Mapping::map_anonymous(0));
}

}  // namespace
}  // namespace aperture
