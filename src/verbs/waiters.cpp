// See waiters.hpp.
#include "verbs/waiters.hpp"

#include <cassert>
#include <new>

namespace aperture::verbs {

namespace {

constexpr uint64_t kOneWait = uint64_t{1} << 32;

uint32_t number_of(uint64_t ready) noexcept {
  return static_cast<uint32_t>(ready >> 32);
}

// An address that no other thread has while this one lives.
const void* this_thread() noexcept {
  static thread_local char here;
  return &here;
}

}  // namespace

// relaxed here: a count that decides when the engine goes to sleep, and orders nothing
uint32_t Waiter::on_ready() noexcept {
  return number_of(ready_.fetch_add(1, std::memory_order_relaxed));
}

void Waiter::on_fetched(uint32_t number) noexcept {
  // relaxed: as above
  has_fetched_.store(true, std::memory_order_relaxed);
  uint64_t seen = ready_.load(std::memory_order_relaxed);
  while (number_of(seen) == number && static_cast<uint32_t>(seen) != 0 &&
         !ready_.compare_exchange_weak(seen, seen - 1, std::memory_order_relaxed)) {
  }
}

bool Waiter::comes_back() noexcept {
  // relaxed: as above. Of two threads' events that meet here one may be left out: it rests early
  const uint64_t seen = ready_.load(std::memory_order_relaxed);
  assert(static_cast<uint32_t>(seen) < kOneWait - 1);
  if (static_cast<uint32_t>(seen) != 0 && has_fetched_.exchange(false, std::memory_order_relaxed)) {
    return true;
  }
  has_fetched_.store(true, std::memory_order_relaxed);
  // another wait begins, and what is left is not counted any more
  ready_.store((uint64_t{number_of(seen)} << 32) + kOneWait, std::memory_order_relaxed);
  return false;
}

Waiter* Waiters::of_this_thread() noexcept {
  const void* const thread = this_thread();
  assert(thread != nullptr);
  for (Waiter& waiter : waiters_) {
    if (waiter.is(thread)) return &waiter;
  }
  try {
    return &waiters_.emplace_back(thread);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void Waiters::forget(const Channel& channel) noexcept {
  for (Waiter& waiter : waiters_) {
    if (waiter.direct == &channel) waiter.direct = nullptr;
  }
}

}  // namespace aperture::verbs
