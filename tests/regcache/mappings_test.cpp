// What is found out about the mappings of a range, asked for one by one or read from their list.
#include "regcache/mappings.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <string>

namespace aperture::regcache::test {
namespace {

constexpr size_t kPage = 4096;

// Places side by side that the kernel cannot join: their rights differ.
struct Places {
  Places() : at(map(nullptr, 8, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1)) {
    map(page(1), 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
    map(page(3), 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
    map(page(4), 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1);
    const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    map(page(5), 1, PROT_READ, MAP_PRIVATE | MAP_FIXED, file);
    ::close(file);
    ::munmap(page(6), kPage);
  }
  ~Places() {
    ::munmap(at, 6 * kPage);
    ::munmap(page(7), kPage);
  }
  static uint8_t* map(uint8_t* where, size_t pages, int rights, int flags, int fd) {
    return static_cast<uint8_t*>(::mmap(where, pages * kPage, rights, flags, fd, 0));
  }
  uint8_t* page(size_t n) const { return at + n * kPage; }
  Range range(size_t first, size_t n) const {
    const auto begin = reinterpret_cast<uint64_t>(page(first));
    return {begin, begin + n * kPage};
  }
  uint8_t* at;
};

bool are(const Range& one, const Range& other) {
  return one.begin == other.begin && one.end == other.end;
}

void expect_found_out() {
  const Places p;
  EXPECT_TRUE(are(mapped_alone_around(p.range(1, 1)), p.range(1, 2))) << "a part of one";
  EXPECT_TRUE(are(mapped_alone_around(p.range(2, 2)), p.range(1, 3))) << "parts of two";
  EXPECT_TRUE(mapped_alone_around(p.range(3, 2)).is_empty()) << "one of them is shared";
  EXPECT_TRUE(mapped_alone_around(p.range(4, 1)).is_empty()) << "shared";
  EXPECT_TRUE(mapped_alone_around(p.range(5, 1)).is_empty()) << "of a file";
  EXPECT_TRUE(mapped_alone_around(p.range(6, 1)).is_empty()) << "none";
  EXPECT_TRUE(mapped_alone_around(p.range(6, 2)).is_empty()) << "none at its beginning";
  EXPECT_FALSE(mapped_alone_around(p.range(0, 4)).is_empty()) << "three of them";
  EXPECT_TRUE(are(first_mapped_alone_in(p.range(2, 4)), p.range(1, 2))) << "whole, if but a part";
  EXPECT_TRUE(first_mapped_alone_in(p.range(4, 3)).is_empty()) << "shared, of a file, and none";
  EXPECT_EQ(first_mapped_alone_in(p.range(4, 4)).begin, p.range(7, 1).begin) << "behind those";
  EXPECT_TRUE(first_mapped_alone_in(p.range(6, 1)).is_empty()) << "the next is beyond";
}

TEST(Mappings, are_found_out) {
  expect_found_out();
}

TEST(Mappings, are_found_out_when_somebody_has_taken_the_descriptor) {
  mapped_alone_around({0, kPage});  // opens it
  for (int fd = 3; fd < 4096; ++fd) {
    char path[PATH_MAX] = "";
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), path, sizeof path - 1) < 0) continue;
    if (std::strstr(path, "/maps") == nullptr) continue;
    const int other = ::open("/proc/1/maps", O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::dup2(other >= 0 ? other : STDERR_FILENO, fd), fd);
    if (other >= 0) ::close(other);
  }
  expect_found_out();
}

}  // namespace
}  // namespace aperture::regcache::test
