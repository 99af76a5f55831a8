// The Nth call of a driver's library fails, for each N: an answer that can be read, and nothing
// left behind. Over the stand-ins alone, which can be told to fail.
#include <gtest/gtest.h>

#include <cstring>

#include "memory/driver_of.hpp"

namespace aperture::memory {
namespace {

using test::DeviceMemory;

class FailingDrivers : public test::DriverOf {
 protected:
  void SetUp() override {
    DriverOf::SetUp();
    if (!HasFatalFailure() && !devices().is_standin()) GTEST_SKIP() << "a real driver never fails";
  }
  void TearDown() override {
    if (!HasFatalFailure()) devices().fail(0);
  }

  // Runs body(), which makes calls, with the first of them failing, the second, and so on, until it
  // comes through without meeting the failure.
  template <typename Body>
  void with_each_failure(Body body) {
    for (size_t n = 1; n < 100; ++n) {
      SCOPED_TRACE("call " + std::to_string(n));
      const size_t before = devices().counts().calls;
      devices().fail(n);
      body();
      devices().fail(0);
      if (devices().counts().calls < before + n) return;
    }
    ADD_FAILURE() << "so many calls are made that this test has no end";
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, FailingDrivers, testing::ValuesIn(test::kDeviceKinds),
                         test::name_of_param);

TEST_P(FailingDrivers, a_registration_succeeds_or_says_why_not) {
  const standin_counts before = devices().counts();
  int refused = 0;
  with_each_failure([&] {
    DeviceMemory memory(devices(), 4096);
    if (memory.at() == nullptr) return;  // the application's own call
    Added added = add(memory.at(), 4096);
    if (added.registration == nullptr) {
      ++refused;
      EXPECT_TRUE(added.error == Errc::io || added.error == Errc::invalid);
      EXPECT_GT(added.why.size(), 20);
    }
    devices().fail(0);
    added = add(memory.at(), 4096);
    ASSERT_NE(added.registration, nullptr) << added.why;
    int value = 1;
    std::byte* const at = memory.at();
    EXPECT_TRUE(added.registration->copy_in(at, &value, sizeof value));
    EXPECT_TRUE(memory.free());
    DeviceMemory next(devices(), 4096);
    EXPECT_EQ(next.at(), at);
    EXPECT_FALSE(added.registration->copy_in(at, &value, sizeof value));
  });
  EXPECT_GE(refused, 2);
  const standin_counts after = devices().counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.watches, before.watches);
  EXPECT_LE(after.queues, 1);
}

TEST_P(FailingDrivers, a_copy_succeeds_or_is_refused) {
  DeviceMemory memory(devices(), 4096);
  const Added added = add(memory.at(), 4096);
  ASSERT_NE(added.registration, nullptr) << added.why;
  void* const context = devices().current();
  int failed = 0;
  int dropped = 0;  // queues whose copy failed
  with_each_failure([&] {
    int value = 3;
    const size_t queues = devices().counts().queues;
    failed += !added.registration->copy_in(memory.at(), &value, sizeof value);
    dropped += devices().counts().queues < queues;
    EXPECT_EQ(devices().current(), context);
    EXPECT_LE(devices().counts().queues, 1);
  });
  with_each_failure([&] {
    int value = 0;
    const bool copied = added.registration->copy_out(&value, memory.at(), sizeof value);
    failed += !copied;
    EXPECT_EQ(value, copied ? 3 : 0);
    EXPECT_EQ(devices().current(), context);
    EXPECT_LE(devices().counts().queues, 1);
  });
  EXPECT_GE(failed, 2);
  EXPECT_GE(dropped, kind() == Kind::rocr ? 0 : 1);
}

// A copy of an odd size is two for some: once the second was refused, the first lands no more.
TEST_P(FailingDrivers, a_copy_that_was_refused_leaves_none_under_way) {
  DeviceMemory memory(devices(), 4096);
  const Added added = add(memory.at(), 4096);
  ASSERT_NE(added.registration, nullptr) << added.why;
  const std::byte bytes[301] = {};
  for (const size_t size : {size_t{1}, size_t{3}, size_t{300}, sizeof bytes}) {
    SCOPED_TRACE(size);
    with_each_failure([&] {
      static_cast<void>(added.registration->copy_in(memory.at(), bytes, size));
      EXPECT_EQ(devices().counts().loose, 0u);
    });
  }
}

TEST_P(FailingDrivers, a_copy_that_was_begun_ends_either_way) {
  DeviceMemory memory(devices(), 4096);
  const Added added = add(memory.at(), 4096);
  ASSERT_NE(added.registration, nullptr) << added.why;
  void* const context = devices().current();
  int failed = 0;
  for (const bool looks : {false, true}) {
    with_each_failure([&] {
      int value = 3;
      Flight flight;
      bool copied = added.registration->begin_in(flight, memory.at(), &value, sizeof value);
      while (looks && flight.look() == Flight::State::under_way) {
      }
      copied = flight.finish() && copied;
      failed += !copied;
      EXPECT_EQ(devices().current(), context);
      EXPECT_EQ(devices().counts().loose, 0u);
      EXPECT_LE(devices().counts().queues, 1);
    });
  }
  EXPECT_GE(failed, 2);
}

TEST_P(FailingDrivers, an_address_is_found_or_not) {
  DeviceMemory memory(devices(), 4096);
  with_each_failure([&] { static_cast<void>(driver().has(memory.at())); });
  EXPECT_TRUE(driver().has(memory.at()));
}

TEST_P(FailingDrivers, host_memory_is_there_or_not) {
  const standin_counts before = devices().counts();
  with_each_failure([&] {
    void* const host = driver().take_host(4096);
    devices().fail(0);
    if (host != nullptr) driver().give_host(host, 4096);
    EXPECT_EQ(devices().counts().allocations, before.allocations);
  });
}

}  // namespace
}  // namespace aperture::memory
