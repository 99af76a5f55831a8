// Several threads at one driver: copies, registrations and frees at the same time.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "memory/driver_of.hpp"
#include "memory/spare_handles.hpp"

namespace aperture::memory {
namespace {

using test::DeviceMemory;

constexpr int kThreads = 4;

class DriversInThreads : public test::DriverOf {
 protected:
  template <typename Body>
  void in_threads(Body body) {
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) threads.emplace_back([&, t] { body(t); });
    for (std::thread& thread : threads) thread.join();
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, DriversInThreads, testing::ValuesIn(test::kDeviceKinds),
                         test::name_of_param);

TEST_P(DriversInThreads, copy_at_the_same_time) {
  constexpr size_t kEach = 256 * 1024;
  DeviceMemory memory(devices(), kThreads * kEach);
  const Added added = add(memory.at(), kThreads * kEach);
  ASSERT_NE(added.registration, nullptr) << added.why;
  const standin_counts before = devices().counts();
  std::atomic<int> wrong{0};
  in_threads([&](int t) {
    std::byte* const at = memory.at() + static_cast<size_t>(t) * kEach;
    std::vector<unsigned char> sent(kEach);
    std::vector<unsigned char> got(kEach);
    for (int i = 0; i < 100; ++i) {
      std::memset(sent.data(), t * 64 + i, kEach);
      const bool copied = added.registration->copy_in(at, sent.data(), kEach) &&
                          added.registration->copy_out(got.data(), at, kEach);
      wrong += !copied || got != sent;
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(devices().counts().queues, static_cast<size_t>(kThreads));
  EXPECT_EQ(devices().counts().contexts, before.contexts);
}

TEST_P(DriversInThreads, register_and_free_at_the_same_time) {
  const standin_counts before = devices().counts();
  std::atomic<int> wrong{0};
  in_threads([&](int t) {
    devices().use_here();
    for (int i = 0; i < 50; ++i) {
      DeviceMemory memory(devices(), 4096);
      std::byte* const at = memory.at();
      const Added one = add(at, 4096);
      const Added other = add(at + 1, 17);
      int value = t;
      const bool copied = one.registration && other.registration &&
                          one.registration->copy_in(at, &value, sizeof value) &&
                          other.registration->copy_out(&value, at + 1, 1);
      memory.free();
      wrong += !copied || one.registration->copy_in(at, &value, sizeof value);
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(devices().counts().allocations, before.allocations);
  EXPECT_EQ(devices().counts().watches, before.watches);
}

TEST_P(DriversInThreads, register_the_first_memory_of_a_device_at_the_same_time) {
  const standin_counts before = devices().counts();
  DeviceMemory memory(devices(), 4096, devices().count() - 1);
  in_threads([&](int) { EXPECT_NE(add(memory.at(), 4096).registration, nullptr); });
  if (kind() == Kind::cuda && devices().is_standin()) {
    EXPECT_EQ(devices().counts().contexts, before.contexts + 1);  // its primary one, held once
  }
}

TEST_P(DriversInThreads, register_one_allocation_at_the_same_time) {
  for (int i = 0; i < 50; ++i) {
    DeviceMemory memory(devices(), 4096);
    Added added[kThreads];
    in_threads([&](int t) { added[t] = add(memory.at(), 4096); });
    std::byte* const at = memory.at();
    ASSERT_TRUE(memory.free());
    DeviceMemory next(devices(), 4096);
    int value = 0;
    for (const Added& each : added) {
      ASSERT_NE(each.registration, nullptr) << each.why;
      EXPECT_FALSE(each.registration->copy_in(at, &value, sizeof value));
    }
  }
}

TEST(SpareHandles, keep_so_many_and_no_more) {
  SpareHandles spares;
  int things[SpareHandles::kMost + 1];
  EXPECT_EQ(spares.take(), nullptr);
  for (size_t i = 0; i < SpareHandles::kMost; ++i) EXPECT_TRUE(spares.give(&things[i]));
  EXPECT_FALSE(spares.give(&things[SpareHandles::kMost]));
  for (size_t i = SpareHandles::kMost; i-- > 0;) EXPECT_EQ(spares.take(), &things[i]);
  EXPECT_EQ(spares.take(), nullptr);
}

}  // namespace
}  // namespace aperture::memory
