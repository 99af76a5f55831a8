// Hooks in the words of loaded objects: all of them have theirs, whenever they came, and all get
// back what they had.
#include "regcache/memhooks.hpp"

#include <malloc.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cinttypes>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "guest.hpp"
#include "regcache/hooked_calls.hpp"
#include "regcache/hooked_names.hpp"
#include "regcache/linkage.hpp"
#include "steps.hpp"

namespace aperture::regcache::test {
namespace {

constexpr size_t kLen = 8 * kPage;

template <typename Visit>
void for_each_object(Visit&& visit) {
  const auto call = [](dl_phdr_info* info, size_t, void* fn) {
    (*static_cast<std::remove_reference_t<Visit>*>(fn))(LoadedObject(*info));
    return 0;
  };
  ::dl_iterate_phdr(call, &visit);
}

struct Word {
  uintptr_t value;
  uintptr_t defined;  // of its name
  bool is_unbound;
  bool is_data;
  bool is_of_allocator;
};
std::map<std::atomic<uintptr_t>*, Word> words() {
  std::map<std::atomic<uintptr_t>*, Word> all;
  for_each_object([&](const LoadedObject& object) {
    object.for_each_word(kHookedNames, [&](const LinkageWord& word) {
      const uintptr_t value = *word.at;
      const uintptr_t defined = hooked_names().defined[word.name];
      all[word.at] = {value, defined,
                      value != word.own && value != defined && object.contains(value) &&
                          function_behind(value) == 0,
                      word.kind == LinkageWord::Kind::data, word.name >= kNameOfFree};
    });
  });
  return all;
}
std::string permissions_of(const void* addr) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char permissions[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s", &begin, &end, permissions) ==
            3 &&
        reinterpret_cast<uintptr_t>(addr) >= begin && reinterpret_cast<uintptr_t>(addr) < end) {
      return permissions;
    }
  }
  return "none";
}

class Hooks : public Steps {
 protected:
  // Another one's (ThreadSanitizer's) calls for memory are its own affair.
  static bool has_libcs_allocator() { return hooked_names().hooks_allocator; }

  // The words of a guest by which it calls munmap.
  static std::vector<std::atomic<uintptr_t>*> words_of_munmap(const char* path) {
    std::vector<std::atomic<uintptr_t>*> found;
    constexpr std::array kName = {"munmap"};
    for_each_object([&](const LoadedObject& object) {
      if (std::strcmp(object.path(), path) != 0) return;
      object.for_each_word(kName, [&](const LinkageWord& word) { found.push_back(word.at); });
    });
    EXPECT_FALSE(found.empty());
    return found;
  }
};

TEST_P(Hooks, words_are_put_back_as_they_were) {
  cache_->trim();
  monitor_.reset();
  const auto before = words();
  ASSERT_GT(before.size(), 5u);
  const char* why = "";
  monitor_ = monitor_of(MonitorKind::memhooks, *cache_, why);
  ASSERT_NE(monitor_, nullptr) << why;
  for (const auto& [at, word] : words()) {
    if (word.is_data && (!word.is_of_allocator || before.at(at).value != word.defined)) continue;
    if (word.is_of_allocator && !has_libcs_allocator()) continue;
    EXPECT_NE(function_behind(word.value), 0u);
  }
  monitor_.reset();
  for (const auto& [at, word] : words()) {
    if (word.is_of_allocator && !has_libcs_allocator()) continue;
    const Word& was = before.at(at);
    EXPECT_EQ(word.value, was.is_unbound ? was.defined : was.value);
  }
}

TEST_P(Hooks, tables_that_were_sealed_are_sealed_again) {
  const Guest guest(GUEST_NOW);
  const uint8_t* const at = kept(kLen);
  for (const auto* word : words_of_munmap(GUEST_NOW)) {
    EXPECT_NE(function_behind(*word), 0u);
    EXPECT_EQ(permissions_of(word), "r--p");
  }
  cache_->trim();
  monitor_.reset();
  for (const auto* word : words_of_munmap(GUEST_NOW)) {
    EXPECT_EQ(function_behind(*word), 0u);
    EXPECT_EQ(permissions_of(word), "r--p");
  }
  ::munmap(const_cast<uint8_t*>(at), kLen);
}

