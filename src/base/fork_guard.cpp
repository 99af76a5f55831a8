// The registry of descriptors and the words that a fork wipes: see fork_guard.hpp.
#include "base/fork_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cassert>
#include <cerrno>

#include "base/per_process.hpp"

namespace aperture {

namespace {

constexpr int kMaxFd = 65536;  // higher numbers are not registered, so a child keeps them
std::array<std::atomic<uint64_t>, kMaxFd / 64> registered;
// How often they have been closed in this process and those before it: a descriptor of an earlier
// round is gone.
std::atomic<uint32_t> rounds{0};

constinit PerProcess<const uint64_t> life;
constinit std::atomic<bool> handles_forks{false};

void close_in_child() noexcept {
  rounds.fetch_add(1, std::memory_order_relaxed);  // relaxed: the child has one thread
  for (size_t i = 0; i < registered.size(); ++i) {
    // relaxed: as above
    uint64_t bits = registered[i].exchange(0, std::memory_order_relaxed);
    while (bits != 0) {
      ::close(static_cast<int>(i * 64) + std::countr_zero(bits));
      bits &= bits - 1;
    }
  }
}

// A page for each life, never given back: what belongs to it asks there for as long as it is held.
Result<const uint64_t*> begin_life() noexcept {
  // relaxed: PerProcess's lock is held; a child has what its parent had installed
  if (!handles_forks.load(std::memory_order_relaxed)) {
    if (::pthread_atfork(nullptr, nullptr, close_in_child) != 0) return Errc::no_memory;
    handles_forks.store(true, std::memory_order_relaxed);
  }
  constexpr size_t kPage = 4096;
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return Errc::no_memory;
  if (::madvise(page, kPage, MADV_WIPEONFORK) != 0) {
    const bool is_short = errno == ENOMEM;  // else it is older than Linux 4.14
    ::munmap(page, kPage);
    return is_short ? Errc::no_memory : Errc::not_supported;
  }
  auto* word = static_cast<uint64_t*>(page);
  assert(*word == 0);
  *word = 1;
  return word;
}

}  // namespace

Life Life::now() noexcept {
  const uint64_t* const word = life.existing();
  return word != nullptr ? Life(word) : Life();
}

Status guard_against_fork() noexcept {
  return life.get(begin_life).error();
}

ForkRound::ForkRound() noexcept
    // relaxed: changed before a child's fork() returns, and never after
    : number_(rounds.load(std::memory_order_relaxed)) {}

bool ForkRound::is_over() const noexcept {
  return rounds.load(std::memory_order_relaxed) != number_;  // relaxed: as above
}

void close_in_forked_children(int fd) noexcept {
  // relaxed: read after a fork by the child's only thread, or changed by the descriptor's owner
  if (fd >= 0 && fd < kMaxFd) {
    registered[static_cast<size_t>(fd) / 64].fetch_or(uint64_t{1} << (fd % 64),
                                                      std::memory_order_relaxed);
  }
}

bool forget_for_forked_children(int fd, ForkRound opened_in) noexcept {
  if (opened_in.is_over()) return false;
  if (fd >= 0 && fd < kMaxFd) {  // relaxed: as above
    registered[static_cast<size_t>(fd) / 64].fetch_and(~(uint64_t{1} << (fd % 64)),
                                                       std::memory_order_relaxed);
  }
  return true;
}

ParentOnlyFd::ParentOnlyFd(UniqueFd fd) noexcept : fd_(std::move(fd)) {
  close_in_forked_children(fd_.get());
}

ParentOnlyFd& ParentOnlyFd::operator=(ParentOnlyFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
    round_ = other.round_;
    assert(!other.fd_);
  }
  return *this;
}

void ParentOnlyFd::reset() noexcept {
  if (!fd_) return;
  if (forget_for_forked_children(fd_.get(), round_)) {
    fd_.reset();
  } else {
    static_cast<void>(fd_.release());
  }
  assert(!fd_);
}

void ParentOnlyFd::abandon() noexcept {
  if (!fd_) return;
  static_cast<void>(forget_for_forked_children(fd_.get(), round_));
  static_cast<void>(fd_.release());
}

}  // namespace aperture
