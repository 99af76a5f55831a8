// run_pair() yields a row whatever becomes of its two processes, and leaves none of them behind.
#include "stopwatch/pair.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

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

}  // namespace
}  // namespace aperture::bench
