// The steps of steps_test.cpp in which several processes, libraries, watchers or entries have a
// part.
#include <dirent.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <utility>

#include "steps.hpp"

#if defined(GUEST_NOW)
#include "guest.hpp"
#endif

namespace aperture::regcache::test {
namespace {

// What is found out is said at `warn`, of which the environment is asked once.
[[maybe_unused]] const int g_warned = ::setenv("APERTURE_LOG", "warn", 1);

TEST_P(Steps, step_14_parent_and_child_write) {
  for (const bool parent_first : {true, false}) {
    uint8_t* const at = kept(kLen);
    int go[2];
    ASSERT_EQ(::pipe2(go, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      char byte = 0;
      if (parent_first && ::read(go[0], &byte, 1) != 1) ::_exit(1);
      std::memset(at, 0xee, kLen);
      ::_exit(0);
    }
    if (!parent_first) ::waitpid(child, nullptr, 0);
    fill(at, kLen);
    expect_exact(at, kLen);
    if (parent_first) {
      ASSERT_EQ(::write(go[1], "x", 1), 1);
      ::waitpid(child, nullptr, 0);
    }
    expect_exact(at, kLen);
    ::close(go[0]);
    ::close(go[1]);
    ::munmap(at, kLen);
  }
  uint8_t* const at = kept(kLen);
  EXPECT_EQ(std::system("true"), 0);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

// It runs no handlers of pthread_atfork(3). The child lives on meanwhile.
TEST_P(Steps, step_14_a_fork_without_handlers) {
#if defined(__GLIBC__) && !__GLIBC_PREREQ(2, 34)
  GTEST_SKIP() << "no _Fork in this C library";
#else
  uint8_t* const at = kept(kLen);
  const pid_t child = ::_Fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  fill(at, kLen);
  expect_exact(at, kLen);
  keep(at, kLen);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::munmap(at, kLen);
#endif
}

// Forks of the parent's are none of its, and its own are over when they are.
TEST_P(Steps, step_14_a_child_that_forks_itself_goes_on_keeping) {
  const pid_t child = ::fork();
  if (child == 0) {
    Watched own(GetParam());
    if (own.monitor_ == nullptr) ::_exit(0);
    uint8_t* const at = own.kept(kLen);
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(0);
    ::waitpid(grandchild, nullptr, 0);
    own.fill(at, kLen);
    own.keep(at, kLen);
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_P(Steps, step_14_a_child_relies_on_nothing_of_its_parents) {
  uint8_t* const at = kept(kLen);
  const auto resource = use(at, kLen);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(use(at, kLen) != resource ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::munmap(at, kLen);
}

TEST_P(Steps, step_15_forks_with_registrations_that_overlap) {
  uint8_t* const at = kept(kLen);
  auto first = cache_->acquire(at, kLen, Access::read);
  auto second = cache_->acquire(at + kPage, 2 * kPage, Access::write);
  ASSERT_TRUE(first && second);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  fill(at, kLen);
  expect_exact(at, kLen);
  cache_->release(*first);
  expect_exact(at + kPage, 2 * kPage);
  cache_->release(*second);
  ::munmap(at, kLen);
}

TEST_P(Steps, step_16_ranges_that_overlap_are_exact) {
  uint8_t* const at = map(4 * kLen);
  fill(at, 4 * kLen);
  keep(at, kLen);
  keep(at + 2 * kLen, kLen);
  keep(at + kLen / 2, 2 * kLen);  // joins both
  EXPECT_EQ(cache_->kept(), 1u);
  fill(at, 4 * kLen);
  expect_exact(at, 3 * kLen);
  ::munmap(at + kLen, kPage);
  expect_exact(at, kLen);
  ::munmap(at, 4 * kLen);
}

TEST_P(Steps, step_17_unmapped_by_a_bare_system_call) {
  if (is_by_memhooks()) GTEST_SKIP() << "no hook is there: see Checked";
  uint8_t* const at = kept(kLen);
  ASSERT_EQ(::syscall(SYS_munmap, at, kLen), 0);
  ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

#if defined(GUEST_NOW)
// What it has, and what is mapped there when it is gone.
TEST_P(Steps, step_20_libraries_come_and_go) {
  for (int i = 0; i < 3; ++i) {
    uint8_t* at = nullptr;
    {
      const Guest guest(GUEST_NOW);
      at = reinterpret_cast<uint8_t*>(guest.of_library()) + kPage;
      fill(at, kLen);
      keep(at, kLen);
    }
    ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at) << "it is free";
    for (int uses = 0; uses < 3; ++uses) {  // also once everything has settled again
      fill(at, kLen);
      expect_exact(at, kLen);
    }
    keep(at, kLen);
    ::munmap(at, kLen);
  }
}

// Of its calls too the kernel tells not all.
TEST_P(Steps, step_20_what_a_library_does_that_was_loaded_later) {
  uint8_t* const at = kept(kLen);
  const Guest guest(GUEST_NOW);
  keep(at, kLen);
  ASSERT_EQ(guest.mprotect(at, kLen, PROT_NONE), 0);
  EXPECT_EQ(cache_->kept(), 0u);
  EXPECT_FALSE(cache_->acquire(at, kLen, Access::read_write));
  ::munmap(at, kLen);
}
#endif

TEST_P(Steps, step_23_moved_twice_in_a_row) {
  uint8_t* at = kept(kLen);
  uint8_t* const place = map(4 * kLen);
  for (int i = 0; i < 20; ++i) {
    uint8_t* const to = place + static_cast<size_t>(i % 2) * 2 * kLen;
    ASSERT_EQ(::mremap(at, kLen, kLen, MREMAP_MAYMOVE | MREMAP_FIXED, to), to);
    expect_exact(to, kLen);
    fill(to, kLen);
    expect_exact(to, kLen);
    at = to;
  }
  ::munmap(place, 4 * kLen);
}

TEST_P(Steps, step_24_untouched_pages_are_read_into_by_the_kernel_and_by_a_peer) {
  uint8_t* const at = map(kLen);
  use(at, kLen / 2);  // beside it nothing was ever touched
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  ASSERT_EQ(::write(fds[1], "abcd", 4), 4);
  EXPECT_EQ(::read(fds[0], at + kLen - kPage, 4), 4);
  expect_exact(at, kLen);
  const pid_t self = ::getpid();
  ::madvise(at, kLen, MADV_DONTNEED);
  const pid_t child = ::fork();
  if (child == 0) {
    char text[] = "peer";
    const iovec local{text, sizeof text}, remote{at + 2 * kPage, sizeof text};
    ::_exit(::process_vm_writev(self, &local, 1, &remote, 1, 0) == sizeof text ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (status == 0) {
    EXPECT_STREQ(reinterpret_cast<char*>(at + 2 * kPage), "peer");
  }
  expect_exact(at, kLen);
  ::close(fds[0]);
  ::close(fds[1]);
  ::munmap(at, kLen);
}

TEST_P(Steps, step_25_somebody_closes_all_descriptors) {
  uint8_t* const at = kept(kLen);
  for (int fd = 512; fd < 1100; ++fd) ::close(fd);
  ASSERT_EQ(::munmap(at, kLen), 0) << "and it returned";
  ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
  fill(at, kLen);
  expect_exact(at, kLen);
  EXPECT_EQ(monitor_->has_stopped(), !is_by_memhooks()) << "which has none";
  EXPECT_EQ(cache_->kept(), is_by_memhooks() ? 1u : 0u);
  ::munmap(at, kLen);
}

// The monitor's thread, if it has one: 0.
pid_t thread_of_monitor() {
  pid_t found = 0;
  DIR* const tasks = ::opendir("/proc/self/task");
  while (const dirent* const task = ::readdir(tasks)) {
    std::ifstream file("/proc/self/task/" + std::string(task->d_name) + "/comm");
    std::string name;
    if (std::getline(file, name) && name == "aperture-mr") found = std::atoi(task->d_name);
  }
  ::closedir(tasks);
  return found;
}

// A thread stops, as under a debugger, until this ends. By a child, since none traces itself.
class Stopped {
 public:
  explicit Stopped(pid_t thread) {
    EXPECT_EQ(::pipe2(begun_, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(end_, O_CLOEXEC), 0);
    child_ = ::fork();
    if (child_ == 0) {
      char byte = ::read(end_[0], &byte, 1) == 1 && ::ptrace(PTRACE_SEIZE, thread, 0, 0) == 0 &&
                          ::ptrace(PTRACE_INTERRUPT, thread, 0, 0) == 0 &&
                          ::waitpid(thread, nullptr, __WALL) == thread
                      ? 'y'
                      : 'n';
      if (::write(begun_[1], &byte, 1) != 1 || ::read(end_[0], &byte, 1) != 1) ::_exit(1);
      ::_exit(0);  // whom it traces goes on
    }
    ::prctl(PR_SET_PTRACER, child_, 0, 0, 0);
    char byte = 0;
    is_stopped_ = ::write(end_[1], "x", 1) == 1 && ::read(begun_[0], &byte, 1) == 1 && byte == 'y';
  }
  ~Stopped() { go_on(); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

  explicit operator bool() const { return is_stopped_; }
  void go_on() {
    if (child_ == 0) return;
    EXPECT_EQ(::write(end_[1], "x", 1), 1);
    ::waitpid(std::exchange(child_, 0), nullptr, 0);
    for (const int fd : {begun_[0], begun_[1], end_[0], end_[1]}) ::close(fd);
  }

 private:
  int begun_[2], end_[2];
  pid_t child_ = 0;
  bool is_stopped_ = false;
};

// Who unmaps what is watched waits for it, in the kernel. Nobody waits for it in a call of ours,
// and memory that somebody else has got there by then is not taken for the old.
TEST_P(Steps, step_25_the_reader_stands_still) {
  if (is_by_memhooks()) GTEST_SKIP() << "it has none";
  Stopped reader(thread_of_monitor());
  if (!reader) GTEST_SKIP() << "no kernel feature: ptrace is not allowed here";
  uint8_t* const other = map(kLen);
  uint8_t* const at = kept(kLen);
  std::atomic<bool> is_unmapped{false};
  std::thread unmaps([&] {
    ::munmap(at, kLen);
    is_unmapped = true;
  });
  while (::mmap(at, kLen, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                -1, 0) != at) {
  }
  for (int i = 0; i < 20; ++i) {
    fill(at, kLen);
    expect_exact(at, kLen);
    fill(other, kLen);
    expect_exact(other, kLen);
    cache_->trim();
  }
  EXPECT_FALSE(is_unmapped);
  reader.go_on();
  unmaps.join();
  keep(at, kLen);
  ::munmap(at, kLen);
  ::munmap(other, kLen);
}

TEST_P(Steps, step_29_memory_that_the_application_watches_itself) {
  const char* why = nullptr;
  auto theirs = open_userfault(why);
  ASSERT_TRUE(theirs) << why;
  uint8_t* const at = map(kLen);
  fill(at, kLen);
  const Range half = pages_around(at, kLen / 2);
  ASSERT_TRUE(register_range(theirs->get(), half));
  use(at, kLen);
  EXPECT_EQ(cache_->kept(), is_by_memhooks() ? 1u : 0u);
  expect_exact(at, kLen);
  keep(at + kLen / 2, kLen / 2);
  unregister_range(theirs->get(), half);
  ::munmap(at, kLen);
}

// What is kept no more is free for another userfaultfd, whatever became of it.
TEST_P(Steps, step_29_what_is_not_kept_any_more_is_not_watched) {
  const char* why = nullptr;
  auto theirs = open_userfault(why);
  ASSERT_TRUE(theirs) << why;
  constexpr size_t kAll = 64 * kPage;
  uint8_t* const at = map(kAll);
  fill(at, kAll);
  keep(at, 4 * kPage);
  ASSERT_EQ(::munmap(at + kPage, kPage), 0);
  ASSERT_EQ(::munmap(at + 32 * kPage, kPage), 0);  // of which nothing was kept
  expect_soon_kept(0);
  cache_->trim();
  const Range pieces[] = {pages_around(at, kPage), pages_around(at + 2 * kPage, 30 * kPage),
                          pages_around(at + 33 * kPage, 31 * kPage)};
  for (const Range& piece : pieces) {
    EXPECT_TRUE(register_range(theirs->get(), piece)) << (piece.begin - pieces[0].begin) / kPage;
    unregister_range(theirs->get(), piece);
  }
  ::munmap(at, kAll);
}

TEST_P(Steps, step_23_what_was_moved_is_not_watched_where_it_is_now) {
  const char* why = nullptr;
  auto theirs = open_userfault(why);
  ASSERT_TRUE(theirs) << why;
  uint8_t* const at = kept(kLen);
  uint8_t* const to = map(kLen);
  ASSERT_EQ(::mremap(at, kLen, kLen, MREMAP_MAYMOVE | MREMAP_FIXED, to), to);
  expect_soon_kept(0);
  cache_->trim();
  EXPECT_TRUE(register_range(theirs->get(), pages_around(to, kLen)));
  unregister_range(theirs->get(), pages_around(to, kLen));
  ::munmap(to, kLen);
}

// By then it is another one's memory, which that goes on watching.
TEST_P(Steps, step_29_what_has_become_the_applications_to_watch_stays_so) {
  const char* why = nullptr;
  auto theirs = open_userfault(why);
  ASSERT_TRUE(theirs) << why;
  uint8_t* const at = kept(kLen);
  map(kLen, at, MAP_FIXED);
  const Range range = pages_around(at, kLen);
  ASSERT_TRUE(register_range(theirs->get(), range));
  expect_soon_kept(0);
  cache_->trim();
  const UniqueFd third = std::move(*open_userfault(why));
  EXPECT_EQ(register_range(third.get(), range).error(), Errc::busy);
  unregister_range(theirs->get(), range);
  ::munmap(at, kLen);
}

TEST_P(Steps, step_30_pages_are_written_out) {
  uint8_t* const at = kept(kLen);
  ::madvise(at, kLen, 21 /* MADV_PAGEOUT */);
  expect_exact(at, kLen);
  ::syscall(SYS_migrate_pages, 0, 64, "\1\0\0\0\0\0\0", "\1\0\0\0\0\0\0");
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

// --- with room for one ---

class Few : public Steps {
 protected:
  Few() : Steps({.max_count = 1}) {}
};

TEST_P(Few, step_26_what_is_in_use_is_not_given_up_and_not_handed_out_stale) {
  uint8_t* const at = kept(kLen);
  uint8_t* const other = map(kLen);
  fill(other, kLen);
  auto held = cache_->acquire(at, kLen, Access::read_write);
  ASSERT_TRUE(held);
  const auto resource = held->resource();
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(use(other, kLen), use(other, kLen)) << "there is no room for it";
    EXPECT_EQ(cache_->kept(), 1u);
    EXPECT_EQ(use(at, kLen), resource);
    fill(at, kLen);
    expect_exact(at, kLen);
  }
  EXPECT_EQ(cache_->counts().evicted, 0u);
  const std::vector<uint8_t> before(at, at + kLen);
  ASSERT_EQ(::munmap(at, kLen), 0);
  ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
  fill(at, kLen);
  expect_exact(at, kLen);
  EXPECT_NE(use(at, kLen), resource);
  EXPECT_TRUE(pages_.read(resource, at, kLen) == before) << "its user has what it was given";
  keep(other, kLen);  // there is room now
  cache_->release(*held);
  expect_exact(other, kLen);
  keep(at, kLen);  // pushes it out
  EXPECT_EQ(cache_->kept(), 1u);
  EXPECT_GT(cache_->counts().evicted, 0u);
  ::munmap(at, kLen);
  ::munmap(other, kLen);
}

// --- with each hit checked ---

class Checked : public Steps {
 protected:
  Checked() : Steps({.check = true}) {}
};

// What no monitor of that kind can see is found out, and said.
TEST_P(Checked, step_17_a_bare_system_call_is_found_out) {
  uint8_t* const at = kept(kLen);
  ASSERT_EQ(::syscall(SYS_munmap, at, kLen), 0);
  // another kind of memory, since not everybody is told which page is where
  ASSERT_EQ(::mmap(at, kLen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), at);
  fill(at, kLen);
  testing::internal::CaptureStderr();
  expect_exact(at, kLen);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(cache_->counts().caught, is_by_memhooks() ? 1u : 0u);
  if (is_by_memhooks()) {
    EXPECT_NE(
        said.find("there is shared memory where there was private memory, by munmap and mmap, "
                  "mmap with MAP_FIXED, or shmat with SHM_REMAP, and memhooks has not told"),
        std::string::npos)
        << said;
  }
  expect_soon_kept(0);
  ::munmap(at, kLen);
}

// The one change of a mapping that the kernel tells nobody, without the call that is hooked for it.
TEST_P(Checked, step_09_a_shared_segment_that_is_attached_over_kept_memory_is_found_out) {
  uint8_t* const at = kept(kLen);
  const int id = ::shmget(IPC_PRIVATE, kLen, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  ASSERT_NE(::syscall(SYS_shmat, id, at, SHM_REMAP), -1);
  fill(at, kLen);
  expect_exact(at, kLen);
  EXPECT_EQ(cache_->counts().caught, 1u);
  EXPECT_EQ(cache_->kept(), 0u);
  ::shmdt(at);
  ::shmctl(id, IPC_RMID, nullptr);
}

TEST_P(Checked, what_is_as_it_was_is_found_and_what_was_told_is_not_complained_about) {
  uint8_t* const at = kept(kLen);
  keep(at, kLen);
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(::munmap(at, kLen), 0);
    map(kLen, at, MAP_FIXED_NOREPLACE);
    fill(at, kLen);
    expect_exact(at, kLen);
  }
  EXPECT_EQ(cache_->counts().caught, 0u);
  ::munmap(at, kLen);
}

INSTANTIATE_TEST_SUITE_P(By, Few, kMonitors, name_of);
INSTANTIATE_TEST_SUITE_P(By, Checked, kMonitors, name_of);

}  // namespace
}  // namespace aperture::regcache::test
