// Orders of events that no stress test meets often enough, staged by page faults: the accessor's
// next access to a page is held up while the owner does something, and then goes on.
#include <signal.h>
#include <sys/mman.h>

#include <cstdio>
#include <new>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

using Outcome = DirectResult::Outcome;

// While it lives, the first access to [start, start + len) that `prot` forbids runs `then`, once.
class HoldUp {
 public:
  HoldUp(void* start, size_t len, int prot, std::function<void()> then)
      : start_(start), len_(len), then_(std::move(then)) {
    current = this;
    struct sigaction action {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &old_);
    ::mprotect(start_, len_, prot);
  }
  ~HoldUp() {
    release();
    ::sigaction(SIGSEGV, &old_, nullptr);
    current = nullptr;
  }
  bool happened() const { return happened_; }

 private:
  void release() { ::mprotect(start_, len_, writable_ ? PROT_READ | PROT_WRITE : PROT_READ); }
  static void on_fault(int, siginfo_t* info, void*) {
    auto* at = static_cast<char*>(info->si_addr);
    auto* start = static_cast<char*>(current->start_);
    if (current->happened_ || at < start || at >= start + current->len_) ::_exit(99);
    current->happened_ = true;
    current->release();
    current->then_();
  }

  static HoldUp* current;
  void* start_;
  size_t len_;
  std::function<void()> then_;
  struct sigaction old_ {};
  bool happened_ = false;

 public:
  bool writable_ = false;
};
HoldUp* HoldUp::current = nullptr;

int copies = 0;
ssize_t count_copies(pid_t, const iovec* local, unsigned long, const iovec* remote, unsigned long,
                     unsigned long) {
  ++copies;
  return static_cast<ssize_t>(std::min(local->iov_len, remote->iov_len));
}

class Interleave : public TableTest {
 protected:
  void SetUp() override {
    TableTest::SetUp();
    view = peer_view();
    ASSERT_TRUE(view);
    view->set_copy_calls(&count_copies, &count_copies);
    mapped = find_read_only_mapping();
    ASSERT_NE(mapped, nullptr);
    copies = 0;
  }
  // Where the view has the file: the one mapping of it that cannot be written.
  static char* find_read_only_mapping() {
    std::FILE* maps = std::fopen("/proc/self/maps", "r");
    char line[512];
    char* found = nullptr;
    while (maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr) {
      unsigned long from = 0;
      char prot[8] = "";
      if (std::strstr(line, "memfd:aperture-keys") == nullptr) continue;
      if (std::sscanf(line, "%lx-%*x %7s", &from, prot) == 2 && prot[1] == '-') {
        found = reinterpret_cast<char*>(from);
      }
    }
    if (maps != nullptr) std::fclose(maps);
    return found;
  }
  size_t entries_offset() const {
    return reinterpret_cast<const KeyHeader*>(mapped)->entries_offset;
  }
  DirectResult write(uint64_t key, AccessorSlot& slot) {
    char byte = 'x';
    iovec iov{&byte, 1};
    return view->write(::getpid(), slot, DirectAsk{kPd, key, kBase, &iov, 1}, nullptr);
  }

  std::unique_ptr<PeerKeyView> view;
  char* mapped = nullptr;
};

// Found VALID, closed before the pin: only the second look behind the fence knows.
TEST_F(Interleave, region_closed_between_check_and_pin_is_refused) {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* slots = new (page) SlotArray{};
  ASSERT_TRUE(table->accessors().attach(slots, ::getpid()));
  AccessorSlot& slot = *slots->claim();
  const RegionHandle r = add();
  EXPECT_EQ(write(r.key, slot).outcome, Outcome::done);  // the slot knows its thread from now on
  EXPECT_EQ(copies, 1);
  {
    // the first store of the next access is that of the remote iovec
    HoldUp hold(page, 4096, PROT_READ, [&] { close(r); });
    hold.writable_ = true;
    const DirectResult got = write(r.key, slot);
    EXPECT_TRUE(hold.happened());
    EXPECT_EQ(got.outcome, Outcome::denied);
    EXPECT_EQ(got.denial, Denial::closed);
  }
  EXPECT_EQ(copies, 1);
  EXPECT_EQ(slot.pin.load(), 0u);
  EXPECT_TRUE(table->accessors().detach(slots));
  ::munmap(page, 4096);
}

