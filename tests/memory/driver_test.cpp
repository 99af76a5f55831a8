// What each driver registers, refuses and copies: the same tests for all three.
#include "memory/driver.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "base/forked.hpp"
#include "memory/driver_of.hpp"

namespace aperture::memory {
namespace {

using test::DeviceMemory;

constexpr size_t kSize = 3 * 1024 * 1024 + 4096;

std::vector<std::byte> pattern(size_t n, unsigned seed) {
  std::vector<std::byte> bytes(n);
  unsigned next = seed * 2654435761u + 1;
  for (std::byte& each : bytes)
    each = static_cast<std::byte>((next = next * 1103515245 + 12345) >> 16);
  return bytes;
}

class Drivers : public test::DriverOf {};
INSTANTIATE_TEST_SUITE_P(Kinds, Drivers, testing::ValuesIn(test::kDeviceKinds),
                         test::name_of_param);

TEST_P(Drivers, is_one_object_of_its_kind) {
  EXPECT_EQ(driver().kind(), kind());
  const char* why = nullptr;
  EXPECT_EQ(*memory::driver(kind(), why), &driver());
}

TEST_P(Drivers, a_stand_in_keeps_the_cpu_out_of_device_memory) {
  if (!devices().is_standin()) GTEST_SKIP() << "a real driver has its own ways";
  DeviceMemory memory(devices(), 8192);
  std::byte byte{};
  iovec to{&byte, 1};
  iovec from{memory.at() + 4096, 1};
  EXPECT_EQ(::process_vm_readv(::getpid(), &to, 1, &from, 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  const std::vector<std::byte> bytes(4097);
  EXPECT_FALSE(memory.write(4096, bytes.data(), 4097));
  EXPECT_TRUE(memory.write(4096, bytes.data(), 4096));
}

TEST_P(Drivers, memory_of_a_device_is_found_and_other_memory_is_not) {
  DeviceMemory memory(devices(), kSize);
  EXPECT_EQ(find(memory.at()), &driver());
  EXPECT_EQ(find(memory.at() + kSize - 1), &driver());
  EXPECT_TRUE(driver().has(memory.at()));
  void* const host = devices().allocate_host(4096);
  ASSERT_NE(host, nullptr);
  for (const void* at : {host, static_cast<void*>(&memory), static_cast<void*>(nullptr)}) {
    EXPECT_EQ(find(at), nullptr);
    EXPECT_FALSE(driver().has(at));
  }
  EXPECT_TRUE(devices().free(host));
  std::byte* const gone = memory.at();
  EXPECT_TRUE(memory.free());
  EXPECT_FALSE(driver().has(gone));
}

TEST_P(Drivers, a_range_within_one_allocation_is_registered) {
  DeviceMemory memory(devices(), kSize);
  for (const auto& [offset, len] : {std::pair<size_t, size_t>{0, kSize}, {kSize - 1, 1}, {77, 5}}) {
    const Added added = add(memory.at() + offset, len);
    ASSERT_NE(added.registration, nullptr) << added.why;
    EXPECT_EQ(added.registration->kind(), kind());
  }
}

TEST_P(Drivers, a_range_past_the_end_is_refused) {
  DeviceMemory memory(devices(), kSize);
  for (const auto& [offset, len] :
       {std::pair<size_t, size_t>{0, kSize + 1}, {1, kSize}, {kSize - 1, 2}, {1, SIZE_MAX}}) {
    EXPECT_EQ(add(memory.at() + offset, len), (Refused{Errc::invalid, "past the end"}));
  }
}

TEST_P(Drivers, a_range_of_two_allocations_is_refused) {
  DeviceMemory one(devices(), kSize);
  DeviceMemory other(devices(), kSize);
  std::byte* const first = std::min(one.at(), other.at());
  const auto len = static_cast<size_t>(std::max(one.at(), other.at()) - first) + kSize;
  EXPECT_EQ(add(first, len), (Refused{Errc::invalid, "each allocation is named by itself"}));
}

TEST_P(Drivers, memory_of_the_host_is_refused) {
  std::vector<std::byte> ours(4096);
  EXPECT_EQ(add(ours.data(), ours.size()), (Refused{Errc::invalid, "before it is freed"}));
  void* const host = devices().allocate_host(4096);
  EXPECT_EQ(add(host, 4096), (Refused{Errc::not_supported, "name it as host memory"}));
  EXPECT_TRUE(devices().free(host));
}

TEST_P(Drivers, memory_that_was_freed_is_refused) {
  DeviceMemory memory(devices(), kSize);
  std::byte* const gone = memory.at();
  EXPECT_TRUE(memory.free());
  EXPECT_EQ(add(gone, kSize), (Refused{Errc::invalid, "before it is freed"}));
}

TEST_P(Drivers, a_device_that_is_named_must_be_the_memorys) {
  for (size_t i = 0; i < devices().count(); ++i) {
    DeviceMemory memory(devices(), 4096, i);
    ASSERT_NE(memory.at(), nullptr);
    for (size_t j = 0; j < devices().count(); ++j) {
      const Added added = add(memory.at(), 4096, devices().number_of(j));
      if (i == j) {
        ASSERT_NE(added.registration, nullptr) << added.why;
        EXPECT_TRUE(added.registration->copy_in(memory.at(), &i, sizeof i));
      } else {
        EXPECT_EQ(added, (Refused{Errc::invalid, "than the one that was named"}));
      }
    }
    EXPECT_EQ(add(memory.at(), 4096, 0x7fff), (Refused{Errc::invalid, "the one that was named"}));
  }
  if (devices().is_standin() && kind() != Kind::rocr) {
    EXPECT_EQ(devices().counts().queues, devices().count());  // one is kept for each
  }
}

TEST_P(Drivers, copies_land_where_they_should_and_nowhere_else) {
  DeviceMemory memory(devices(), kSize);
  const Added added = add(memory.at(), kSize);
  ASSERT_NE(added.registration, nullptr) << added.why;
  std::vector<std::byte> whole = pattern(kSize, 1);
  ASSERT_TRUE(memory.write(0, whole.data(), kSize));
  unsigned seed = 2;
  for (const size_t n : {1, 3, 64, 4095, 4096, 65537, 3 * 1024 * 1024 + 5}) {
    for (const size_t offset : {0, 1, 63, 1000}) {
      const std::vector<std::byte> sent = pattern(n, ++seed);
      ASSERT_TRUE(added.registration->copy_in(memory.at() + offset, sent.data(), n));
      std::memcpy(whole.data() + offset, sent.data(), n);
      std::vector<std::byte> got(n + 2);
      ASSERT_TRUE(added.registration->copy_out(got.data() + 1, memory.at() + offset, n));
      EXPECT_EQ(std::memcmp(got.data() + 1, sent.data(), n), 0);
      EXPECT_EQ(got.front(), std::byte{});
      EXPECT_EQ(got.back(), std::byte{});
    }
  }
  std::vector<std::byte> seen(kSize);
  ASSERT_TRUE(memory.read(seen.data(), 0, kSize));
  EXPECT_EQ(seen, whole);
  EXPECT_TRUE(added.registration->copy_in(memory.at() + kSize, nullptr, 0));
  EXPECT_TRUE(added.registration->copy_out(nullptr, memory.at(), 0));
}

TEST_P(Drivers, copies_use_what_the_device_has_for_them) {
  if (!devices().is_standin()) GTEST_SKIP() << "only a stand-in counts";
  DeviceMemory memory(devices(), kSize);
  const standin_counts before = devices().counts();
  const Added added = add(memory.at(), kSize);
  int value = 5;
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(added.registration->copy_in(memory.at(), &value, sizeof value));
    ASSERT_TRUE(added.registration->copy_out(&value, memory.at(), sizeof value));
  }
  const standin_counts after = devices().counts();
  EXPECT_EQ(after.copies - before.copies, 80);
  EXPECT_EQ(after.bytes - before.bytes, 80 * sizeof value);
  EXPECT_LE(after.queues, std::max<size_t>(before.queues, 1));
  EXPECT_GE(after.queues, kind() == Kind::rocr ? 0 : 1);  // one was kept
  if (kind() == Kind::cuda) {
    EXPECT_EQ(after.marked, before.marked + 1);
  }
  if (kind() == Kind::ze) {
    EXPECT_NE(after.marked, 0);
  }
}

TEST_P(Drivers, memory_that_is_freed_is_copied_no_more) {
  DeviceMemory memory(devices(), kSize);
  const Added added = add(memory.at() + 64, kSize - 64);
  std::byte* const at = memory.at() + 64;
  int value = 5;
  ASSERT_TRUE(added.registration->copy_in(at, &value, sizeof value));
  ASSERT_TRUE(memory.free());
  EXPECT_FALSE(added.registration->copy_in(at, &value, sizeof value));
  EXPECT_FALSE(added.registration->copy_out(&value, at, sizeof value));
}

TEST_P(Drivers, memory_that_comes_to_the_same_address_is_another) {
  DeviceMemory memory(devices(), kSize);
  const Added added = add(memory.at(), kSize);
  const Added again = add(memory.at(), kSize);
  std::byte* const at = memory.at();
  ASSERT_TRUE(memory.free());
  DeviceMemory next(devices(), kSize);
  if (next.at() != at && !devices().is_standin()) GTEST_SKIP() << "it came to another address";
  ASSERT_EQ(next.at(), at);
  int value = 7;
  ASSERT_TRUE(next.write(0, &value, sizeof value));
  value = 8;
  for (const Added& old : {added, again}) {
    EXPECT_FALSE(old.registration->copy_in(at, &value, sizeof value));
    EXPECT_FALSE(old.registration->copy_out(&value, at, sizeof value));
    EXPECT_EQ(value, 8);
  }
  const Added anew = add(at, kSize);
  ASSERT_NE(anew.registration, nullptr) << anew.why;
  EXPECT_TRUE(anew.registration->copy_out(&value, at, sizeof value));
  EXPECT_EQ(value, 7);
  EXPECT_FALSE(added.registration->copy_out(&value, at, sizeof value));
}

TEST_P(Drivers, an_allocation_is_watched_once_and_until_it_is_freed) {
  if (!devices().is_standin()) GTEST_SKIP() << "only a stand-in counts";
  const size_t before = devices().counts().watches;
  DeviceMemory memory(devices(), kSize);
  for (int i = 0; i < 10; ++i) EXPECT_NE(add(memory.at(), 64).registration, nullptr);
  EXPECT_EQ(devices().counts().watches, before + (kind() == Kind::rocr ? 1 : 0));
  EXPECT_TRUE(memory.free());
  EXPECT_EQ(devices().counts().watches, before);
}

TEST_P(Drivers, host_memory_is_taken_for_copies_and_given_back) {
  const standin_counts before = devices().counts();
  auto* const host = static_cast<std::byte*>(driver().take_host(100000));
  ASSERT_NE(host, nullptr);
  const std::vector<std::byte> sent = pattern(100000, 3);
  std::memcpy(host, sent.data(), sent.size());
  EXPECT_EQ(find(host), nullptr);
  DeviceMemory memory(devices(), 100000);
  const Added added = add(memory.at(), 100000);
  ASSERT_NE(added.registration, nullptr) << added.why;
  EXPECT_TRUE(added.registration->copy_in(memory.at(), host, 100000));
  std::memset(host, 0, 100000);
  EXPECT_TRUE(added.registration->copy_out(host, memory.at(), 100000));
  EXPECT_EQ(std::memcmp(host, sent.data(), sent.size()), 0);
  driver().give_host(host, 100000);
  EXPECT_TRUE(memory.free());
  EXPECT_EQ(devices().counts().allocations, before.allocations);
}

TEST_P(Drivers, the_current_context_stays_what_it_was) {
  void* const before = devices().current();
  // of another device than the current one, where there is another
  DeviceMemory memory(devices(), 4096, devices().count() - 1);
  const Added added = add(memory.at(), 4096);
  int value = 1;
  EXPECT_TRUE(added.registration->copy_in(memory.at(), &value, sizeof value));
  EXPECT_TRUE(added.registration->copy_out(&value, memory.at(), sizeof value));
  driver().give_host(driver().take_host(64), 64);
  EXPECT_EQ(devices().current(), before);
  std::thread([&] {  // which has none
    EXPECT_TRUE(added.registration->copy_in(memory.at(), &value, sizeof value));
    EXPECT_NE(add(memory.at(), 64).registration, nullptr);
    EXPECT_EQ(find(memory.at()), &driver());
    EXPECT_EQ(devices().current(), nullptr);
  })
      .join();
}

TEST_P(Drivers, a_forked_child_is_refused) {
  DeviceMemory memory(devices(), 4096);
  std::byte* const at = memory.at();
  Added added = add(at, 4096);
  const standin_counts before = devices().counts();
  EXPECT_TRUE(test::holds_in_child([&] {
    int value = 1;
    const char* why = nullptr;
    const bool refused = memory::driver(kind(), why).error() == Errc::not_supported &&
                         std::strstr(why, "fork") != nullptr && find(at) == nullptr;
    const bool copied = added.registration->copy_in(at, &value, sizeof value) ||
                        added.registration->copy_out(&value, at, sizeof value);
    const Added new_one = add(at, 4096);
    const bool said = new_one == Refused{Errc::io, "fork"} && !driver().has(at);
    const bool host = driver().take_host(64) != nullptr;
    added.registration.reset();
    return refused && !copied && said && !host && devices().counts().calls == before.calls;
  }));
  int value = 1;
  EXPECT_TRUE(added.registration->copy_in(at, &value, sizeof value));
}

// Not of ROCr, where memory of the system is not known to the runtime.
class ManagedMemory : public test::DriverOf {};
INSTANTIATE_TEST_SUITE_P(Kinds, ManagedMemory,
                         testing::Values(test::DeviceKind::cuda, test::DeviceKind::ze),
                         test::name_of_param);

TEST_P(ManagedMemory, is_the_cpus_and_may_be_registered) {
  auto* const at = static_cast<std::byte*>(devices().allocate_managed(4096));
  ASSERT_NE(at, nullptr);
  EXPECT_EQ(find(at), nullptr);
  const Added added = add(at, 4096);
  ASSERT_NE(added.registration, nullptr) << added.why;
  const std::vector<std::byte> sent = pattern(4000, 9);
  std::vector<std::byte> got(4000);
  EXPECT_TRUE(added.registration->copy_in(at + 7, sent.data(), sent.size()));
  EXPECT_EQ(std::memcmp(at + 7, sent.data(), sent.size()), 0);
  EXPECT_TRUE(added.registration->copy_out(got.data(), at + 7, got.size()));
  EXPECT_EQ(got, sent);
  EXPECT_TRUE(devices().free(at));
}

// CUDA alone: an application may have contexts of its own, and reset a device.
class Contexts : public test::DriverOf {};
INSTANTIATE_TEST_SUITE_P(Kinds, Contexts, testing::Values(test::DeviceKind::cuda),
                         test::name_of_param);

TEST_P(Contexts, memory_of_one_that_is_the_applications_own_is_copied) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* create =
      reinterpret_cast<int (*)(void**, unsigned, int)>(::dlsym(library, "cuCtxCreate_v2"));
  auto* destroy = reinterpret_cast<int (*)(void*)>(::dlsym(library, "cuCtxDestroy_v2"));
  auto* take = reinterpret_cast<int (*)(uint64_t*, size_t)>(::dlsym(library, "cuMemAlloc_v2"));
  const standin_counts before = devices().counts();
  void* context = nullptr;
  uint64_t place = 0;
  ASSERT_EQ(create(&context, 0, 0), 0);
  ASSERT_EQ(take(&place, 4096), 0);
  auto* const at = reinterpret_cast<std::byte*>(place);
  const Added added = add(at, 4096);
  ASSERT_NE(added.registration, nullptr) << added.why;
  devices().use_here();  // the primary one
  int value = 11;
  EXPECT_TRUE(added.registration->copy_in(at, &value, sizeof value));
  value = 0;
  EXPECT_TRUE(added.registration->copy_out(&value, at, sizeof value));
  EXPECT_EQ(value, 11);
  EXPECT_EQ(devices().counts().queues, before.queues);
  EXPECT_TRUE(devices().free(at));
  EXPECT_EQ(destroy(context), 0);
  EXPECT_EQ(devices().counts().queues, before.queues);
  EXPECT_FALSE(added.registration->copy_in(at, &value, sizeof value));
}

TEST_P(Contexts, memory_is_copied_again_after_the_device_was_reset) {
  if (!devices().is_standin()) GTEST_SKIP() << "a reset takes the other tests' memory away";
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* reset = reinterpret_cast<int (*)(int)>(::dlsym(library, "cuDevicePrimaryCtxReset_v2"));
  DeviceMemory memory(devices(), 4096);
  const Added added = add(memory.at(), 4096);
  int value = 3;
  ASSERT_TRUE(added.registration->copy_in(memory.at(), &value, sizeof value));
  ASSERT_EQ(reset(0), 0);
  EXPECT_TRUE(added.registration->copy_in(memory.at(), &value, sizeof value));
  EXPECT_TRUE(added.registration->copy_out(&value, memory.at(), sizeof value));
}

TEST_P(Drivers, copies_that_were_begun_go_on_at_one_time) {
  constexpr size_t kEach = 256 * 1024;
  DeviceMemory memory(devices(), 2 * kEach);
  const Added added = add(memory.at(), 2 * kEach);
  ASSERT_NE(added.registration, nullptr) << added.why;
  auto* const host = static_cast<std::byte*>(driver().take_host(2 * kEach));
  ASSERT_NE(host, nullptr);
  const std::vector<std::byte> bytes = pattern(2 * kEach, 5);
  std::copy(bytes.begin(), bytes.end(), host);
  const memory::Registration& to = *added.registration;
  {
    Flight first, second, never;
    EXPECT_FALSE(never.is_under_way());
    EXPECT_EQ(never.look(), Flight::State::none);
    EXPECT_TRUE(never.finish());
    ASSERT_TRUE(to.begin_in(first, memory.at(), host, kEach));
    ASSERT_TRUE(to.begin_in(second, memory.at() + kEach, host + kEach, kEach));
    if (devices().is_standin() && kind() == Kind::cuda) {
      EXPECT_GE(devices().counts().at_once, 2u);
      EXPECT_EQ(first.look(), Flight::State::under_way);
    }
    while (first.look() == Flight::State::under_way) {
    }
    EXPECT_EQ(first.look(), Flight::State::copied);
    EXPECT_TRUE(second.finish());
    std::fill_n(host, 2 * kEach, std::byte{});
    ASSERT_TRUE(to.begin_out(first, host, memory.at(), kEach));
    ASSERT_TRUE(to.begin_out(second, host + kEach, memory.at() + kEach, kEach));
  }  // which waits for both
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), host));
  driver().give_host(host, 2 * kEach);
}

TEST_P(Drivers, a_copy_of_memory_that_was_freed_does_not_begin) {
  DeviceMemory memory(devices(), 4096);
  const Added added = add(memory.at(), 4096);
  ASSERT_NE(added.registration, nullptr) << added.why;
  std::byte* const at = memory.at();
  ASSERT_TRUE(memory.free());
  Flight flight;
  std::byte byte{};
  EXPECT_FALSE(added.registration->begin_in(flight, at, &byte, 1));
  EXPECT_FALSE(added.registration->begin_out(flight, &byte, at, 1));
  EXPECT_FALSE(flight.is_under_way());
  EXPECT_FALSE(flight.finish());
}

}  // namespace
}  // namespace aperture::memory
