// The control thread: posts, timers, descriptors, signals, and what it is in a forked child.
#include "nic/control_thread.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <thread>

#include "base/clock.hpp"
#include "base/forked.hpp"

namespace aperture::nic {
namespace {

ControlThread& control() {
  return *ControlThread::instance().value();
}

TEST(ControlThread, is_one_and_not_the_caller) {
  EXPECT_EQ(ControlThread::instance().value(), &control());
  EXPECT_FALSE(control().is_current());
  bool inside = false;
  char name[16] = {};
  control().run([&] {
    inside = control().is_current();
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
  });
  EXPECT_TRUE(inside);
  EXPECT_STREQ(name, "aperture-ctl");
}

TEST(ControlThread, takes_no_signals) {
  sigset_t blocked;
  control().run([&] { ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked); });
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM}) {
    EXPECT_EQ(::sigismember(&blocked, signal), 1) << signal;
  }
}

TEST(ControlThread, runs_posts_of_each_thread_in_order) {
  constexpr int kThreads = 4, kPosts = 1000;
  std::vector<std::vector<int>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &seen] {
      for (int i = 0; i < kPosts; ++i) control().post([t, i, &seen] { seen[t].push_back(i); });
    });
  }
  for (auto& thread : threads) thread.join();
  control().run([] {});
  for (const auto& order : seen) {
    ASSERT_EQ(order.size(), static_cast<size_t>(kPosts));
    for (int i = 0; i < kPosts; ++i) ASSERT_EQ(order[i], i);
  }
}

TEST(ControlThread, run_within_a_callback_does_not_wait_for_itself) {
  int depth = 0;
  control().run([&] {
    ++depth;
    control().run([&] { ++depth; });
  });
  EXPECT_EQ(depth, 2);
}

TEST(ControlThread, watched_descriptors_are_reported_until_unwatched) {
  const UniqueFd event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  std::atomic<int> calls{0};
  ControlThread::WatchId id = 0;
  control().run([&] {
    id = control()
             .watch(event.get(), EPOLLIN,
                    [&](uint32_t) {
                      uint64_t n;
                      if (::read(event.get(), &n, sizeof n) == sizeof n) ++calls;
                    })
             .value();
  });
  const uint64_t one = 1;
  ASSERT_EQ(::write(event.get(), &one, sizeof one), 8);
  for (int i = 0; i < 2000 && calls == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(calls, 1);
  control().run([&] { control().unwatch(id); });
  ASSERT_EQ(::write(event.get(), &one, sizeof one), 8);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(calls, 1);
  control().run([&] {
    control().unwatch(id);
    control().unwatch(0);
  });
}

TEST(ControlThread, a_callback_may_unwatch_itself_and_others_of_the_same_turn) {
  const UniqueFd a(::eventfd(1, EFD_CLOEXEC)), b(::eventfd(1, EFD_CLOEXEC));
  int calls = 0;
  ControlThread::WatchId ids[2] = {};
  control().run([&] {
    const auto both = [&](uint32_t) {
      ++calls;
      control().unwatch(ids[0]);
      control().unwatch(ids[1]);
    };
    ids[0] = control().watch(a.get(), EPOLLIN, both).value();
    ids[1] = control().watch(b.get(), EPOLLIN, both).value();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  control().run([] {});
  EXPECT_EQ(calls, 1);
}

TEST(ControlThread, timers_fire_once_in_order_and_not_when_cancelled) {
  std::vector<int> fired;
  control().run([&] {
    const uint64_t now = now_ns();
    control().add_timer(now + 10'000'000, [&] { fired.push_back(2); });
    control().add_timer(now + 5'000'000, [&] { fired.push_back(1); });
    const auto cancelled = control().add_timer(now + 7'000'000, [&] { fired.push_back(99); });
    control().cancel_timer(cancelled);
    control().cancel_timer(cancelled);
    control().cancel_timer(0);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  control().run([] {});
  EXPECT_EQ(fired, (std::vector<int>{1, 2}));
}

TEST(ControlThread, is_another_in_a_forked_child) {
  const ControlThread* const parents = &control();
  const UniqueFd ours(::eventfd(0, EFD_CLOEXEC));
  const int number = ::dup(ours.get());
  const ParentOnlyFd parent_only{UniqueFd(number)};
  EXPECT_TRUE(aperture::test::holds_in_child([&] {
    if (!parents->life().is_over() || Life::now().has_begun() || parent_only.is_here())
      return false;
    if (::fcntl(number, F_GETFD) >= 0 || ::fcntl(ours.get(), F_GETFD) < 0) return false;
#if defined(__SANITIZE_THREAD__)
    return true;  // no thread can be started in a child of a process that has several
#else
    const auto own = ControlThread::instance();
    if (!own || own.value() == parents || !Life::now().has_begun()) return false;
    bool ran = false;
    own.value()->run([&] { ran = !own.value()->life().is_over(); });
    return ran;
#endif
  }));
  EXPECT_FALSE(parents->life().is_over());
  bool ran = false;
  control().run([&] { ran = true; });
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace aperture::nic