TEST_P(Hooks, an_object_that_is_loaded_later_has_them_at_the_next_use) {
  for (const char* path : {GUEST_NOW, GUEST_LAZY}) {
    uint8_t* const first = kept(kLen);
    const auto resource = use(first, kLen);
    const Guest guest(path);
    EXPECT_NE(use(first, kLen), resource) << "it may have done anything to it";
    uint8_t* const at = kept(kLen);
    ASSERT_EQ(guest.munmap(at, kLen), 0);
    ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
    fill(at, kLen);
    expect_exact(at, kLen);
    for (const bool by_pointer : {false, true}) {
      if (!has_libcs_allocator()) break;
      auto* const block = static_cast<uint8_t*>(std::malloc(kGuestBytes));
      fill(block, kGuestBytes);
      keep(block, kGuestBytes);
      by_pointer ? (*guest.free_by)(block) : guest.free(block);
      auto* const next = static_cast<uint8_t*>(std::malloc(kGuestBytes));
      fill(next, kGuestBytes);
      expect_exact(next, kGuestBytes);
      std::free(next);
    }
    ::munmap(first, kLen);
    ::munmap(at, kLen);
  }
}

TEST_P(Hooks, what_an_object_does_while_it_is_loaded_is_taken_into_account) {
  uint8_t* const at = kept(kGuestBytes);
  char text[20];
  std::snprintf(text, sizeof text, "%" PRIxPTR, reinterpret_cast<uintptr_t>(at));
  ::setenv(kGuestUnmaps, text, 1);
  const Guest guest(GUEST_NOW);
  ::unsetenv(kGuestUnmaps);
  for (int i = 0; i < 3; ++i) {  // also once the hooks are whole again
    fill(at, kGuestBytes);
    expect_exact(at, kGuestBytes);
  }
  ::munmap(at, kGuestBytes);
}

TEST_P(Hooks, memory_of_an_object_goes_with_it) {
  uint8_t* at = nullptr;
  {
    const Guest guest(GUEST_NOW);
    at = reinterpret_cast<uint8_t*>(guest.of_library()) + kPage;
    fill(at, kLen);
    keep(at, kLen);
  }
  ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at) << "it is free";
  for (int i = 0; i < 3; ++i) {
    fill(at, kLen);
    expect_exact(at, kLen);
  }
  ::munmap(at, kLen);
}

// Of a thread whose stack is the application's, they are freed by the loader itself when it is
// joined, by functions that no table leads to; else when another thread gets its stack.
TEST_P(Hooks, thread_local_memory_of_an_object_goes_with_its_thread) {
  if (!has_libcs_allocator()) GTEST_SKIP() << "the allocator is not the C library's";
  const Guest guest(GUEST_NOW);
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);  // so that it is unmapped
  constexpr size_t kStack = 256 * kPage;
  for (const bool has_own_stack : {true, false}) {
    uint8_t* const stack = map(kStack);
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    if (has_own_stack) ::pthread_attr_setstack(&attributes, stack, kStack);
    std::function<void()> body = [&] {
      auto* const at = reinterpret_cast<uint8_t*>(guest.of_thread());
      fill(at, kGuestBytes);
      expect_exact(at, kGuestBytes);
      keep(at, kGuestBytes);
    };
    for (int i = 0; i < 5; ++i) {
      pthread_t thread;
      const auto run = [](void* fn) -> void* {
        (*static_cast<std::function<void()>*>(fn))();
        return nullptr;
      };
      ASSERT_EQ(::pthread_create(&thread, &attributes, run, &body), 0);
      ::pthread_join(thread, nullptr);
      EXPECT_EQ(cache_->kept(), has_own_stack ? 0u : 1u);
    }
    ::pthread_attr_destroy(&attributes);
    ::munmap(stack, kStack);
  }
}

// --- each call ---

