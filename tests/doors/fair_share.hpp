// hostile 37, as the tests of both doors check it: what the polls of a receiver take of a hog, and
// of its neighbour that always has short messages ready.
#pragma once

#include <gtest/gtest.h>
#include <time.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace aperture::doors {

inline constexpr size_t kShort = 64;      // bytes of a message of the neighbour's
inline constexpr size_t kReceives = 512;  // for them
inline constexpr size_t kHogOps = 48;     // under way at once

// What the hog does.
struct Attack {
  const char* name;
  enum class Kind { send, write, read } kind;
  size_t size;
};
inline void PrintTo(const Attack& attack, std::ostream* out) {
  *out << attack.name;
}
inline constexpr Attack kAttacks[] = {{"short_sends", Attack::Kind::send, 64},
                                      {"sends", Attack::Kind::send, 16 * 1024},
                                      {"large_sends", Attack::Kind::send, 512 * 1024},
                                      {"writes", Attack::Kind::write, 512 * 1024},
                                      {"reads", Attack::Kind::read, 512 * 1024}};

// By so many polls.
struct Taken {
  double messages = 0, hog_ops = 0, hog_bytes = 0, cpu_ns = 0;
};

inline double thread_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// The neighbour has as many messages of each poll beside the hog as alone, and 80 % of half the
// work. Time is told only: it depends on the machine.
inline void expect_share(const Attack& attack, const Taken& both, const Taken& alone, int polls) {
  // What a message costs beside the copying of its bytes, in bytes: 64 of them take about as long
  // as 32 KiB in shared memory, and as 64 KiB, which is a whole piece, where a stream is parsed.
  const char* const link = std::getenv("APERTURE_LINK");
  const double message_cost = link != nullptr && std::strcmp(link, "tcp") == 0 ? 1024 : 512;
  ASSERT_GT(both.hog_ops, 0);
  EXPECT_GE(both.messages, 0.8 * alone.messages) << "as many of each poll as alone";
  const double own = both.messages * (message_cost + kShort);
  const double hogs = both.hog_ops * message_cost + both.hog_bytes;
  const double share = own / (own + hogs);
  const double of_time = both.messages * alone.cpu_ns / alone.messages / both.cpu_ns;
  std::printf(
      "%s: %.1f messages a poll (%.1f alone) beside %.1f KiB of the hog: %.0f %% of the "
      "work, about %.0f %% of the time\n",
      attack.name, both.messages / polls, alone.messages / polls, both.hog_bytes / polls / 1024,
      100 * share, 100 * of_time);
  EXPECT_GE(share, 0.8 * 0.5);
}

}  // namespace aperture::doors
