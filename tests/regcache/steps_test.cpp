// What programs do to their memory, step by step: after each, what is handed out is exact. The
// numbers are those of the list of steps that a registration cache has to pass. Those that are of
// more than one call or one process: steps_of_processes_test.cpp.
#include "steps.hpp"

#include <linux/userfaultfd.h>
#include <malloc.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include <array>
#include <thread>

namespace aperture::regcache::test {
namespace {

TEST_P(Steps, step_01_unmapped_and_mapped_again_at_the_same_address) {
  uint8_t* const at = kept(kLen);
  ASSERT_EQ(::munmap(at, kLen), 0);
  ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
  fill(at, kLen);
  expect_exact(at, kLen);
  keep(at, kLen);
  ::munmap(at, kLen);
  EXPECT_FALSE(cache_->acquire(at, kLen, Access::read)) << "there is nothing";
}

TEST_P(Steps, step_02_allocated_freed_and_allocated_again) {
  for (int i = 0; i < 20; ++i) {
    auto* const at = static_cast<uint8_t*>(std::malloc(200'000));  // mapped by itself
    fill(at, 200'000);
    expect_exact(at, 200'000);
    std::free(at);
  }
}

TEST_P(Steps, step_02_the_heap_is_trimmed_and_grows_again) {
  for (int round = 0; round < 5; ++round) {
    std::vector<uint8_t*> blocks;
    for (int i = 0; i < 100; ++i) {
      blocks.push_back(static_cast<uint8_t*>(std::malloc(20'000)));
      fill(blocks.back(), 20'000);
      expect_exact(blocks.back(), 20'000);
    }
    for (uint8_t* block : blocks) std::free(block);
    ::malloc_trim(0);
  }
}

// The allocator has some MiB beneath the break that nobody uses, unless it moves no break.
void make_room_beneath_the_break() {
  ::mallopt(M_TOP_PAD, 4 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 64 << 20);
  const void* const before = ::sbrk(0);
  std::array<void*, 200> blocks{};
  for (void*& block : blocks) {
    if (::sbrk(0) == before) block = std::malloc(100'000);
  }
  for (void* block : blocks) std::free(block);
}

TEST_P(Steps, step_02_the_break_goes_back_and_forth) {
  // else what the allocator takes meanwhile would lie behind what is given back
  make_room_beneath_the_break();
  constexpr const char* kMoved = "the allocator moves the break itself meanwhile";
  void* const end = ::sbrk(0);
  const auto aligned = (reinterpret_cast<uintptr_t>(end) + kPage - 1) & ~(kPage - 1);
  const auto more = static_cast<intptr_t>(aligned - reinterpret_cast<uintptr_t>(end) + kLen);
  for (int i = 0; i < 3; ++i) {
    if (::sbrk(0) != end) GTEST_SKIP() << kMoved;
    ASSERT_EQ(::sbrk(more), end);
    auto* const at = reinterpret_cast<uint8_t*>(aligned);
    fill(at, kLen);
    const auto resource = use(at, kLen);
    expect_exact(at, kLen);
    if (::sbrk(0) != at + kLen) GTEST_SKIP() << kMoved;  // and behind `at` is what it has taken
    ASSERT_NE(::sbrk(-more), reinterpret_cast<void*>(-1));
    ASSERT_NE(::sbrk(more), reinterpret_cast<void*>(-1));
    fill(at, kLen);
    expect_exact(at, kLen);
    EXPECT_NE(use(at, kLen), resource);
    ASSERT_NE(::sbrk(-more), reinterpret_cast<void*>(-1));
  }
  ::mallopt(M_TOP_PAD, 128 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 128 << 10);
}

TEST_P(Steps, step_03_mapped_over) {
  uint8_t* const at = kept(kLen);
  ASSERT_EQ(map(kLen / 2, at + kPage, MAP_FIXED), at + kPage);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

TEST_P(Steps, step_04_parts_are_unmapped) {
  for (const size_t part : {size_t{0}, size_t{3}, size_t{7}}) {  // head, middle, tail
    uint8_t* const at = kept(kLen);
    uint8_t* const hole = at + part * kPage;
    ASSERT_EQ(::munmap(hole, kPage), 0);
    EXPECT_FALSE(cache_->acquire(at, kLen, Access::read)) << "a page is missing";
    for (uint8_t* page = at; page != at + kLen; page += kPage) {
      if (page != hole) expect_exact(page, kPage);
    }
    map(kPage, hole, MAP_FIXED_NOREPLACE);
    fill(at, kLen);
    expect_exact(at, kLen);
    ::munmap(at, kLen);
  }
}

TEST_P(Steps, step_05_moved_grown_and_shrunk) {
  uint8_t* const at = kept(kLen);
  uint8_t* const place = map(4 * kLen);
  // moved, and something else where it was
  ASSERT_EQ(::mremap(at, kLen, kLen, MREMAP_MAYMOVE | MREMAP_FIXED, place), place);
  expect_exact(place, kLen);
  map(kLen, at, MAP_FIXED_NOREPLACE);
  fill(at, kLen);
  expect_exact(at, kLen);
  // grown, wherever that leads
  keep(at, kLen);
  auto* const grown = static_cast<uint8_t*>(::mremap(at, kLen, 3 * kLen, MREMAP_MAYMOVE));
  ASSERT_NE(grown, MAP_FAILED);
  fill(grown, 3 * kLen);
  expect_exact(grown, 3 * kLen);
  // shrunk, and grown again
  ASSERT_EQ(::mremap(grown, 3 * kLen, kLen, 0), grown);
  expect_exact(grown, kLen);
  EXPECT_FALSE(cache_->acquire(grown, 3 * kLen, Access::read)) << "there is less";
  auto* const again = static_cast<uint8_t*>(::mremap(grown, kLen, 3 * kLen, MREMAP_MAYMOVE));
  fill(again, 3 * kLen);
  expect_exact(again, 3 * kLen);
  ::munmap(again, 3 * kLen);
  ::munmap(place, 4 * kLen);
}

TEST_P(Steps, step_05_moved_and_the_place_stays_empty) {
  uint8_t* const at = kept(kLen);
  auto* const to =
      static_cast<uint8_t*>(::mremap(at, kLen, kLen, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr));
  if (to == MAP_FAILED) GTEST_SKIP() << "no kernel feature: MREMAP_DONTUNMAP";
  fill(at, kLen);
  expect_exact(at, kLen);
  expect_exact(to, kLen);
  ::munmap(at, kLen);
  ::munmap(to, kLen);
}

TEST_P(Steps, a_mapping_of_which_a_part_is_kept_can_be_moved_and_grown_as_one) {
  uint8_t* const at = map(4 * kLen);
  fill(at, 4 * kLen);
  keep(at + kLen, kLen);
  auto* const grown = static_cast<uint8_t*>(::mremap(at, 4 * kLen, 64 * kLen, MREMAP_MAYMOVE));
  ASSERT_NE(grown, MAP_FAILED) << std::strerror(errno);
  fill(grown + kLen, kLen);
  expect_exact(grown + kLen, kLen);
  ::munmap(grown, 64 * kLen);
}

TEST_P(Steps, step_06_pages_are_dropped) {
  uint8_t* const at = kept(kLen);
  ASSERT_EQ(::madvise(at + kPage, kPage, MADV_DONTNEED), 0);
  expect_exact(at, kLen);  // zeros there
  EXPECT_EQ(at[kPage], 0);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

// The kernel tells nobody of guard pages (Linux 6.13).
TEST_P(Steps, step_06_pages_are_dropped_for_guard_pages) {
  constexpr int kInstall = 102, kRemove = 103;
  uint8_t* const at = kept(kLen);
  if (::madvise(at + kPage, kPage, kInstall) != 0) GTEST_SKIP() << "no kernel feature: guard pages";
  ASSERT_EQ(::madvise(at + kPage, kPage, kRemove), 0);
  expect_exact(at, kLen);  // zeros there
  EXPECT_EQ(at[kPage], 0);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

TEST_P(Steps, step_06_pages_are_dropped_by_process_madvise) {
  const int self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  ASSERT_GE(self, 0);
  for (const int advice : {MADV_DONTNEED, 102, 103}) {
    uint8_t* const at = kept(kLen);
    iovec place{at + kPage, kPage};
    const bool is_known = ::process_madvise(self, &place, 1, advice, 0) == kPage;
    if (is_known && advice != 103) {
      if (advice == 102) ::madvise(at + kPage, kPage, 103);
      fill(at, kLen);
    }
    expect_exact(at, kLen);
    ::munmap(at, kLen);
  }
  ::close(self);
}

// By a userfaultfd of the application's (Linux 6.8).
TEST_P(Steps, step_06_pages_are_moved_away) {
  struct {
    uint64_t to, from, size, mode;
    int64_t moved;
  } move{};
  const auto kMove = _IOWR(0xAA, 0x05, decltype(move));
  const UniqueFd theirs(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | 1)));
  uffdio_api api{UFFD_API, 1 << 16, 0};
  if (!theirs || ::ioctl(theirs.get(), UFFDIO_API, &api) != 0) {
    GTEST_SKIP() << "no kernel feature: UFFDIO_MOVE";
  }
  uint8_t* const to = map(kPage);
  uffdio_register there{{reinterpret_cast<uint64_t>(to), kPage}, UFFDIO_REGISTER_MODE_MISSING, 0};
  ASSERT_EQ(::ioctl(theirs.get(), UFFDIO_REGISTER, &there), 0);
  uint8_t* const at = kept(kLen);
  move.to = there.range.start;
  move.from = reinterpret_cast<uint64_t>(at) + kPage;
  move.size = kPage;
  ASSERT_EQ(::ioctl(theirs.get(), kMove, &move), 0) << std::strerror(errno);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
  ::munmap(to, kPage);
}

TEST_P(Steps, step_07_pages_may_be_dropped_when_memory_is_short) {
  uint8_t* const at = kept(kLen);
  ASSERT_EQ(::madvise(at, kLen, MADV_FREE), 0);
  ::madvise(at, kLen, 21 /* MADV_PAGEOUT: as if it was */);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

// What is a file's can change without a word to whoever has mapped it, so it is never kept.
class OfFiles : public Steps {
 protected:
  uint8_t* map_shared(int fd, size_t len) {
    void* const at = ::mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(at, MAP_FAILED);
    auto* const bytes = static_cast<uint8_t*>(at);
    fill(bytes, len);
    use(bytes, len);
    EXPECT_EQ(cache_->kept(), 0u);
    return bytes;
  }
};

TEST_P(OfFiles, step_08_holes_are_punched) {
  const UniqueFd file(::memfd_create("holes", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), kLen), 0);
  uint8_t* const at = map_shared(file.get(), kLen);
  ASSERT_EQ(::madvise(at, kPage, MADV_REMOVE), 0);
  expect_exact(at, kLen);
  ASSERT_EQ(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, kPage), 0);
  EXPECT_EQ(at[kPage], 0);
  expect_exact(at, kLen);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

TEST_P(OfFiles, step_09_shared_segments_are_attached_anew) {
  const int id = ::shmget(IPC_PRIVATE, kLen, IPC_CREAT | 0600);
  const int other = ::shmget(IPC_PRIVATE, kLen, IPC_CREAT | 0600);
  ASSERT_TRUE(id >= 0 && other >= 0);
  auto* const at = static_cast<uint8_t*>(::shmat(id, nullptr, 0));
  ASSERT_NE(reinterpret_cast<intptr_t>(at), -1);
  fill(at, kLen);
  expect_exact(at, kLen);
  ASSERT_EQ(::shmat(other, at, SHM_REMAP), at);
  expect_exact(at, kLen);
  ASSERT_EQ(::shmdt(at), 0);
  map(kLen, at, MAP_FIXED_NOREPLACE);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
  ::shmctl(id, IPC_RMID, nullptr);
  ::shmctl(other, IPC_RMID, nullptr);
}

// Over private memory, which is kept.
TEST_P(OfFiles, step_09_a_shared_segment_is_attached_over_kept_memory) {
  uint8_t* const at = kept(kLen);
  const int id = ::shmget(IPC_PRIVATE, kLen, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  ASSERT_EQ(::shmat(id, at, SHM_REMAP), at);
  fill(at, kLen);
  expect_exact(at, kLen);
  EXPECT_EQ(cache_->kept(), 0u);
  ::shmdt(at);
  ::shmctl(id, IPC_RMID, nullptr);
}

TEST_P(OfFiles, step_10_a_file_is_cut_and_grows_again) {
  const UniqueFd file(::memfd_create("cut", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), kLen), 0);
  uint8_t* const at = map_shared(file.get(), kLen);
  ASSERT_EQ(::ftruncate(file.get(), 0), 0);
  ASSERT_EQ(::ftruncate(file.get(), kLen), 0);
  expect_exact(at, kLen);
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

// The pages stay what they are, but what was made before cannot be had any more: who is asked for
// it now may refuse.
TEST_P(Steps, step_11_protection_changes) {
  uint8_t* const at = kept(kLen);
  auto before = use(at, kLen);
  ASSERT_EQ(::mprotect(at + kPage, kPage, PROT_NONE), 0);
  EXPECT_FALSE(cache_->acquire(at, kLen, Access::read_write)) << "it cannot be read";
  EXPECT_EQ(cache_->kept(), 0u);
  ASSERT_EQ(::mprotect(at, kLen, PROT_READ | PROT_WRITE), 0);
  keep(at, kLen);
  before = use(at, kLen);
  ASSERT_EQ(::mprotect(at, kLen, PROT_READ), 0);
  EXPECT_NE(use(at, kLen), before);
  expect_exact(at, kLen);
  ASSERT_EQ(::mprotect(at, kLen, PROT_READ | PROT_WRITE), 0);
  keep(at, kLen);
  before = use(at, kLen);
  ASSERT_EQ(::mprotect(at, kLen, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(use(at, kLen), before) << "nothing was taken";
  ::pkey_mprotect(at, kLen, PROT_READ | PROT_WRITE, -1);
  EXPECT_NE(use(at, kLen), before) << "a key may take what the rights give";
  fill(at, kLen);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

TEST_P(Steps, step_12_stacks_of_threads_that_have_ended) {
  for (int i = 0; i < 20; ++i) {
    std::thread([this] {
      alignas(4096) uint8_t buffer[kLen];
      fill(buffer, kLen);
      expect_exact(buffer, kLen);
    }).join();
  }
  uint8_t own[3 * kPage];
  fill(own, sizeof own);
  expect_exact(own, sizeof own);
}

TEST_P(Steps, step_13_pages_become_one_huge_page_and_many_again) {
  constexpr size_t kHuge = size_t{2} << 20;
  uint8_t* const space = map(2 * kHuge);
  auto* const at =
      reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(space) + kHuge - 1) & ~(kHuge - 1));
  ::madvise(at, kHuge, MADV_HUGEPAGE);
  fill(at, kHuge);
  keep(at + kHuge / 2, kLen);
  ::madvise(at, kHuge, 25 /* MADV_COLLAPSE */);
  expect_exact(at + kHuge / 2, kLen);
  ASSERT_EQ(::munmap(at + kHuge / 4, kPage), 0);  // splits it
  expect_exact(at + kHuge / 2, kLen);
  ASSERT_EQ(::madvise(at + kHuge / 2 + kPage, kPage, MADV_DONTNEED), 0);
  fill(at + kHuge / 2, kLen);
  expect_exact(at + kHuge / 2, kLen);
  ::munmap(space, 2 * kHuge);
}

// As memory of files they are, which is never kept.
TEST_P(Steps, step_13_pages_of_hugetlbfs) {
  constexpr size_t kHuge = size_t{2} << 20;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << MAP_HUGE_SHIFT;
  void* const there = ::mmap(nullptr, kHuge, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (there == MAP_FAILED) GTEST_SKIP() << "no huge pages are reserved: " << std::strerror(errno);
  auto* const at = static_cast<uint8_t*>(there);
  for (int i = 0; i < 2; ++i) {
    fill(at, kLen);
    expect_exact(at, kLen);
    EXPECT_EQ(cache_->kept(), 0u);
    ASSERT_EQ(::munmap(at, kHuge), 0);
    ASSERT_EQ(::mmap(at, kHuge, PROT_READ | PROT_WRITE, kFlags | MAP_FIXED_NOREPLACE, -1, 0), at);
    expect_exact(at, kLen);
  }
  ::munmap(at, kHuge);
}

INSTANTIATE_TEST_SUITE_P(By, Steps, kMonitors, name_of);
INSTANTIATE_TEST_SUITE_P(By, OfFiles, kMonitors, name_of);

}  // namespace
}  // namespace aperture::regcache::test
