// The engine lock: exclusion while the bias is given, taken past, moved and dropped; labelled tsan.
#include "base/lock.hpp"

#include <gtest/gtest.h>
#include <linux/membarrier.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

namespace aperture {
namespace {

// A counter that only the lock protects: lost updates show, and ThreadSanitizer sees any race.
struct Guarded {
  EngineLock lock{true};
  uint64_t count = 0;
  uint64_t check = 0;

  void add() {
    ++count;
    check += count & 7;
  }
};

// As the kernel says: what is biased by it must not be skipped because we do not register.
bool has_membarrier() {
  const long commands = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  return commands > 0 && (commands & MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0;
}

uint64_t check_of(uint64_t count) {
  uint64_t sum = 0;
  for (uint64_t i = 1; i <= count; ++i) sum += i & 7;
  return sum;
}

void run(Guarded& g, int n) {
  for (int i = 0; i < n; ++i) {
    g.lock.lock();
    g.add();
    g.lock.unlock();
  }
}

TEST(EngineLock, unthreaded_lock_always_lets_in) {
  EngineLock lock(false);
  EXPECT_FALSE(lock.threaded());
  lock.lock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
  lock.unlock();
}

TEST(EngineLock, begins_without_a_bias_and_gets_one_from_use) {
  Guarded g;
  EXPECT_EQ(g.lock.generations(), 0u);
  run(g, 10);
  EXPECT_EQ(g.lock.generations(), 0u);
  run(g, 1000);
  if (!has_membarrier()) GTEST_SKIP() << "no membarrier(2) here: never biased";
  EXPECT_EQ(g.lock.generations(), 1u);
}

TEST(EngineLock, try_lock_of_another_thread_fails_while_inside) {
  Guarded g;
  run(g, 1000);  // biased to us
  g.lock.lock();
  bool got = true;
  std::thread([&] { got = g.lock.try_lock(); }).join();
  EXPECT_FALSE(got);
  g.lock.unlock();
  std::thread([&] {
    got = g.lock.try_lock();
    if (got) g.lock.unlock();
  }).join();
  EXPECT_TRUE(got);
}

TEST(EngineLock, try_lock_fails_while_a_visitor_is_inside) {
  Guarded g;
  run(g, 1000);
  std::atomic<int> step{0};
  std::thread visitor([&] {
    g.lock.lock();
    step = 1;
    while (step != 2) std::this_thread::yield();
    g.lock.unlock();
  });
  while (step != 1) std::this_thread::yield();
  EXPECT_FALSE(g.lock.try_lock());
  step = 2;
  visitor.join();
  EXPECT_TRUE(g.lock.try_lock());
  g.lock.unlock();
}

// Processor time of this thread, user's and kernel's.
std::chrono::microseconds thread_time() {
  rusage used{};
  ::getrusage(RUSAGE_THREAD, &used);
  const auto of = [](const timeval& t) {
    return std::chrono::seconds(t.tv_sec) + std::chrono::microseconds(t.tv_usec);
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

TEST(EngineLock, visitor_sleeps_while_the_owner_stays_inside_and_comes_in_when_it_has_left) {
  if (!has_membarrier()) GTEST_SKIP() << "no membarrier(2) here: never biased";
  using namespace std::chrono_literals;
  Guarded g;
  run(g, 1000);  // biased to us
  for (int round = 0; round < 3; ++round) {
    g.lock.lock();
    std::atomic<bool> coming{false};
    std::chrono::microseconds used{};
    std::thread visitor([&] {
      const auto before = thread_time();
      coming = true;
      g.lock.lock();
      g.add();
      g.lock.unlock();
      used = thread_time() - before;
    });
    while (!coming) std::this_thread::yield();
    std::this_thread::sleep_for(300ms);
    g.lock.unlock();
    visitor.join();
    EXPECT_LT(used, 100ms);
  }
  EXPECT_EQ(g.count, 1003u);
}

// Whichever way the holder has come in.
TEST(EngineLock, holder_is_told_that_another_thread_waits) {
  for (const int entries_before : {0, 1000}) {
    SCOPED_TRACE(entries_before);
    Guarded g;
    run(g, entries_before);
    g.lock.lock();
    EXPECT_FALSE(g.lock.is_wanted());
    std::thread visitor([&] { run(g, 1); });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!g.lock.is_wanted() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(g.lock.is_wanted());
    EXPECT_TRUE(g.lock.is_waited_for());
    g.lock.unlock();
    visitor.join();
    EXPECT_FALSE(g.lock.is_waited_for()) << "asked by whoever is outside";
    g.lock.lock();
    EXPECT_FALSE(g.lock.is_wanted());
    g.lock.unlock();
  }
}

TEST(EngineLock, bias_moves_to_the_thread_that_keeps_coming) {
  if (!has_membarrier()) GTEST_SKIP() << "no membarrier(2) here: never biased";
  Guarded g;
  run(g, 1000);
  std::thread([&] { run(g, 1000); }).join();
  EXPECT_EQ(g.lock.generations(), 2u);
  EXPECT_EQ(g.count, 2000u);
}

TEST(EngineLock, after_the_last_generation_it_is_a_mutex_that_still_excludes) {
  Guarded g;
  for (int i = 0; i < 20; ++i) std::thread([&] { run(g, 500); }).join();
  EXPECT_LE(g.lock.generations(), 8u);
  EXPECT_EQ(g.count, 20u * 500);
  EXPECT_EQ(g.check, check_of(g.count));
}

void contend(int threads, int each, bool with_pauses) {
  Guarded g;
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      uint32_t seed = 12345u + static_cast<uint32_t>(t);
      for (int i = 0; i < each;) {
        // bursts, so that the bias moves from one to the next
        seed = seed * 1664525u + 1013904223u;
        const int burst = 1 + static_cast<int>(seed >> 24);
        if (seed >> 16 & 1) {
          run(g, burst);
        } else {
          for (int k = 0; k < burst;) {
            if (!g.lock.try_lock()) {
              std::this_thread::yield();
              continue;
            }
            g.add();
            g.lock.unlock();
            ++k;
          }
        }
        i += burst;
        if (with_pauses) std::this_thread::yield();
      }
    });
  }
  for (std::thread& t : all) t.join();
  EXPECT_EQ(g.check, check_of(g.count));
}

// New locks again and again: each has its generations before it.
TEST(EngineLock, two_threads_lose_no_update_while_the_bias_moves) {
  for (int round = 0; round < 40; ++round) contend(2, 3000, round % 2 == 0);
}

TEST(EngineLock, four_threads_lose_no_update_while_the_bias_moves) {
  for (int round = 0; round < 20; ++round) contend(4, 2000, round % 2 == 0);
}

TEST(EngineLock, frequent_owner_and_rare_visitor_exclude_each_other) {
  Guarded g;
  std::atomic<bool> done{false};
  std::thread visitor([&] {
    for (int i = 0; i < 300; ++i) {
      run(g, 1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    done = true;
  });
  while (!done) run(g, 100);
  visitor.join();
  EXPECT_EQ(g.check, check_of(g.count));
}

}  // namespace
}  // namespace aperture
