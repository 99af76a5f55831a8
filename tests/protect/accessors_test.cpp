// Who may be inside: attached slots and their pins, without a table; and what tells of a thread.
#include "protect/accessors.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "protect/table_fixture.hpp"

namespace {
std::atomic<int> g_opened_in_proc{0};
}  // namespace

// In place of libc's, for whoever asks for it by that name: counts.
extern "C" int open(const char* path, int flags, ...) {
  if (std::strncmp(path, "/proc/", 6) == 0) ++g_opened_in_proc;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, 0));
}

namespace aperture::protect {
namespace {

class Attached : public ::testing::Test {
 protected:
  static constexpr uint64_t kLife = 5;

  void SetUp() override {
    accessors_.set_thread_probe(&probe_);
    ASSERT_TRUE(accessors_.attach(slots_.get(), ::getpid()));
  }
  AccessorSlot& slot(size_t i) { return slots_->slots[i]; }
  void pin(size_t i, uint64_t generation, uint32_t lane = 0) {
    slot(i).riov_len = 77;
    slot(i).tid = 4242;
    slot(i).start_time = 99;
    slot(i).lane = lane;
    slot(i).pin = generation;
  }
  bool is_inside(uint64_t generation) {
    std::lock_guard guard(lock_);
    return accessors_.is_inside(generation);
  }

