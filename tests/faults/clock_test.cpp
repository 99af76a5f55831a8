// The wall clock jumps by years, back and forth, at each look at it: nothing that the provider does
// hangs on it. Timeouts, retries, first contact and the death of a peer go by the monotonic clock.
//
// This program brings the functions that tell the wall clock, for itself and its children, so that
// the machine's own is left alone.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/time.h>

#include <atomic>
#include <ctime>

#include "doors/side.hpp"

namespace {

std::atomic<uint64_t> looks{0};

// Seconds to add this time: up to some 30 years, to either side.
int64_t jump() {
  const uint64_t n = ++looks;
  const auto years = static_cast<int64_t>(n * 0x9E3779B97F4A7C15 >> 59) * 2;
  return (n % 2 == 0 ? years : -years) * 365 * 86400;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* t) noexcept {
  static const auto real =
      reinterpret_cast<decltype(&clock_gettime)>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int code = real(clock, t);
  if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += jump();
  return code;
}

extern "C" int gettimeofday(timeval* t, void*) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *t = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

extern "C" time_t time(time_t* t) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (t != nullptr) *t = now.tv_sec;
  return now.tv_sec;
}

namespace aperture::faults {
namespace {

using namespace doors;  // NOLINT: the door's whole vocabulary

TEST(Clock, of_the_wall_may_jump) {
  timespec one{}, other{};
  clock_gettime(CLOCK_REALTIME, &one);
  for (int i = 0; i < 8 && one.tv_sec / 86400 == other.tv_sec / 86400; ++i)
    clock_gettime(CLOCK_REALTIME, &other);
  ASSERT_NE(one.tv_sec / 86400, other.tv_sec / 86400) << "it does not jump here";
  for (int peer = 0; peer < 3; ++peer) {
    Duo duo = make_duo(Topology::two_processes, {.mr_mode = kBasicMr});
    const Remote remote = duo.second->region_open(1, kMiB, kAllAccess, 1);
    for (uint32_t i = 0; i < 50; ++i) {
      const size_t size = i % 5 == 4 ? kMiB : 64;
      duo.second->receive(100 + i, size);
      duo.first->send(100 + i, duo.to_second, size, i + 1);
      ASSERT_EQ(duo.first->wait(100 + i).err, 0);
      ASSERT_EQ(duo.second->wait(100 + i).err, 0);
      EXPECT_TRUE(duo.second->verify(100 + i, size, i + 1));
      ASSERT_EQ(duo.write(size, i, remote).err, 0);
      duo.first->release(100 + i);
      duo.second->release(100 + i);
    }
    // the other one is killed with this message on its way: that ends, soon
    const int64_t began = now_ns();
    duo.first->send(7, duo.to_second, kMiB, 1);
    duo.second_owner.reset();
    EXPECT_GT(duo.first->wait(7).err, 0);
    EXPECT_LT(now_ns() - began, 5'000'000'000);
  }
}

// A wait with a timeout takes as long as it should.
TEST(Clock, of_the_wall_has_no_part_in_timeouts) {
  for (const fi_wait_obj wait : {FI_WAIT_UNSPEC, FI_WAIT_FD}) {
    Node node({.mr_mode = kBasicMr, .wait = wait});
    for (int i = 0; i < 5; ++i) {
      const int64_t began = now_ns();
      fi_cq_tagged_entry entry{};
      EXPECT_EQ(fi_cq_sread(node.cq(), &entry, 1, nullptr, 20), -FI_EAGAIN) << wait_name(wait);
      const int64_t took = now_ns() - began;
      EXPECT_GE(took, 15'000'000) << wait_name(wait);
      EXPECT_LT(took, 5'000'000'000) << wait_name(wait);
    }
  }
}

}  // namespace
}  // namespace aperture::faults
