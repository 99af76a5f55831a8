// run_pair() yields a row whatever becomes of its two processes, and leaves none of them behind.
#include "stopwatch/pair.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/clock.hpp"
#include "harness/all_to_all.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/gate.hpp"
#include "stopwatch/pages.hpp"
#include "stopwatch/pairs.hpp"
#include "stopwatch/tally.hpp"
#include "stopwatch/task.hpp"

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

TEST(Group, rank_0_has_a_channel_to_each_of_the_others) {
  const Row row = run_group(unpinned(10), 4, [](Side& side) {
    if (side.rank != 0) {
      side.channel.send_word(10u * static_cast<unsigned>(side.rank));
      return Row{};
    }
    double sum = static_cast<double>(side.channel.receive_word());
    for (Channel& other : side.others) sum = 2 * sum + static_cast<double>(other.receive_word());
    return ok_row(sum);
  });
  EXPECT_TRUE(row.ok) << row.note;
  EXPECT_EQ(row.value, (10 * 2 + 20) * 2 + 30);
  expect_no_children();
}

TEST(Group, each_rank_gathers_what_all_have) {
  const Row row = run_group(unpinned(10), 4, [](Side& side) {
    const std::vector<int> all = gather(side, 7 * side.rank);
    if (all != std::vector<int>{0, 7, 14, 21}) throw Failure("%zu gathered", all.size());
    return ok_row(1);
  });
  EXPECT_TRUE(row.ok) << row.note;
}

TEST(Group, failure_of_any_side_is_the_reason) {
  const Row row = run_group(unpinned(10), 4, [](Side& side) -> Row {
    if (side.rank == 2) throw Failure("byte %d is wrong", 7);
    if (side.rank == 0) side.others.at(0).receive_word();
    if (side.rank != 0) side.channel.receive_word();
    return ok_row(1);
  });
  EXPECT_FALSE(row.ok);
  EXPECT_EQ(row.note, "target 2: byte 7 is wrong");
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

// The two that wait are not waited for: patience is 3 s, and they have several times that.
TEST(Pairs, one_that_fails_before_the_gate_fails_them_all_with_its_reason_at_once) {
  const Pages shared(4096, Pages::Kind::shared);
  auto& number = *reinterpret_cast<std::atomic<int>*>(shared.data());
  const uint64_t start = now_ns();
  const Row row = run_pairs(unpinned(30), 3, [&](Side& side) {
    if (side.rank == 1) return Row{};
    if (number++ == 0) throw Failure("no device");
    side.gate->pass();
    return ok_row(1);
  });
  EXPECT_FALSE(row.ok);
  EXPECT_NE(row.note.find("no device"), std::string::npos) << row.note;
  EXPECT_LT(now_ns() - start, 8'000'000'000u);
  expect_no_children();
}

TEST(Pairs, one_that_fails_between_start_and_end_fails_those_that_wait_for_the_end) {
  const Pages shared(4096, Pages::Kind::shared);
  auto& number = *reinterpret_cast<std::atomic<int>*>(shared.data());
  const Row row = run_pairs(unpinned(30), 2, [&](Side& side) {
    if (side.rank == 1) return Row{};
    side.gate->pass();
    if (number++ == 0) throw Failure("wrong data");
    side.gate->leave();
    side.gate->await_closed();
    return ok_row(1);
  });
  EXPECT_FALSE(row.ok);
  EXPECT_NE(row.note.find("wrong data"), std::string::npos) << row.note;
  expect_no_children();
}

TEST(Pairs, none_is_left_when_not_all_can_be_started) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = ::dup(0);
  ASSERT_GE(lowest, 0);
  ::close(lowest);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(lowest) + 4;  // the pipes of three
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_THROW(run_pairs(unpinned(10), 8, [](Side&) { return ok_row(1); }), Failure);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  expect_no_children();
}

// One operation is a sleep. The pair that is ten times as slow ends last, and what the fast one
// does beyond the time is no part of its rate.
class Sleeping final : public Task {
 public:
  Sleeping(Side& side, unsigned us) : Task(side), us_(us) {}
  void verify(uint64_t, Channel&) override {}
  void initiate(uint64_t count, Samples&) override {
    for (uint64_t i = 0; i < count; i++) ::usleep(us_);
  }
  void progress(int) override { ::usleep(100); }

 private:
  const unsigned us_;
};

Row together(const Extent& extent, unsigned slow_us) {
  static const Pages shared(4096, Pages::Kind::shared);
  auto& number = *reinterpret_cast<std::atomic<int>*>(shared.data());
  number = 0;
  return run_pairs(unpinned(20), 2, [&](Side& side) {
    Plan plan;
    plan.extent = extent;
    plan.latency = false;
    Sleeping task(side, side.rank == 0 && number++ == 0 ? slow_us : 1000);
    return direct(task, side, plan);
  });
}

TEST(Pairs, rates_of_a_given_count_are_over_the_time_of_the_slowest) {
  const Row row = together({0, 20}, 20'000);  // 20 operations in 0.4 s, by both
  ASSERT_TRUE(row.ok) << row.note;
  EXPECT_GT(row.value, 0);
  EXPECT_LT(row.value, 2 * 20 / 0.4 * 1e-6 * 1.01);
  EXPECT_NEAR(row.spread.min * 2, row.value, 1e-9);
}

TEST(Pairs, rates_of_a_given_time_are_of_each) {
  const Row row = together({0.1, 0}, 10'000);
  ASSERT_TRUE(row.ok) << row.note;
  EXPECT_LE(row.spread.min, 1e-4 * 1.01);      // the slow one: 100 a second at most
  EXPECT_LT(row.value, (1e-4 + 1e-3) * 1.01);  // and the other 1000
  EXPECT_GT(row.value, 3 * row.spread.min);
}

TEST(Tally, what_was_done_between_two_looks_was_done_evenly) {
  Tally tally(100);
  EXPECT_EQ(tally.at(100), 0);
  tally.add(10, 200);
  tally.add(20, 300);
  EXPECT_EQ(tally.done(), 30u);
  EXPECT_EQ(tally.at(300), 30);
  EXPECT_EQ(tally.at(250), 20);
  EXPECT_EQ(tally.at(200), 10);
  EXPECT_EQ(tally.at(400), 30);  // it stood still since
}

}  // namespace
}  // namespace aperture::bench
