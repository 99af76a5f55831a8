// What a process has one of, and what a forked child finds of it.
#include "base/per_process.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/forked.hpp"

namespace aperture {
namespace {

using aperture::test::holds_in_child;

TEST(PerProcess, all_threads_find_the_same_object) {
  static constinit PerProcess<std::atomic<int>> one;
  EXPECT_EQ(one.existing(), nullptr);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([] { ++one.get(); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(*one.existing(), 4);
}

TEST(PerProcess, a_failure_is_told_and_the_next_one_tries_again) {
  static constinit PerProcess<int> one;
  EXPECT_EQ(one.get([]() -> Result<int*> { return Errc::no_fds; }).error(), Errc::no_fds);
  EXPECT_EQ(one.existing(), nullptr);
  one.get() = 7;
  EXPECT_EQ(*one.existing(), 7);
}

TEST(PerProcess, a_forked_child_has_another_one_and_so_has_its_child) {
  static constinit PerProcess<int> one;
  one.get() = 1;
  EXPECT_TRUE(holds_in_child([] {
    if (one.existing() != nullptr || one.get() != 0) return false;
    one.get() = 2;
    return holds_in_child([] { return one.existing() == nullptr && one.get() == 0; }) &&
           one.get() == 2;
  }));
  EXPECT_EQ(one.get(), 1);
}

TEST(ProcessLock, one_thread_at_a_time_has_it) {
  static constinit ProcessLock lock;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        const std::lock_guard guard(lock);
        ++count;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

TEST(ProcessLock, is_free_in_a_forked_child_whoever_holds_it_in_the_parent) {
  static constinit ProcessLock lock;
  lock.lock();
  EXPECT_TRUE(holds_in_child([] {
    ::alarm(10);
    lock.lock();
    lock.unlock();
    return true;
  }));
  lock.unlock();
}

TEST(FoundOnce, is_found_once_and_kept_in_a_forked_child) {
  static constinit FoundOnce<int> value;
  static int times = 0;
  const auto find = [] { return ++times; };
  EXPECT_EQ(value.get(find), 1);
  EXPECT_EQ(value.get(find), 1);
  EXPECT_TRUE(holds_in_child([&] { return value.get(find) == 1; }));
}

TEST(FoundOnce, a_child_that_was_forked_in_the_middle_finds_it_by_itself) {
  static constinit FoundOnce<int> value;
  static std::atomic<int> begun{0};
  static std::atomic<bool> go_on{false};
  std::thread slow([] {
    value.get([] {
      begun = 1;
      while (!go_on) std::this_thread::yield();
      return 1;
    });
  });
  while (begun == 0) std::this_thread::yield();
  EXPECT_TRUE(holds_in_child([] {
    ::alarm(10);
    return value.get([] { return 2; }) == 2;
  }));
  go_on = true;
  slow.join();
  EXPECT_EQ(value.get([] { return 3; }), 1);
}

}  // namespace
}  // namespace aperture
