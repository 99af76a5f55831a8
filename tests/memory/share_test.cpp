// What a driver gives out of its memory for other processes, and what it takes of theirs: anything.
// That it works between two processes is for tests/doors/device_peer_test.cpp to show.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <random>

#include "memory/driver_of.hpp"

namespace aperture::memory {
namespace {

using test::DeviceMemory;

constexpr size_t kBlock = size_t{2} << 20;

class Shares : public test::DriverOf {
 protected:
};
INSTANTIATE_TEST_SUITE_P(Kinds, Shares, testing::ValuesIn(test::kDeviceKinds), test::name_of_param);

TEST_P(Shares, whole_blocks_of_a_device_are_shared) {
  DeviceMemory memory(devices(), 2 * kBlock);
  for (const size_t offset : {size_t{0}, size_t{77}, kBlock + 1}) {
    const Added added = add(memory.at() + offset, 100);
    ASSERT_NE(added.registration, nullptr) << added.why;
    EXPECT_EQ(added.registration->begin(), memory.at() + offset);
    Share share;
    ASSERT_TRUE(added.registration->share(share));
    EXPECT_EQ(share.kind, static_cast<uint64_t>(kind()));
    EXPECT_EQ(share.offset, offset);
    EXPECT_NE(share.id, 0u);
  }
}

// They may lie in one block with others, and a handle reaches all of it.
TEST_P(Shares, parts_of_blocks_are_not) {
  for (const size_t size : {size_t{4096}, kBlock / 2, kBlock + 4096}) {
    DeviceMemory memory(devices(), size);
    const Added added = add(memory.at(), size);
    ASSERT_NE(added.registration, nullptr) << added.why;
    Share share;
    EXPECT_FALSE(added.registration->share(share)) << size;
  }
}

TEST_P(Shares, what_was_freed_or_is_managed_is_not) {
  DeviceMemory memory(devices(), kBlock);
  const Added added = add(memory.at(), kBlock);
  ASSERT_NE(added.registration, nullptr) << added.why;
  ASSERT_TRUE(memory.free());
  DeviceMemory next(devices(), kBlock);  // often at the same address
  Share share;
  EXPECT_FALSE(added.registration->share(share));
  void* const managed = devices().allocate_managed(kBlock);
  if (managed == nullptr) return;
  const Added both = add(managed, kBlock);
  ASSERT_NE(both.registration, nullptr) << both.why;
  EXPECT_FALSE(both.registration->share(share));
  EXPECT_TRUE(devices().free(managed));
}

TEST_P(Shares, a_driver_that_fails_shares_nothing_and_opens_nothing) {
  if (!devices().is_standin()) GTEST_SKIP() << "a real driver never fails";
  DeviceMemory memory(devices(), kBlock);
  const Added added = add(memory.at(), kBlock);
  ASSERT_NE(added.registration, nullptr) << added.why;
  Share share;
  const size_t calls = devices().counts().calls;
  const bool shared = added.registration->share(share);
  const size_t n = devices().counts().calls - calls;
  for (size_t nth = 1; shared && nth <= n; ++nth) {
    const Added fresh = add(memory.at(), kBlock);
    ASSERT_NE(fresh.registration, nullptr) << fresh.why;
    devices().fail(nth);
    Share other;
    EXPECT_FALSE(fresh.registration->share(other)) << nth;
    devices().fail(0);
  }
  devices().fail(0);
  void* const before = devices().current();
  EXPECT_EQ(memory::open(share, 64, ::getpid()), nullptr) << "its own";
  EXPECT_EQ(devices().current(), before);
}

// hostile: whatever a peer's memory holds
TEST_P(Shares, wild_bytes_open_nothing) {
  DeviceMemory memory(devices(), kBlock);
  const Added added = add(memory.at(), kBlock);
  ASSERT_NE(added.registration, nullptr) << added.why;
  Share good;
  (void)added.registration->share(good);
  const char* text = std::getenv("APERTURE_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device()();
  SCOPED_TRACE("APERTURE_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const size_t rounds = devices().is_standin() ? 2000 : 50;
  for (size_t i = 0; i < rounds; ++i) {
    Share wild = good;
    auto* const bytes = reinterpret_cast<unsigned char*>(&wild);
    if (i % 4 == 0) {
      for (size_t at = 0; at < sizeof wild; ++at) bytes[at] = static_cast<unsigned char>(random());
    } else {
      // a handle of nobody's, of this device: only so much of it is wild
      for (size_t n = random() % 8 + 1; n > 0; --n)
        wild.handle[random() % wild.handle.size()] = static_cast<std::byte>(random());
      wild.handle[3] = std::byte{0x7f};  // to the stand-in: of a process that there cannot be
      wild.offset = random() % 2 == 0 ? ~uint64_t{0} - random() % 64 : random() % (2 * kBlock);
    }
    EXPECT_EQ(memory::open(wild, 1 + random() % (2 * kBlock), ::getppid()), nullptr);
  }
  EXPECT_EQ(memory::open(good, 0, ::getppid()), nullptr);
  EXPECT_EQ(devices().counts().shared, 0u);
}

TEST_P(Shares, memory_that_the_driver_has_pinned_is_known) {
  auto* const host = static_cast<std::byte*>(driver().take_host(8192));
  ASSERT_NE(host, nullptr);
  std::vector<std::byte> plain(8192);
  DeviceMemory memory(devices(), 8192);
  EXPECT_EQ(driver().has_pinned(host, 8192), kind() == Kind::cuda);
  EXPECT_EQ(driver().has_pinned(host + 8191, 1), kind() == Kind::cuda);
  EXPECT_FALSE(driver().has_pinned(plain.data(), 8192));
  EXPECT_FALSE(driver().has_pinned(memory.at(), 8192));
  EXPECT_FALSE(driver().has_pinned(host, size_t{1} << 30));
  driver().give_host(host, 8192);
}

}  // namespace
}  // namespace aperture::memory
