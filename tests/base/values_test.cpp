// Errc, Status, Result, Wild and the clock.
#include <errno.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <type_traits>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "base/errc.hpp"
#include "base/wild.hpp"

namespace aperture {
namespace {

constexpr uint16_t kLast = static_cast<uint16_t>(Errc::io);

TEST(Errc, each_has_words_of_its_own) {
  std::set<std::string> seen;
  for (uint16_t i = 0; i <= kLast; ++i) {
    const std::string words = describe(static_cast<Errc>(i));
    EXPECT_NE(words, "unknown error") << i;
    EXPECT_TRUE(seen.insert(words).second) << words << " twice";
  }
  EXPECT_STREQ(describe(static_cast<Errc>(kLast + 1)), "unknown error");
}

TEST(Errc, errno_has_a_neighbour_and_the_unknown_is_io) {
  EXPECT_EQ(errc_from_errno(0), Errc::ok);
  EXPECT_EQ(errc_from_errno(EMFILE), Errc::no_fds);
  EXPECT_EQ(errc_from_errno(ENFILE), Errc::no_fds);
  EXPECT_EQ(errc_from_errno(ENOMEM), Errc::no_memory);
  EXPECT_EQ(errc_from_errno(ENOSPC), Errc::no_space);
  EXPECT_EQ(errc_from_errno(EPERM), Errc::access_denied);
  EXPECT_EQ(errc_from_errno(EPIPE), Errc::peer_lost);
  EXPECT_EQ(errc_from_errno(EXDEV), Errc::io);
  for (int e = 1; e < 200; ++e) EXPECT_NE(errc_from_errno(e), Errc::ok) << e;
}

TEST(Status, default_is_success_and_an_errc_is_not) {
  EXPECT_TRUE(Status().ok());
  const Status bad = Errc::busy;
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error(), Errc::busy);
}

TEST(Result, holds_a_value_or_an_error_and_moves) {
  Result<std::unique_ptr<int>> good = std::make_unique<int>(7);
  ASSERT_TRUE(good);
  EXPECT_EQ(good.error(), Errc::ok);
  const std::unique_ptr<int> taken = *std::move(good);
  EXPECT_EQ(*taken, 7);
  const Result<std::unique_ptr<int>> bad = Errc::no_entry;
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.error(), Errc::no_entry);
}

// A peer's number cannot be compared, added or used as an index by accident.
static_assert(!std::is_convertible_v<Wild<uint64_t>, uint64_t>);
static_assert(!std::is_convertible_v<uint64_t, Wild<uint64_t>>);
static_assert(std::is_trivially_copyable_v<Wild<uint64_t>>);

TEST(Wild, bounded_hands_out_only_what_is_within_the_limit) {
  uint32_t out = 99;
  EXPECT_TRUE(Wild<uint32_t>(7).bounded(7, out));
  EXPECT_EQ(out, 7u);
  out = 99;
  EXPECT_FALSE(Wild<uint32_t>(8).bounded(7, out));
  EXPECT_EQ(out, 99u);
  EXPECT_FALSE(Wild<uint32_t>(~0u).bounded(7, out));
  EXPECT_EQ(Wild<uint32_t>(~0u).unchecked(), ~0u);
  EXPECT_EQ(Wild<uint32_t>().unchecked(), 0u);
}

TEST(Clock, does_not_go_backwards_and_ticks_agree_with_it) {
  const uint64_t a = now_ns();
  const uint64_t one_ms = ticks_from_ns(1'000'000);
  EXPECT_GT(one_ms, 0u);
  const uint64_t t0 = ticks();
  const uint64_t n0 = now_ns();
  EXPECT_GE(n0, a);
  while (ticks() - t0 < 5 * one_ms) cpu_relax();
  const uint64_t elapsed = now_ns() - n0;
  EXPECT_GE(elapsed, 4'000'000u);  // calibration is good to some percent; preemption only adds
}

TEST(Barrier, registration_is_idempotent_and_the_barrier_returns) {
  const bool first = register_for_heavy_barriers();
  EXPECT_EQ(register_for_heavy_barriers(), first);
  heavy_barrier();
  light_barrier();
  full_fence();
}

}  // namespace
}  // namespace aperture