  EngineLock lock_{true};
  Accessors accessors_{lock_};
  std::unique_ptr<SlotArray> slots_ = std::make_unique<SlotArray>();
  StagedProbe probe_;
};

TEST_F(Attached, bad_slots_are_refused) {
  EXPECT_EQ(accessors_.attach(nullptr, ::getpid()).error(), Errc::invalid);
  const auto more = std::make_unique<SlotArray>();
  EXPECT_EQ(accessors_.attach(more.get(), 0).error(), Errc::invalid);
  EXPECT_EQ(accessors_.attach(more.get(), 1 << 30).error(), Errc::not_supported);
  EXPECT_TRUE(accessors_.detach(more.get())) << "was never attached";
  EXPECT_EQ(accessors_.awake(), 1u);
}

TEST_F(Attached, whoever_pins_that_life_is_inside_and_is_cut_short) {
  EXPECT_FALSE(is_inside(kLife));
  pin(3, kLife);
  pin(4, kLife + 1);
  EXPECT_TRUE(is_inside(kLife));
  EXPECT_EQ(slot(3).riov_len, 0u);
  EXPECT_EQ(slot(4).riov_len, 77u) << "is elsewhere";
  slot(3).pin = 0;
  EXPECT_FALSE(is_inside(kLife));
  accessors_.cut_short(kLife + 1);
  EXPECT_EQ(slot(4).riov_len, 0u);
}

TEST_F(Attached, a_life_is_quiet_when_its_pins_are_gone_or_their_threads) {
  EXPECT_TRUE(accessors_.is_quiet(kLife));
  EXPECT_EQ(probe_.looks, 0) << "nobody is asked about whom nothing is seen";
  pin(15, kLife);
  EXPECT_FALSE(accessors_.is_quiet(kLife));
  EXPECT_EQ(probe_.last_tid, 4242);
  EXPECT_EQ(probe_.last_start, 99u);
  EXPECT_TRUE(accessors_.is_quiet(kLife + 1));
  for (const ThreadState state : {ThreadState::stopped, ThreadState::gone}) {
    probe_.state = state;
    EXPECT_TRUE(accessors_.is_quiet(kLife));
  }
  probe_.state = ThreadState::running;
  slot(15).pin = 0;
  EXPECT_TRUE(accessors_.is_quiet(kLife));
}

// What is asked of the kernel may take long, or wait for a processor.
TEST_F(Attached, nobody_waits_for_who_asks_about_a_thread) {
  struct Meanwhile final : ThreadProbe {
    Meanwhile(Accessors& all, const SlotArray* slots) : all_(all), slots_(slots) {}
    ThreadState look(pid_t, pid_t, uint64_t) noexcept override {
      ++looks;
      all_.cut_short(kLife);
      all_.wake(slots_);
      EXPECT_TRUE(all_.is_lane_quiet(slots_, 9));
      return ThreadState::running;
    }
    bool is_over(pid_t, uint64_t) noexcept override { return false; }
    int looks = 0;

   private:
    Accessors& all_;
    const SlotArray* slots_;
  } probe(accessors_, slots_.get());
  accessors_.set_thread_probe(&probe);
  pin(0, kLife, 7);
  EXPECT_FALSE(accessors_.is_quiet(kLife));
  EXPECT_FALSE(accessors_.is_lane_quiet(slots_.get(), 7));
  EXPECT_FALSE(accessors_.detach(slots_.get()));
  EXPECT_EQ(probe.looks, 3);
}

TEST_F(Attached, all_are_asked_whoever_comes_or_goes_meanwhile) {
  constexpr size_t kMore = 4;
  std::unique_ptr<SlotArray> more[kMore];
  for (auto& slots : more) {
    slots = std::make_unique<SlotArray>();
    ASSERT_TRUE(accessors_.attach(slots.get(), ::getpid()));
    slots->slots[1].tid = 100 + static_cast<uint32_t>(&slots - more);
    slots->slots[1].pin = kLife;
  }
  // those before the last are gone; the first of them is detached when the second is asked about
  struct Leaving final : ThreadProbe {
    ThreadState look(pid_t, pid_t tid, uint64_t) noexcept override {
      asked.push_back(tid);
      if (tid == 101 && leaves != nullptr) {
        leaves->slots[1].pin = 0;
        EXPECT_TRUE(all->detach(std::exchange(leaves, nullptr)));
      }
      return tid == 103 ? last : ThreadState::gone;
    }
    bool is_over(pid_t, uint64_t) noexcept override { return false; }
    std::vector<pid_t> asked;
    Accessors* all = nullptr;
    SlotArray* leaves = nullptr;
    ThreadState last = ThreadState::running;
  } probe;
  probe.all = &accessors_;
  probe.leaves = more[0].get();
  accessors_.set_thread_probe(&probe);
  EXPECT_FALSE(accessors_.is_quiet(kLife));
  EXPECT_EQ(probe.asked, (std::vector<pid_t>{100, 101, 102, 103}));
  probe.last = ThreadState::stopped;
  EXPECT_TRUE(accessors_.is_quiet(kLife));
}

TEST_F(Attached, every_slot_is_asked_about) {
  struct OneRuns final : ThreadProbe {
    ThreadState look(pid_t, pid_t tid, uint64_t) noexcept override {
      return tid == 2 ? ThreadState::running : ThreadState::gone;
    }
    bool is_over(pid_t, uint64_t) noexcept override { return false; }
  } probe;
  accessors_.set_thread_probe(&probe);
  for (const uint32_t i : {1u, 2u}) {
    pin(i, kLife);
    slot(i).tid = i;
  }
  EXPECT_FALSE(accessors_.is_quiet(kLife)) << "the second one runs";
  slot(2).tid = 3;
  EXPECT_TRUE(accessors_.is_quiet(kLife));
}

// A device's driver may be told to copy by a thread that goes on later, or may still be at it when
// the thread has died.
TEST_F(Attached, who_copies_by_a_driver_is_inside_until_its_process_is_over) {
  StagedProbe& probe = probe_;
  pin(0, kLife, 7);
  slot(0).by_driver = 1;
  slot(0).start_time = 55;
  for (const ThreadState state : {ThreadState::stopped, ThreadState::gone}) {
    probe.state = state;
    EXPECT_TRUE(accessors_.is_quiet(kLife)) << "nobody shares a device's memory here";
  }
  EXPECT_EQ(probe.process_looks, 0);
  accessors_.expect_drivers();
  for (const ThreadState state : {ThreadState::running, ThreadState::stopped, ThreadState::gone}) {
    probe.state = state;
    probe.process_over = false;
    EXPECT_FALSE(accessors_.is_quiet(kLife));
    EXPECT_FALSE(accessors_.is_lane_quiet(slots_.get(), 7));
    EXPECT_FALSE(accessors_.detach(slots_.get()));
    EXPECT_EQ(probe.last_start, 55u);
    probe.process_over = true;
    EXPECT_TRUE(accessors_.is_quiet(kLife));
  }
  probe.process_over = false;
  probe.state = ThreadState::stopped;
  slot(0).by_driver = 0;
  EXPECT_TRUE(accessors_.is_quiet(kLife)) << "another copy, by the kernel";
  slot(0).by_driver = 1;
  slot(0).pin = 0;
  EXPECT_TRUE(accessors_.is_quiet(kLife)) << "it is out";
}

TEST_F(Attached, a_lane_is_quiet_when_nobody_is_inside_through_it) {
  pin(0, kLife, 7);
  EXPECT_FALSE(accessors_.is_lane_quiet(slots_.get(), 7));
  EXPECT_TRUE(accessors_.is_lane_quiet(slots_.get(), 8)) << "another lane of the segment";
  EXPECT_TRUE(accessors_.is_lane_quiet(nullptr, 7)) << "no segment";
  slot(0).pin = 0;
  EXPECT_TRUE(accessors_.is_lane_quiet(slots_.get(), 7));
}

TEST_F(Attached, a_gate_has_the_number_that_it_was_given) {
  std::atomic<uint64_t> gate{3};
  Accessors::move_gate(gate, 4);
  EXPECT_EQ(gate, 4u);
}

TEST_F(Attached, detached_slots_are_closed_and_asked_no_more) {
  pin(0, kLife);
  EXPECT_FALSE(accessors_.detach(slots_.get())) << "somebody is inside";
  for (const AccessorSlot& each : slots_->slots) EXPECT_EQ(each.closed, AccessorSlot::kClosed);
  EXPECT_TRUE(is_inside(kLife)) << "still asked";
  slot(0).pin = 0;
  EXPECT_TRUE(accessors_.detach(slots_.get()));
  pin(0, kLife);
  EXPECT_FALSE(is_inside(kLife));
  EXPECT_TRUE(accessors_.is_quiet(kLife));
  std::lock_guard guard(lock_);
  EXPECT_TRUE(accessors_.none_awake());
}

// The slots lie in memory that the peer writes, and it may write there at any time.
TEST_F(Attached, a_peer_that_opens_its_slots_again_and_again_does_no_more_than_that) {
  pin(0, kLife);
  std::atomic<bool> over{false};
  std::thread peer([&] {
    while (!over) slot(0).closed.store(0, std::memory_order_relaxed);
  });
  for (int i = 0; i < 20000; ++i) ASSERT_FALSE(accessors_.detach(slots_.get()));
  over = true;
  peer.join();
  slot(0).pin = 0;
  EXPECT_TRUE(accessors_.detach(slots_.get()));
}

TEST(SlotArray, is_claimed_slot_by_slot) {
  const auto memory = std::make_unique<SlotArray>();
  SlotArray& slots = *memory;
  AccessorSlot* taken[kSlotsPerPeer];
  for (AccessorSlot*& slot : taken) {
    slot = slots.claim();
    ASSERT_NE(slot, nullptr);
  }
  EXPECT_EQ(slots.claim(), nullptr);
  SlotArray::give_back(taken[4]);
  EXPECT_EQ(slots.claim(), taken[4]);
}

// ---- the real probe ----

class Child {
 public:
  Child() {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) ::pause();
    }
    // a name that would confuse a careless reader of stat
    start_time_ = thread_start_time(pid_, pid_);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  uint64_t start_time() const { return start_time_; }

