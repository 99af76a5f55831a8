// What happens in a forked child of a test, told to the test.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/wakeups.hpp"

namespace aperture::test {

// fork(2) in a process with threads. What AddressSanitizer holds locked in one stays locked in the
// child, whose next malloc then waits for ever: under it, only while the other threads sleep. In
// other builds at any time.
inline pid_t fork_beside_threads() {
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_TRUE(comes_to_rest(::getpid(), ::gettid()));
#endif
  return ::fork();
}

// The wait status of a child that ends with `body`, or with what that exits with.
template <typename Body>
int status_of_child(Body body) {
  const pid_t child = ::fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// Whether `body` answers true in a child.
template <typename Body>
bool holds_in_child(Body body) {
  return status_of_child([&] { ::_exit(body() ? 0 : 1); }) == 0;
}

// So many of the descriptors that are open here are sockets of that type.
inline int count_sockets(int type) {
  int count = 0;
  for (int fd = 0; fd < 8192; ++fd) {
    int is = 0;
    socklen_t len = sizeof is;
    count += ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &is, &len) == 0 && is == type;
  }
  return count;
}

// All that a child writes to the descriptor that it is given.
template <typename Body>
std::vector<char> written_by_child(Body body) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    body(ends[1]);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::vector<char> all;
  char piece[4096];
  for (ssize_t n; (n = ::read(ends[0], piece, sizeof piece)) > 0;) {
    all.insert(all.end(), piece, piece + n);
  }
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return all;
}

// What n calls of draw(value) hand out in a child; false: it could not.
template <typename T, typename Draw>
std::vector<T> drawn_in_child(int n, Draw draw) {
  const std::vector<char> bytes = written_by_child([&](int to) {
    for (int i = 0; i < n; ++i) {
      T value{};
      if (!draw(value) || ::write(to, &value, sizeof value) != sizeof value) ::_exit(1);
    }
  });
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace aperture::test
