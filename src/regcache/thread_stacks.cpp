// Asking the kernel where threads have their descriptors: see thread_stacks.hpp.
#include "regcache/thread_stacks.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/fd.hpp"

namespace aperture::regcache {

namespace {

enum class Place : uint8_t { known, none, unknown };

// 0 is the thread that asks.
Place ask_descriptor(pid_t thread, uint64_t& at) noexcept {
  void* head = nullptr;
  size_t len = 0;
  if (::syscall(SYS_get_robust_list, thread, &head, &len) != 0) {
    return errno == ESRCH ? Place::none : Place::unknown;  // it has ended
  }
  at = reinterpret_cast<uint64_t>(head);
  return head != nullptr ? Place::known : Place::none;  // not the C library's thread
}

// What of these mappings is that thread's: on x86-64 its thread-local variables lie below its
// descriptor, which is all that is above; elsewhere they are above it.
bool is_of(const Range& range, const Range& whole, uint64_t descriptor) noexcept {
  if (descriptor < whole.begin || descriptor >= whole.end) return false;
#if defined(__x86_64__)
  const uint64_t end = (descriptor & ~(page_size() - 1)) + 2 * page_size();
#else
  const uint64_t end = whole.end;
#endif
  return range.overlaps({whole.begin, end});
}

bool is_on_that_of(pid_t thread, const Range& range, const Range& whole) noexcept {
  uint64_t descriptor = 0;
  const Place place = ask_descriptor(thread, descriptor);
  return place == Place::unknown || (place == Place::known && is_of(range, whole, descriptor));
}

// As the kernel counts them: a folder has two links more than folders in it.
bool count_threads(int tasks, uint64_t& count) noexcept {
  struct stat status {};
  if (::fstat(tasks, &status) != 0 || status.st_nlink < 3) return false;
  count = status.st_nlink - 2;
  return true;
}

}  // namespace

bool knows_stacks() noexcept {
  uint64_t at = 0;
  return ask_descriptor(0, at) == Place::known;
}

bool may_be_on_a_stack(const Range& range, const Range& whole) noexcept {
  assert(whole.covers(range));
  const auto main_thread = ::getpid();
  // first, and surely: its own stack is what a thread has most often
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  if (self != main_thread && is_on_that_of(self, range, whole)) return true;
  const UniqueFd tasks(::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  uint64_t before = 0, after = 0, seen = 0;
  if (!tasks || !count_threads(tasks.get(), before)) return true;
  alignas(dirent64) char entries[8192];
  for (;;) {
    const long n = ::syscall(SYS_getdents64, tasks.get(), entries, sizeof entries);
    if (n < 0) return true;
    if (n == 0) break;
    for (long at = 0; at < n;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      pid_t thread = 0;
      const char* const name = entry->d_name;
      if (std::from_chars(name, name + std::strlen(name), thread).ec != std::errc()) continue;
      ++seen;
      if (thread != main_thread && is_on_that_of(thread, range, whole)) return true;
    }
  }
  // threads that come and go while they are read may hide others
  return !count_threads(tasks.get(), after) || before != seen || after != seen;
}

}  // namespace aperture::regcache