TEST_F(Interleave, slots_detached_between_check_and_pin_are_not_used) {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* slots = new (page) SlotArray{};
  ASSERT_TRUE(table->accessors().attach(slots, ::getpid()));
  AccessorSlot& slot = *slots->claim();
  const RegionHandle r = add();
  EXPECT_EQ(write(r.key, slot).outcome, Outcome::done);
  {
    HoldUp hold(page, 4096, PROT_READ, [&] { EXPECT_TRUE(table->accessors().detach(slots)); });
    hold.writable_ = true;
    EXPECT_EQ(write(r.key, slot).outcome, Outcome::through_ring);
    EXPECT_TRUE(hold.happened());
  }
  EXPECT_EQ(copies, 1);
  ::munmap(page, 4096);
}

// The reader has taken its bucket from the old bucket count when the table grows.
TEST_F(Interleave, key_that_a_split_moved_meanwhile_is_found) {
  const auto* header = reinterpret_cast<const KeyHeader*>(mapped);
  const auto bucket = [](uint64_t key, uint32_t count) {
    return bucket_of(hash_key(kPd, key), count);
  };
  uint64_t key = 0;
  for (int round = 0; round < 5; ++round) {
    const uint32_t count = header->bucket_count.load();
    do {
      ++key;
    } while (bucket(key, count) == bucket(key, count * 3 / 2));
    add(spec_with({.key = key}));
    const uint32_t before = bucket(key, header->bucket_count.load());
    Denial got;
    {
      HoldUp hold(mapped + kKeyHeaderBytes, entries_offset() - kKeyHeaderBytes, PROT_NONE, [&] {
        while (header->bucket_count.load() < count * 3 / 2) add();
      });
      got = view->would_refuse(kPd, key, kBase, 8, Rights::remote_write);
      EXPECT_TRUE(hold.happened());
    }
    EXPECT_EQ(got, Denial::none);
    EXPECT_NE(bucket(key, header->bucket_count.load()), before) << "it was moved";
  }
}

// The reader stands on an entry that leaves its chain and begins another life in another one.
TEST_F(Interleave, key_behind_an_entry_that_left_the_chain_is_found) {
  const auto key_in_bucket = [](uint32_t bucket, uint64_t from) {
    while (bucket_of(hash_key(kPd, from), kBucketsAtStart) != bucket) ++from;
    return from;
  };
  RegionSpec spec = spec_with({.key = key_in_bucket(77, 1)});
  const RegionHandle behind = add(spec);
  spec.requested_key = key_in_bucket(77, behind.key + 1);
  const RegionHandle front = add(spec);  // chains grow at their heads
  uint64_t next = front.key + 1;
  RegionHandle reborn;
  Denial got;
  {
    HoldUp hold(mapped + entries_offset(), 4096, PROT_NONE, [&] {
      close(front);
      for (int i = 0; i < 400 && reborn.index != front.index; ++i) {
        spec.requested_key = next = key_in_bucket(78, next + 1);
        const RegionHandle other = add(spec);
        if (other.index == front.index) {
          reborn = other;
        } else {
          close(other);
        }
      }
    });
    got = view->would_refuse(kPd, behind.key, kBase, 8, Rights::remote_write);
    EXPECT_TRUE(hold.happened());
  }
  EXPECT_EQ(reborn.index, front.index);
  EXPECT_EQ(got, Denial::none);
}

}  // namespace
}  // namespace aperture::protect
