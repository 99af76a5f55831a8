// Host memory that stands in for device memory is kept between operations: what was used last.
#include "provider/staging_memory.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>

namespace aperture::provider {
namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

// Counts what it pins.
class Pinning final : public memory::Driver {
 public:
  memory::Kind kind() const noexcept override { return memory::Kind::cuda; }
  Result<std::shared_ptr<const memory::Registration>> add(void*, size_t, int,
                                                          const char*& why) noexcept override {
    why = "it has no memory";
    return Errc::invalid;
  }
  bool has(const void*) const noexcept override { return false; }
  std::shared_ptr<const memory::Registration> open(const memory::Share&, size_t,
                                                   pid_t) noexcept override {
    return nullptr;
  }
  void* take_host(size_t n) noexcept override {
    ++taken;
    bytes += n;
    return std::malloc(n);
  }
  void give_host(void* at, size_t n) noexcept override {
    bytes -= n;
    std::free(at);
  }
  size_t taken = 0, bytes = 0;
};

class Staged : public testing::Test {
 protected:
  void use(size_t n) {
    std::byte* const at = memory_->take(driver_, n);
    ASSERT_NE(at, nullptr);
    at[0] = at[n - 1] = std::byte{1};
    memory_->give(driver_, at, n);
  }
  Pinning driver_;
  std::optional<StagingMemory> memory_{std::in_place};
};

TEST_F(Staged, what_comes_back_is_used_again) {
  for (int i = 0; i < 10; ++i) {
    for (const size_t n : {size_t{1}, size_t{4097}, kMegabyte}) use(n);
  }
  EXPECT_EQ(driver_.taken, 3u);
  memory_.reset();
  EXPECT_EQ(driver_.bytes, 0u);
}

TEST_F(Staged, long_messages_are_not_pinned_anew_after_shorter_ones) {
  for (size_t n = 1; n <= 32 * kMegabyte; n *= 2) use(n);  // some 64 MiB of all lengths
  const auto two = [this] {
    std::byte* const a = memory_->take(driver_, 64 * kMegabyte);
    std::byte* const b = memory_->take(driver_, 64 * kMegabyte);
    memory_->give(driver_, a, 64 * kMegabyte);
    memory_->give(driver_, b, 64 * kMegabyte);
  };
  two();
  const size_t before = driver_.taken;
  for (int i = 0; i < 5; ++i) two();
  EXPECT_EQ(driver_.taken, before);
  EXPECT_LE(driver_.bytes, StagingMemory::kMostKept);
  memory_.reset();
  EXPECT_EQ(driver_.bytes, 0u);
}

TEST_F(Staged, what_has_lain_longest_goes_first) {
  for (const size_t n : {64, 32, 16, 8, 4, 2, 1}) use(n * kMegabyte);
  use(64 * kMegabyte);  // so that the one of 32 has lain longest
  use(kMegabyte / 2);
  std::byte* const one = memory_->take(driver_, kMegabyte);
  use(kMegabyte);
  EXPECT_EQ(driver_.taken, 9u);
  memory_->give(driver_, one, kMegabyte);  // 128.5 MiB with it
  EXPECT_LE(driver_.bytes, StagingMemory::kMostKept);
  use(64 * kMegabyte);
  use(16 * kMegabyte);
  use(kMegabyte);
  EXPECT_EQ(driver_.taken, 9u);
  use(32 * kMegabyte);
  EXPECT_EQ(driver_.taken, 10u);
}

TEST_F(Staged, what_is_longer_is_not_pinned) {
  use(StagingMemory::kLargest + 1);
  EXPECT_EQ(driver_.taken, 0u);
}

}  // namespace
}  // namespace aperture::provider
