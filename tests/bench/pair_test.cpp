// run_pair() yields a row whatever becomes of its two processes, and leaves none of them behind.
#include "stopwatch/pair.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "stopwatch/failure.hpp"
#include "stopwatch/gate.hpp"
#include "stopwatch/pages.hpp"
#include "stopwatch/pairs.hpp"
#include "stopwatch/patience.hpp"

namespace aperture::bench {
namespace {

PairOptions unpinned(double timeout_s) {
  PairOptions options;
  options.cpus[0] = options.cpus[1] = -1;
  options.timeout_s = timeout_s;
  return options;
}

Row ok_row(double value) {
  Row row;
  row.ok = true;
  row.value = value;
  row.note = "fine";
  return row;
}

void expect_no_children() {
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(Pair, row_of_rank_0_is_the_result) {
  const Row row = run_pair(unpinned(10), [](Side& side) {
    if (side.rank == 0) {
      side.channel.send_word(20);
      return ok_row(static_cast<double>(side.channel.receive_word()));
    }
    side.channel.send_word(side.channel.receive_word() + 1);
    return Row{};
  });
  EXPECT_TRUE(row.ok);
  EXPECT_EQ(row.value, 21);
  EXPECT_EQ(row.note, "fine");
  expect_no_children();
}

TEST(Pair, failure_of_a_side_is_the_reason) {
  const Row row = run_pair(unpinned(10), [](Side& side) -> Row {
    if (side.rank == 1) throw Failure("byte %d is wrong", 7);
    side.channel.receive_word();
    return ok_row(1);
  });
  EXPECT_FALSE(row.ok);
  EXPECT_EQ(row.note, "target: byte 7 is wrong");
  expect_no_children();
}

TEST(Pair, killed_side_fails_the_row) {
  const Row row = run_pair(unpinned(10), [](Side& side) -> Row {
    if (side.rank == 0) ::kill(::getpid(), SIGKILL);
    side.channel.receive_word();
    return Row{};
  });
  EXPECT_FALSE(row.ok);
  EXPECT_NE(row.note.find("initiator died: Killed"), std::string::npos) << row.note;
  expect_no_children();
}

TEST(Pair, hanging_sides_are_ended) {
  const Row row = run_pair(unpinned(0.3), [](Side&) -> Row {
    ::signal(SIGTERM, SIG_IGN);
    while (true) ::pause();
  });
  EXPECT_FALSE(row.ok);
  EXPECT_NE(row.note.find("did not end"), std::string::npos) << row.note;
  expect_no_children();
}

TEST(Pair, cpu_that_does_not_exist_is_said) {
  PairOptions options = unpinned(10);
  options.cpus[0] = 1023;
  const Row row = run_pair(options, [](Side&) { return ok_row(1); });
  EXPECT_FALSE(row.ok);
  EXPECT_NE(row.note.find("CPU 1023"), std::string::npos) << row.note;
}

TEST(Pages, pattern_is_found_and_its_breach_too) {
  Pages pages(4099, Pages::Kind::own);
  fill_pattern(pages.data(), pages.size(), 5);
  EXPECT_EQ(first_mismatch(pages.data(), pages.size(), 5), pages.size());
  EXPECT_EQ(first_mismatch(pages.data(), pages.size(), 6), 0u);
  pages.data()[4098] ^= std::byte{1};
  EXPECT_EQ(first_mismatch(pages.data(), pages.size(), 5), 4096u);
}

TEST(Pairs, row_is_the_sum_of_all_and_tells_the_slowest_and_the_fastest) {
  const Pages shared(4096, Pages::Kind::shared);
  auto& number = *reinterpret_cast<std::atomic<int>*>(shared.data());
  const Row row = run_pairs(unpinned(10), 3, [&](Side& side) {
    if (side.rank == 1) return Row{};
    side.gate->pass();
    return ok_row(10.0 * ++number);
  });
  ASSERT_TRUE(row.ok) << row.note;
  EXPECT_EQ(row.value, 60);
  EXPECT_EQ(row.spread.min, 10);
  EXPECT_NE(row.note.find("3 pairs, of 10 to 30 each; fine"), std::string::npos) << row.note;
  expect_no_children();
}

TEST(Pairs, one_that_fails_before_the_gate_fails_them_all_with_its_reason) {
  set_patience(0.5);
  const Pages shared(4096, Pages::Kind::shared);
  auto& number = *reinterpret_cast<std::atomic<int>*>(shared.data());
  const Row row = run_pairs(unpinned(10), 2, [&](Side& side) {
    if (side.rank == 1) return Row{};
    if (number++ == 0) throw Failure("no device");
    side.gate->pass();
    return ok_row(1);
  });
  set_patience(3);
  EXPECT_FALSE(row.ok);
  EXPECT_NE(row.note.find("no device"), std::string::npos) << row.note;
  expect_no_children();
}

}  // namespace
}  // namespace aperture::bench
