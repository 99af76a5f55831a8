// The same steps by several threads at once, in signal handlers, and where the kernel lets us not
// notice anything. Bounded by counts: what a machine makes of them in time does not matter.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <random>
#include <thread>

#include "steps.hpp"

namespace aperture::regcache::test {
namespace {

class Races : public Steps {
 protected:
  static constexpr size_t kLen = 2 * kPage;

  // Like expect_exact(), for threads: a word of each page.
  void expect_word(uint8_t* at, uint64_t word) {
    for (size_t page = 0; page < kLen; page += kPage) std::memcpy(at + page, &word, sizeof word);
    auto use = cache_->acquire(at, kLen, Access::read_write);
    ASSERT_TRUE(use) << describe(use.error());
    for (size_t page = 0; page < kLen; page += kPage) {
      const auto bytes = pages_.read(use->resource(), at + page, sizeof word);
      uint64_t found = 0;
      if (bytes.size() == sizeof found) std::memcpy(&found, bytes.data(), sizeof found);
      ASSERT_EQ(found, word);
    }
    cache_->release(*use);
  }
};

// Places that all threads share: who holds one unmaps it, drops it, moves it away and back, or
// leaves it, and then uses it.
TEST_P(Races, step_21_sixteen_threads_unmap_and_look_up) {
  constexpr size_t kPlaces = 8;
  constexpr int kThreads = 16, kRounds = 200;
  struct Place {
    std::mutex mutex;
    uint8_t* at = nullptr;
  } places[kPlaces];
  for (Place& place : places) place.at = map(kLen);
  std::atomic<uint64_t> words{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t) + 1);
      for (int i = 0; i < kRounds && !HasFailure(); ++i) {
        Place& place = places[random() % kPlaces];
        const std::lock_guard lock(place.mutex);
        switch (random() % 5) {
          case 0:
            ::munmap(place.at, kLen);
            place.at = map(kLen);
            break;
          case 1: map(kLen, place.at, MAP_FIXED); break;
          case 2: ::madvise(place.at, kLen, MADV_DONTNEED); break;
          case 3:
            place.at = static_cast<uint8_t*>(
                ::mremap(place.at, kLen, kLen, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr));
            break;
          default: break;
        }
        expect_word(place.at, ++words);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Place& place : places) ::munmap(place.at, kLen);
  EXPECT_GT(cache_->counts().stale, 0u);
}

// Whoever gets the address of memory that somebody else is just unmapping, whose call has not
// returned: the kernel has not even said so.
TEST_P(Races, step_22_mapped_again_while_the_unmapping_call_has_not_returned) {
  constexpr int kRounds = 500;
  uint8_t* at = map(kLen);
  for (uint64_t i = 1; i <= kRounds && !HasFailure(); ++i) {
    expect_word(at, 2 * i);
    std::atomic<bool> go{false};
    std::thread unmaps([&] {
      go = true;
      ::munmap(at, kLen);
    });
    while (!go) continue;
    while (::mmap(at, kLen, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != at) {
    }
    expect_word(at, 2 * i + 1);
    unmaps.join();
    expect_word(at, 2 * i + 1);
  }
  ::munmap(at, kLen);
}

uint8_t* g_handled = nullptr;
std::atomic<int> g_handlers{0};

void unmap_and_map(int) {
  ::munmap(g_handled, kPage);
  ::mmap(g_handled, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  ++g_handlers;
}

// In the middle of a call of ours, whatever it holds.
TEST_P(Races, step_27_unmapped_in_a_signal_handler) {
  g_handled = map(kPage);
  uint8_t* const other = map(64 * kPage);
  struct sigaction action {};
  action.sa_handler = unmap_and_map;
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{{0, 200}, {0, 200}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  for (uint64_t i = 0; g_handlers < 200 && !HasFailure(); ++i) {
    use(g_handled, kPage);
    uint8_t* const page = other + i % 64 * kPage;
    *page = static_cast<uint8_t>(i);
    expect_exact(page, 1);
  }
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  expect_exact(g_handled, kPage);
  ::munmap(g_handled, kPage);
  ::munmap(other, 64 * kPage);
}

// As a container may be set up.
bool deny_userfaultfd() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xAA00 /* USERFAULTFD_IOC_NEW */, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(code), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Monitors, step_28_where_userfaultfd_is_not_allowed_there_is_none_and_it_says_why) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!deny_userfaultfd()) ::_exit(2);
    PinnedPages pages;
    auto cache = Cache::create(pages, {});
    const char* why = "";
    auto monitor = UserfaultMonitor::create(**cache, why);
    const bool said = !monitor && monitor.error() == Errc::access_denied &&
                      std::strstr(why, "is not allowed here") != nullptr;
    // and without one what is handed out is right
    uint8_t* const at = map(kPage);
    auto use = (*cache)->acquire(at, kPage, Access::read);
    ::_exit(said && use && (*cache)->kept() == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "no kernel feature: seccomp filters";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

INSTANTIATE_TEST_SUITE_P(By, Races, kMonitors, name_of);

}  // namespace
}  // namespace aperture::regcache::test
