// Which memory is on threads' stacks, as far as nobody says so.
#include "regcache/thread_stacks.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "regcache/mappings.hpp"

namespace aperture::regcache {
namespace {

bool is_on_a_stack(const void* addr, size_t len) {
  const Range range = pages_around(addr, len);
  const Range whole = mapped_alone_around(range);
  EXPECT_FALSE(whole.is_empty());
  return may_be_on_a_stack(range, whole);
}

// On the real stack: variables may be elsewhere (AddressSanitizer).
[[gnu::noinline]] const void* here() {
  return __builtin_frame_address(0);
}

class Stacks : public testing::Test {
 protected:
  void SetUp() override {
    if (!knows_stacks()) GTEST_SKIP() << "no kernel feature: get_robust_list(2)";
  }
};

thread_local char g_thread_local[10'000];

TEST_F(Stacks, that_of_the_thread_that_asks_and_its_variables) {
  std::thread([] {
    EXPECT_TRUE(is_on_a_stack(here(), 1));
    EXPECT_TRUE(is_on_a_stack(g_thread_local, sizeof g_thread_local));
  }).join();
}

TEST_F(Stacks, that_of_another_thread_until_it_has_ended) {
  constexpr int kThreads = 20;
  std::atomic<const void*> places[kThreads] = {};
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (auto& place : places) {
    threads.emplace_back([&] {
      place = here();
      while (!end) std::this_thread::yield();
    });
  }
  for (auto& place : places) {
    while (place == nullptr) std::this_thread::yield();
    EXPECT_TRUE(is_on_a_stack(place, 1));
  }
  end = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Stacks, one_that_the_application_has_mapped) {
  constexpr size_t kSize = 256 * 1024;
  void* const stack =
      ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(stack, MAP_FAILED);
  EXPECT_FALSE(is_on_a_stack(stack, kSize));
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ASSERT_EQ(::pthread_attr_setstack(&attributes, stack, kSize), 0);
  pthread_t thread;
  ASSERT_EQ(::pthread_create(
                &thread, &attributes,
                [](void*) -> void* {
                  EXPECT_TRUE(is_on_a_stack(here(), 1));
                  return nullptr;
                },
                nullptr),
            0);
  ::pthread_join(thread, nullptr);
  EXPECT_FALSE(is_on_a_stack(stack, kSize)) << "it is memory again";
  ::munmap(stack, kSize);
  ::pthread_attr_destroy(&attributes);
}

TEST_F(Stacks, none_is_the_main_threads_or_the_heap) {
  EXPECT_FALSE(is_on_a_stack(here(), 1));
  EXPECT_FALSE(is_on_a_stack(g_thread_local, sizeof g_thread_local));
  const std::vector<char> small(100), large(1'000'000);
  EXPECT_FALSE(is_on_a_stack(small.data(), small.size()));
  EXPECT_FALSE(is_on_a_stack(large.data(), large.size()));
}

}  // namespace
}  // namespace aperture::regcache
