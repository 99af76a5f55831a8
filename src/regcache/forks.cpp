// Counting forks: see forks.hpp.
#include "regcache/forks.hpp"

#include <pthread.h>

#include <atomic>
#include <cassert>

namespace aperture::regcache {

namespace {

// SYNC POINT: forks: all seq_cst, so that a thread which finds none under way has seen those before
std::atomic<uint64_t> g_begun{0};
std::atomic<uint64_t> g_over{0};

}  // namespace

Status count_forks() noexcept {
  static const int failed = ::pthread_atfork(fork_begins, fork_is_over, forks_of_parent_are_over);
  return failed == 0 ? Status() : Status(Errc::no_memory);
}

void fork_begins() noexcept {
  ++g_begun;
}

void fork_is_over() noexcept {
  ++g_over;
  assert(g_over <= g_begun);
}

void forks_of_parent_are_over() noexcept {
  g_over = g_begun.load();
}

Forks forks() noexcept {
  // SYNC POINT: forks: over first: what has begun by then is counted
  const uint64_t over = g_over.load();
  return {g_begun.load(), over};
}

}  // namespace aperture::regcache
