// An owner that becomes another program, or is killed: its number and its addresses may be somebody
// else's, and no peer copies by its keys any more. man 2 execve, set_robust_list.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

#include "protect/cma.hpp"
#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

constexpr uintptr_t kPlace = 0x7e00'0000'0000;
constexpr int kHears = 100, kSays = 101;  // descriptors of the owner's
constexpr const char* kStage = "APERTURE_TEST_STAGE";

// What the owner says: where its key file is, and what opens its memory.
struct Told {
  int key_file;
  size_t key_bytes;
  uint64_t key;
  bool can_write;  // where it is another program: whether it has its memory at the same place
};

bool map_the_place() {
  void* at = reinterpret_cast<void*>(kPlace);
  return ::mmap(at, kLength, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at;
}

void say(const Told& told) {
  EXPECT_EQ(::write(kSays, &told, sizeof told), static_cast<ssize_t>(sizeof told));
}
void wait_to_be_told() {
  char byte;
  EXPECT_EQ(::read(kHears, &byte, 1), 1);
}

// The other process; run by the tests below, never by itself.
TEST(Owner, DISABLED_registers_and_becomes_another_program) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  Told told{};
  told.can_write = map_the_place();
  if (std::getenv(kStage) == nullptr) {
    auto table = *KeyTable::create(64);
    std::promise<void> begun;
    std::thread([&] {
      table->end_with_this_thread();
      begun.set_value();
      for (;;) ::pause();
    }).detach();
    begun.get_future().wait();
    told.key_file = table->own_file().fd();
    told.key_bytes = table->own_file().size_bytes();
    told.key = table->add(spec_of(kPlace, kLength))->key;
    say(told);
    wait_to_be_told();
    ::setenv(kStage, "exec", 1);
    ::execl("/proc/self/exe", "owner", "--gtest_filter=Owner.*", "--gtest_also_run_disabled_tests",
            "--gtest_brief=1", nullptr);
  }
  say(told);
  wait_to_be_told();
  const auto* memory = reinterpret_cast<const char*>(kPlace);
  told.can_write = memory[0] == 0;
  say(told);
  wait_to_be_told();
}

class Exec : public testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> to{}, from{};
    ASSERT_EQ(::pipe2(to.data(), O_CLOEXEC), 0);
    ASSERT_EQ(::pipe2(from.data(), O_CLOEXEC), 0);
    owner_ = ::fork();
    if (owner_ == 0) {
      ::dup2(to[0], kHears);
      ::dup2(from[1], kSays);
      ::execl("/proc/self/exe", "owner", "--gtest_filter=Owner.*",
              "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
      ::_exit(127);
    }
    to_ = UniqueFd(to[1]);
    from_ = UniqueFd(from[0]);
    ::close(to[0]);
    ::close(from[1]);
    told_ = heard();
    ASSERT_TRUE(told_.can_write);
    if (!test::cma_works(owner_, reinterpret_cast<void*>(kPlace))) {
      GTEST_SKIP() << "process_vm_writev(2) into a child is denied here";
    }
    const std::string path = "/proc/" + std::to_string(owner_) + "/fd/";
    UniqueFd file(::open((path + std::to_string(told_.key_file)).c_str(), O_RDONLY | O_CLOEXEC));
    auto view = PeerKeyView::map(std::move(file), told_.key_bytes);
    ASSERT_TRUE(view) << describe(view.error());
    ASSERT_TRUE(view->probe(owner_));
    view_ = std::make_unique<PeerKeyView>(*std::move(view));
    slot_ = slots_->claim();
  }
  void TearDown() override {
    ::kill(owner_, SIGKILL);
    ::waitpid(owner_, nullptr, 0);
  }

  Told heard() {
    Told told{};
    EXPECT_EQ(::read(from_.get(), &told, sizeof told), static_cast<ssize_t>(sizeof told));
    return told;
  }
  void go_on() { EXPECT_EQ(::write(to_.get(), "", 1), 1); }
  DirectResult::Outcome write() {
    char byte = 'w';
    iovec iov{&byte, 1};
    const DirectAsk ask{kPd, told_.key, kPlace, &iov, 1};
    return view_->write(owner_, *slot_, ask, nullptr).outcome;
  }

  pid_t owner_ = -1;
  UniqueFd to_, from_;
  Told told_{};
  std::unique_ptr<PeerKeyView> view_;
  std::unique_ptr<SlotArray> slots_ = std::make_unique<SlotArray>();
  AccessorSlot* slot_ = nullptr;
};

TEST_F(Exec, nothing_is_written_into_the_program_that_the_owner_has_become) {
  EXPECT_EQ(write(), DirectResult::Outcome::done);
  go_on();
  ASSERT_TRUE(heard().can_write) << "the new program could not have its memory there";
  EXPECT_EQ(write(), DirectResult::Outcome::through_ring);
  go_on();
  EXPECT_TRUE(heard().can_write) << "written into another program";
}

// The other way round: the process that has become another program stood inside a region of ours.
TEST_F(Exec, accessor_that_becomes_another_program_holds_up_no_close) {
  auto table = std::move(KeyTable::create(64)).value();
  ASSERT_TRUE(table->accessors().attach(slots_.get(), owner_));
  const std::shared_ptr<const PeerKeyView> its_keys = std::move(view_);
  table->accessors().know(slots_.get(), its_keys);
  const RegionHandle region = table->add(spec_of()).value();
  slot_->tid.store(static_cast<uint32_t>(owner_));
  slot_->start_time.store(thread_start_time(owner_, owner_));
  slot_->pin.store(region.generation);
  EXPECT_EQ(table->revocation().revoke(region, now_ns() + 20'000'000).error(), Errc::busy)
      << "it runs";
  go_on();
  heard();
  EXPECT_TRUE(table->revocation().revoke(region, now_ns() + 5'000'000'000));
  EXPECT_TRUE(table->accessors().detach(slots_.get()));
}

TEST_F(Exec, nothing_is_copied_by_the_number_of_an_owner_that_was_killed) {
  EXPECT_EQ(write(), DirectResult::Outcome::done);
  ::kill(owner_, SIGKILL);
  siginfo_t info;
  // not reaped: its number stays its own
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(owner_), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(write(), DirectResult::Outcome::through_ring);
}

}  // namespace
}  // namespace aperture::protect