 private:
  pid_t pid_;
  uint64_t start_time_;
};

ThreadState wait_for(ThreadState wanted, pid_t pid, uint64_t start) {
  ProcThreadProbe probe;
  ThreadState state = probe.look(pid, pid, start);
  for (int i = 0; i < 2000 && state != wanted; ++i) {
    ::usleep(1000);
    state = probe.look(pid, pid, start);
  }
  return state;
}

TEST(ProcThreadProbe, sees_running_stopped_continued_and_dead) {
  const Child child;
  ASSERT_NE(child.start_time(), 0u);
  EXPECT_EQ(wait_for(ThreadState::running, child.pid(), child.start_time()), ThreadState::running);
  ::kill(child.pid(), SIGSTOP);
  EXPECT_EQ(wait_for(ThreadState::stopped, child.pid(), child.start_time()), ThreadState::stopped);
  ::kill(child.pid(), SIGCONT);
  EXPECT_EQ(wait_for(ThreadState::running, child.pid(), child.start_time()), ThreadState::running);
  ::kill(child.pid(), SIGKILL);  // a zombie until it is waited for
  EXPECT_EQ(wait_for(ThreadState::gone, child.pid(), child.start_time()), ThreadState::gone);
}

// The kernel pays for that with what it has to forget first: a victim of many attackers stood still
// for 350 ms of processor time.
TEST(ProcThreadProbe, who_is_gone_is_not_looked_for_in_proc) {
  ProcThreadProbe probe;
  pid_t gone = 0;
  uint64_t start = 0;
  {
    const Child child;
    gone = child.pid();
    start = child.start_time();
    g_opened_in_proc = 0;
    EXPECT_EQ(probe.look(gone, gone, start), ThreadState::running);
    EXPECT_EQ(g_opened_in_proc, 1);
    EXPECT_EQ(probe.look(gone, 1 << 30, start), ThreadState::gone);
  }
  EXPECT_EQ(probe.look(gone, gone, start), ThreadState::gone);
  EXPECT_EQ(g_opened_in_proc, 1);
}

TEST(ProcThreadProbe, a_process_is_over_once_all_of_it_has_ended) {
  ProcThreadProbe probe;
  pid_t pid = 0;
  uint64_t start = 0;
  {
    const Child child;
    pid = child.pid();
    start = child.start_time();
    EXPECT_FALSE(probe.is_over(pid, start));
    EXPECT_FALSE(probe.is_over(pid, start + 1)) << "a thread that it started later";
    EXPECT_TRUE(probe.is_over(pid, start - 1)) << "it is another process";
    ::kill(pid, SIGSTOP);
    EXPECT_EQ(wait_for(ThreadState::stopped, pid, start), ThreadState::stopped);
    EXPECT_FALSE(probe.is_over(pid, start));
    ::kill(pid, SIGKILL);
    for (int i = 0; i < 2000 && !probe.is_over(pid, start); ++i) ::usleep(1000);
    EXPECT_TRUE(probe.is_over(pid, start)) << "a zombie";
  }
  EXPECT_TRUE(probe.is_over(pid, start));
  EXPECT_TRUE(probe.is_over(0, start));
  EXPECT_TRUE(probe.is_over(-1, start));
}

// The first thread may end before the others.
TEST(ProcThreadProbe, a_process_is_not_over_while_one_of_its_threads_runs) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::thread([] { ::pause(); }).detach();
    ::syscall(SYS_exit, 0);  // of this thread alone
  }
  ASSERT_GT(pid, 0);
  const uint64_t start = thread_start_time(pid, pid);
  EXPECT_EQ(wait_for(ThreadState::gone, pid, start), ThreadState::gone);
  ProcThreadProbe probe;
  EXPECT_FALSE(probe.is_over(pid, start));
  ::kill(pid, SIGKILL);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_TRUE(probe.is_over(pid, start));
}

