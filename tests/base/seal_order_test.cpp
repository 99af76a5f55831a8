// A memory file that a stranger shrinks, and seals, in the midst of our looks at it: between any
// two of our calls, which this program brings itself.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cstdarg>

#include "base/fd.hpp"

namespace {

constexpr size_t kSize = size_t{1} << 20;

int the_file = -1;      // only looks at this one count
int looks_before = -1;  // so many, and then it is shrunk and sealed

template <typename Call>
Call* real(const char* name, Call*) noexcept {
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}

void look(int fd) noexcept {
  if (fd != the_file || looks_before-- != 0) return;
  const int file = the_file;
  the_file = -1;
  EXPECT_EQ(::ftruncate(file, 4096), 0);
  EXPECT_EQ(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
}

}  // namespace

extern "C" int fstat(int fd, struct stat* st) noexcept {
  look(fd);
  return real("fstat", ::fstat)(fd, st);
}
extern "C" int fstatfs(int fd, struct statfs* fs) noexcept {
  look(fd);
  return real("fstatfs", ::fstatfs)(fd, fs);
}
extern "C" int fcntl(int fd, int command, ...) {
  look(fd);
  va_list more;
  va_start(more, command);
  const long argument = va_arg(more, long);
  va_end(more);
  return real("fcntl", ::fcntl)(fd, command, argument);
}

namespace aperture {
namespace {

TEST(SealOrder, what_shrinks_before_it_is_sealed_is_never_taken_for_large) {
  for (const bool sealed_in_time : {true, false}) {
    for (int looks = 0; looks < 8; ++looks) {
      const UniqueFd file(::memfd_create("stranger", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      ASSERT_EQ(::ftruncate(file.get(), kSize), 0);
      looks_before = looks;
      the_file = file.get();
      const bool is_sound = is_sealed_and_at_least(file.get(), sealed_in_time ? 4096 : kSize);
      const bool has_shrunk = the_file < 0;
      the_file = -1;
      EXPECT_TRUE(!is_sound || (sealed_in_time && has_shrunk)) << "before look " << looks;
      if (looks == 0) {
        EXPECT_TRUE(has_shrunk) << "no call of ours was seen";
      }
    }
  }
}

}  // namespace
}  // namespace aperture