TEST_P(Hooks, what_a_call_touches_is_dropped_and_what_it_leaves_alone_is_not) {
  uint8_t* const at = map(kLen);
  const auto expect = [&](size_t left, const char* call) {
    EXPECT_EQ(cache_->kept(), left) << call;
    if (left == 0) map(kLen, at, MAP_FIXED);
    fill(at, kLen);
    keep(at, kLen);
  };
  expect(0, "nothing yet");
  for (const int advice : {0, 1, 2, 3, 10, 11, 14, 15, 16, 17, 18, 19, 20, 22, 23}) {
    ::madvise(at, kLen, advice);
    expect(1, "madvise, contents stay");
  }
  for (const int advice : {4, 8, 9, 24, 102, 1000}) {
    ::madvise(at + kLen - kPage, 1, advice);
    expect(0, "madvise, contents go");
  }
  ::munmap(at + kLen, kLen);
  ::munmap(at - kPage, kPage);
  ::munmap(at, 0);
  expect(1, "munmap beside it");
  ::munmap(at + kPage, 1);
  expect(0, "munmap");
  EXPECT_EQ(::mmap(at, kLen, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
            MAP_FAILED);
  expect(1, "mmap, not over it");
  ::mmap(at + kLen - kPage, 2 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  expect(0, "mmap over it");
  for (const int rights : {PROT_NONE, PROT_READ, PROT_WRITE, PROT_READ | PROT_EXEC}) {
    ::mprotect(at + kLen - kPage, 1, rights);
    expect(0, "mprotect, rights go");
  }
  ::mprotect(at, kLen, PROT_READ | PROT_WRITE);
  ::mprotect(at + kLen, kPage, PROT_NONE);
  expect(1, "mprotect that takes nothing of it");
  ::ioctl(-1, 0xC028AA05 /* UFFDIO_MOVE */, nullptr);
  expect(0, "pages may have been moved away");
  ::ioctl(-1, 0xC028AA06, nullptr);
  expect(1, "another ioctl");
  uint8_t* const other = map(kLen);
  ::mremap(other, kLen, kLen, MREMAP_MAYMOVE | MREMAP_FIXED, at);
  expect(0, "mremap to it");
  ::mremap(at, kLen, kLen / 2, 0);
  expect(0, "mremap of it");
  const iovec place{at, kPage};
  ::syscall(SYS_process_madvise, -1, &place, 1, MADV_DONTNEED, 0);
  expect(1, "a bare system call");
  if (auto* const call = reinterpret_cast<ssize_t (*)(int, const iovec*, size_t, int, unsigned)>(
          ::dlsym(RTLD_DEFAULT, "process_madvise"));
      call != nullptr) {
    call(-1, &place, 1, MADV_DONTNEED, 0);
    expect(1, "an address that was asked for is not hooked");
  }
  ::munmap(at, kLen);
}

TEST_P(Hooks, a_block_is_dropped_when_it_is_freed_or_moved) {
  if (!has_libcs_allocator()) GTEST_SKIP() << "the allocator is not the C library's";
  auto* at = static_cast<uint8_t*>(std::malloc(kGuestBytes));
  for (int i = 0; i < 4; ++i) {
    fill(at, kGuestBytes);
    keep(at, kGuestBytes);
    at = static_cast<uint8_t*>(std::realloc(at, kGuestBytes * (i % 2 + 1)));
    EXPECT_EQ(cache_->kept(), 0u);
    expect_exact(at, kGuestBytes);
    cache_->trim();
  }
  fill(at, kGuestBytes);
  keep(at, kGuestBytes);
  std::free(at);
  EXPECT_EQ(cache_->kept(), 0u);
}

TEST_P(Hooks, several_caches_hear_the_same) {
  auto other = Cache::create(pages_, {});
  ASSERT_TRUE(other);
  const char* why = "";
  auto monitor = MemhooksMonitor::create(**other, why);
  ASSERT_TRUE(monitor) << why;
  (*other)->set_monitor(**monitor);
  uint8_t* const at = kept(kLen);
  auto first = (*other)->acquire(at, kLen, Access::read_write);
  ASSERT_TRUE(first);
  (*other)->release(*first);
  EXPECT_EQ((*other)->kept(), 1u);
  ASSERT_EQ(::munmap(at, kLen), 0);
  EXPECT_EQ((*other)->kept(), 0u);
  EXPECT_EQ(cache_->kept(), 0u);
  (*other)->trim();
  monitor->reset();
  ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
  fill(at, kLen);
  keep(at, kLen);  // the hooks are still there
  ASSERT_EQ(::munmap(at, kLen), 0);
  EXPECT_EQ(cache_->kept(), 0u);
}

TEST_P(Hooks, caches_come_and_go_in_several_threads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50 && !HasFailure(); ++i) {
        PinnedPages pages;
        auto cache = Cache::create(pages, {});
        const char* why = "";
        auto monitor = MemhooksMonitor::create(**cache, why);
        EXPECT_TRUE(monitor) << why;
        if (!monitor) return;
        (*cache)->set_monitor(**monitor);
        uint8_t* const at = map(kLen);
        for (int use = 0; use < 2; ++use) {
          auto resource = (*cache)->acquire(at, kLen, Access::read);
          EXPECT_TRUE(resource);
          if (resource) (*cache)->release(*resource);
        }
        ::munmap(at, kLen);
        EXPECT_EQ((*cache)->kept(), 0u);
        (*cache)->trim();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Hooks, there_is_no_room_for_more_than_so_many_caches) {
  std::vector<std::unique_ptr<Cache>> caches;
  std::vector<std::unique_ptr<MemhooksMonitor>> monitors;
  const char* why = "";
  for (;;) {
    auto cache = Cache::create(pages_, {.max_count = 1});
    ASSERT_TRUE(cache);
    auto monitor = MemhooksMonitor::create(**cache, why);
    if (!monitor) {
      EXPECT_EQ(monitor.error(), Errc::no_space);
      break;
    }
    caches.push_back(std::move(*cache));
    monitors.push_back(std::move(*monitor));
  }
  EXPECT_EQ(monitors.size(), HookListener::kMost - 1) << "one is the test's";
  EXPECT_STREQ(why, "too many caches have one");
}

TEST_P(Hooks, errno_is_the_calls_own) {
  uint8_t* const at = kept(kLen);
  errno = EXDEV;
  EXPECT_EQ(::munmap(at, kLen), 0);
  EXPECT_EQ(errno, EXDEV);
  ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
  fill(at, kLen);
  keep(at, kLen);
  EXPECT_EQ(::madvise(at, kLen, -1), -1);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(::munmap(at + 1, kLen), -1);
  EXPECT_EQ(errno, EINVAL);
  auto* const block = static_cast<uint8_t*>(std::malloc(kGuestBytes));
  fill(block, kGuestBytes);
  keep(block, kGuestBytes);
  errno = EXDEV;
  std::free(block);
  EXPECT_EQ(errno, EXDEV);
  ::munmap(at, kLen);
}

// POSIX lets it be a hint that changes nothing, and so does the C library.
TEST_P(Hooks, posix_madvise_needs_none) {
  uint8_t* const at = kept(kLen);
  EXPECT_EQ(::posix_madvise(at, kLen, POSIX_MADV_DONTNEED), 0);
  EXPECT_NE(*at, 0);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
}

TEST_P(Hooks, blocks_beside_kept_memory_come_and_go) {
  if (!has_libcs_allocator()) GTEST_SKIP() << "the allocator is not the C library's";
  constexpr size_t kSize = 60'000;  // of the heap, so that others lie on the same pages
  std::vector<void*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(std::malloc(40));
  auto* const at = static_cast<uint8_t*>(std::malloc(kSize));
  for (int i = 0; i < 20; ++i) blocks.push_back(std::malloc(40));
  fill(at, kSize);
  keep(at, kSize);
  const auto resource = use(at, kSize);
  for (void* block : blocks) std::free(block);
  EXPECT_EQ(use(at, kSize), resource);
  std::free(at);
  EXPECT_EQ(cache_->kept(), 0u);
}

// --- beside others who write into the same words ---

std::atomic<uintptr_t> g_behind{0};
std::atomic<int> g_theirs{0};

int their_munmap(void* addr, size_t len) {
  ++g_theirs;
  return reinterpret_cast<int (*)(void*, size_t)>(g_behind.load())(addr, len);  // NOLINT
}

TEST_P(Hooks, who_writes_over_them_goes_on_being_called_and_so_do_they) {
  const Guest guest(GUEST_LAZY);
  uint8_t* const at = kept(kLen);
  const auto words = words_of_munmap(GUEST_LAZY);
  g_behind = words[0]->load();  // a hook
  ASSERT_NE(function_behind(g_behind), 0u);
  const auto theirs = reinterpret_cast<uintptr_t>(&their_munmap);
  *words[0] = theirs;
  for (int i = 0; i < 2000 && *words[0] == theirs; ++i) use(at, kLen);
  EXPECT_EQ(function_behind(*words[0]), theirs) << "there is one before theirs";
  keep(at, kLen);
  g_theirs = 0;
  ASSERT_EQ(guest.munmap(at, kLen), 0);
  EXPECT_EQ(g_theirs, 1);
  EXPECT_EQ(cache_->kept(), 0u);
  cache_->trim();
  monitor_.reset();
  EXPECT_EQ(*words[0], theirs) << "theirs is left as it is";
  ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
  EXPECT_EQ(guest.munmap(at, kLen), 0) << "and our hook behind it goes on";
  EXPECT_EQ(g_theirs, 2);
}

std::function<void()> g_during;

int munmap_that_takes_long(void* addr, size_t len) {
  const int result = their_munmap(addr, len);
  g_during();
  return result;
}

// The call is over for the kernel and not yet for who made it: others may have that address by now.
TEST_P(Hooks, while_a_call_is_under_way_nothing_is_relied_on) {
  const Guest guest(GUEST_LAZY);
  uint8_t* const at = kept(kLen);
  const auto words = words_of_munmap(GUEST_LAZY);
  g_behind = words[0]->load();
  const auto slow = reinterpret_cast<uintptr_t>(&munmap_that_takes_long);
  *words[0] = slow;
  for (int i = 0; i < 2000 && *words[0] == slow; ++i) use(at, kLen);
  keep(at, kLen);
  const auto resource = use(at, kLen);
  Registrar::Resource during = resource, beside = 0;
  g_during = [&] {
    map(kLen, at, MAP_FIXED_NOREPLACE);
    fill(at, kLen);
    expect_exact(at, kLen);
    during = use(at, kLen);
    beside = use(at, kLen);
  };
  ASSERT_EQ(guest.munmap(at, kLen), 0);
  EXPECT_NE(during, resource);
  EXPECT_NE(during, beside) << "neither was kept";
  expect_exact(at, kLen);
  *words[0] = g_behind.load();
  ::munmap(at, kLen);
}

// --- threads and processes ---

// What was there before is there again after each round, whatever others do meanwhile.
TEST_P(Hooks, come_and_go_while_threads_map_and_unmap) {
  constexpr int kThreads = 8, kRounds = 100;
  std::atomic<bool> end{false};
  std::atomic<uint64_t> mapped{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t) + 1);
      while (!end && !HasFailure()) {
        const size_t len = (random() % 8 + 1) * kPage;
        const bool is_block = random() % 2 == 0;
        void* const at = is_block ? std::malloc(64 * len)
                                  : ::mmap(nullptr, len, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        const uint64_t word = random();
        auto* const words = static_cast<uint64_t*>(at);
        for (size_t i = 0; i < len / sizeof word; i += 64) words[i] = word * (i + 1);
        std::this_thread::yield();
        uint64_t wrong = 0;
        for (size_t i = 0; i < len / sizeof word; i += 64) wrong += words[i] != word * (i + 1);
        EXPECT_EQ(wrong, 0u);
        is_block ? std::free(at) : static_cast<void>(::munmap(at, len));
        ++mapped;
      }
    });
  }
  threads.emplace_back([&] {  // and objects are loaded
    while (!end) {
      const Guest guest(mapped % 2 == 0 ? GUEST_NOW : GUEST_LAZY);
      ::munmap(map(kPage), kPage);
    }
  });
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    cache_->trim();
    monitor_.reset();
    const char* why = "";
    monitor_ = monitor_of(MonitorKind::memhooks, *cache_, why);
    EXPECT_NE(monitor_, nullptr) << why;
    if (monitor_ == nullptr) break;
    cache_->set_monitor(*monitor_);
    uint8_t* const at = map(kLen);
    for (int use = 0; use < 2; ++use) {
      fill(at, kLen);
      expect_exact(at, kLen);
      ::munmap(at, kLen);
      EXPECT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
    }
    ::munmap(at, kLen);
  }
  end = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(mapped, static_cast<uint64_t>(kRounds));
}

TEST_P(Hooks, a_child_has_its_own) {
  uint8_t* const at = kept(kLen);
  const pid_t child = ::fork();
  if (child == 0) {
    auto cache = Cache::create(pages_, {});
    const char* why = "";
    auto monitor = MemhooksMonitor::create(**cache, why);
    if (!monitor) ::_exit(2);
    (*cache)->set_monitor(**monitor);
    monitor_.reset();  // the parent's, which does not take the hooks out
    auto first = (*cache)->acquire(at, kLen, Access::read);
    if (!first || (*cache)->kept() != 1) ::_exit(3);
    (*cache)->release(*first);
    ::munmap(at, kLen);
    ::_exit((*cache)->kept() == 0 ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  expect_exact(at, kLen);
  ::munmap(at, kLen);
  EXPECT_EQ(cache_->kept(), 0u);
}

INSTANTIATE_TEST_SUITE_P(By, Hooks, testing::Values(MonitorKind::memhooks), name_of);

}  // namespace
}  // namespace aperture::regcache::test