TEST(ProcThreadProbe, another_start_time_is_another_thread) {
  const Child child;
  ProcThreadProbe probe;
  EXPECT_EQ(probe.look(child.pid(), child.pid(), child.start_time() + 1), ThreadState::gone);
  EXPECT_EQ(probe.look(child.pid(), child.pid(), child.start_time()), ThreadState::running);
  // no accessor pins without one, and 0 would be every thread that comes to have the number
  EXPECT_EQ(probe.look(child.pid(), child.pid(), 0), ThreadState::gone);
}

// A hostile peer may write any number beside its pin; nobody may wait for what cannot end.
TEST(ProcThreadProbe, what_is_no_number_of_a_thread_is_gone) {
  const Child child;
  ProcThreadProbe probe;
  for (const pid_t tid : {0, -1, -child.pid(), std::numeric_limits<pid_t>::min()}) {
    EXPECT_EQ(probe.look(child.pid(), tid, child.start_time()), ThreadState::gone) << tid;
    EXPECT_EQ(probe.look(child.pid(), tid, 0), ThreadState::gone) << tid;
  }
}

TEST(ProcThreadProbe, absent_thread_is_gone_and_names_with_brackets_do_not_confuse) {
  ProcThreadProbe probe;
  EXPECT_EQ(probe.look(1 << 30, 1 << 30, 1), ThreadState::gone);
  EXPECT_EQ(probe.look(::getpid(), 1 << 30, 1), ThreadState::gone);
  char old_name[16];
  ::prctl(PR_GET_NAME, old_name);
  ::prctl(PR_SET_NAME, "a) T 1 2 3 (");
  const auto tid = static_cast<pid_t>(::syscall(SYS_gettid));
  const uint64_t start = thread_start_time(::getpid(), tid);
  EXPECT_NE(start, 0u);
  EXPECT_EQ(probe.look(::getpid(), tid, start), ThreadState::running);
  ::prctl(PR_SET_NAME, old_name);
}

}  // namespace
}  // namespace aperture::protect
