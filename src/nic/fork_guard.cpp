// The registry of descriptors and the word that a fork wipes: see fork_guard.hpp.
#include "nic/fork_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cassert>
#include <mutex>

namespace aperture::nic {

namespace {

constexpr int kMaxFd = 65536;  // higher numbers are not registered, so a child keeps them
std::array<std::atomic<uint64_t>, kMaxFd / 64> registered;

constexpr uint64_t kAlive = 1;  // until the guard is installed

void close_in_child() noexcept {
  for (size_t i = 0; i < registered.size(); ++i) {
    // relaxed: the child has one thread
    uint64_t bits = registered[i].exchange(0, std::memory_order_relaxed);
    while (bits != 0) {
      ::close(static_cast<int>(i * 64) + std::countr_zero(bits));
      bits &= bits - 1;
    }
  }
}

Status install() noexcept {
  constexpr size_t kPage = 4096;
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return Errc::no_memory;
  if (::madvise(page, kPage, MADV_WIPEONFORK) != 0) {  // older than Linux 4.14
    ::munmap(page, kPage);
    return Errc::not_supported;
  }
  if (::pthread_atfork(nullptr, nullptr, close_in_child) != 0) {
    ::munmap(page, kPage);
    return Errc::no_memory;
  }
  auto* word = static_cast<uint64_t*>(page);
  assert(*word == 0 && *g_alive_word.load(std::memory_order_relaxed) == 1);  // relaxed: ours
  *word = 1;
  // SYNC POINT: fork-guard: the word is set before anyone can find it
  g_alive_word.store(word, std::memory_order_release);
  return {};
}

}  // namespace

std::atomic<const uint64_t*> g_alive_word{&kAlive};

Status guard_against_fork() noexcept {
  static constinit std::mutex mutex;   // has nothing to destroy: used until the process ends
  static bool is_installed = false;    // guarded by mutex
  const std::lock_guard guard(mutex);  // whoever could not is not for ever without
  if (is_installed) return {};
  const Status s = install();
  is_installed = s.ok();
  return s;
}

void close_in_forked_children(int fd) noexcept {
  // relaxed: read after a fork by the child's only thread, or changed by the descriptor's owner
  if (fd >= 0 && fd < kMaxFd) {
    registered[static_cast<size_t>(fd) / 64].fetch_or(uint64_t{1} << (fd % 64),
                                                      std::memory_order_relaxed);
  }
}

bool forget_for_forked_children(int fd) noexcept {
  if (in_forked_child()) return false;
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
    assert(!other.fd_);
  }
  return *this;
}

void ParentOnlyFd::reset() noexcept {
  if (!fd_) return;
  if (forget_for_forked_children(fd_.get())) {
    fd_.reset();
  } else {
    static_cast<void>(fd_.release());
  }
  assert(!fd_);
}

}  // namespace aperture::nic
