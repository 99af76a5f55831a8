// The page that fork() wipes: see fork.hpp.
#include "base/fork.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <cassert>

namespace aperture::fork_detail {

namespace {

std::atomic<uint64_t> before_first_use{0};

void forget_in_child() noexcept {
  // relaxed: a child has one thread
  epoch_word.load(std::memory_order_relaxed)->store(0, std::memory_order_relaxed);
}

// Zeroes of the program's own, so that nothing has to be had for it.
struct alignas(4096) Page {
  std::atomic<uint64_t> epoch{0};
};
static_assert(sizeof(Page) == 4096);
constinit Page the_page;

std::atomic<uint64_t>* make_page() noexcept {
  // before Linux 4.14: fork() as libc makes it is noticed, raw clone() is not
  if (::madvise(&the_page, sizeof the_page, MADV_WIPEONFORK) != 0)
    ::pthread_atfork(nullptr, nullptr, &forget_in_child);
  return &the_page.epoch;
}

}  // namespace

std::atomic<std::atomic<uint64_t>*> epoch_word{&before_first_use};

uint64_t new_epoch() noexcept {
  // once in the first process of the family; children find the pointer set and the page zero
  static std::atomic<uint64_t>* const page = make_page();
  epoch_word.store(page, std::memory_order_release);
  uint64_t fresh = 0;
  while (fresh == 0) {
    if (::getrandom(&fresh, sizeof fresh, 0) != sizeof fresh) fresh = 0;
  }
  uint64_t expected = 0;
  // relaxed: the first thread's number is everyone's
  const bool first = page->compare_exchange_strong(expected, fresh, std::memory_order_relaxed);
  assert(fresh != 0 && (first || expected != 0));
  return first ? fresh : expected;
}

}  // namespace aperture::fork_detail
