// The Nth allocation of a door's library fails, for each N, in a process of its own: nobody crashes
// or hangs, whatever fails says so, and the same process then does all of it without a fault
// (docs/adr/0006). Included by the one source of a program, which gets its malloc() from here; what
// libfabric, librdmacm and libc allocate for themselves never fails.
#pragma once

#include <link.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "base/each_allocation.hpp"

namespace aperture::nth {

// Where the door's library lies; written before there is a second thread.
inline uintptr_t library_from = 0;
inline uintptr_t library_end = 0;

inline bool must_fail(const void* caller) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(caller);
  if (at < library_from || at >= library_end || !is_the_nth()) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace aperture::nth

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) {
  if (aperture::nth::must_fail(__builtin_return_address(0))) return nullptr;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  if (aperture::nth::must_fail(__builtin_return_address(0))) return nullptr;
  return __libc_calloc(count, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  if (aperture::nth::must_fail(__builtin_return_address(0))) return nullptr;
  return __libc_memalign(alignment, size);
}
}

namespace aperture::nth {

// What a play ends with, as a process's exit status.
enum Outcome : int { fine = 0, refused = 1, hangs = 10, does_not_recover = 11, stays_open = 12 };

// Thrown by a play: a call has failed, or what it waits for does not come.
struct Ended {
  Outcome outcome;
  std::string why;
};

// What a close came to say; the second call of one that was refused must succeed.
inline bool all_closed = true;

// Calls step() until it returns true.
template <typename Step>
void until(const char* what, Step&& step) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!step()) {
    if (std::chrono::steady_clock::now() > end) throw Ended{hangs, what};
    std::this_thread::yield();
  }
}

inline int find_library(dl_phdr_info* info, size_t, void* name) {
  if (std::strstr(info->dlpi_name, static_cast<const char*>(name)) == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    library_from = info->dlpi_addr + part.p_vaddr;
    library_end = library_from + part.p_memsz;
  }
  return 1;
}

using Play = void (*)();

inline Outcome outcome_of(Play play) {
  try {
    play();
    return all_closed ? fine : stays_open;
  } catch (const Ended& end) {
    if (std::getenv("APERTURE_ALLOCATIONS") != nullptr) {
      std::fprintf(stderr, "%s\n", end.why.c_str());
    }
    return all_closed ? end.outcome : stays_open;
  }
}

// `load` sees to it that the library, whose file name `library` is part of, is there.
template <Play load, Play play>
void fail_each(const char* library, int sample_seconds) {
  static const char* name;
  name = library;
  const auto run = [](uint64_t n) -> int {
    load();
    ::dl_iterate_phdr(find_library, const_cast<char*>(name));
    if (library_end == 0) return does_not_recover;
    fail_from_now_on(n);
    const Outcome first = outcome_of(play);
    fails_at = kNever;
    if (n == 0 || first >= hangs) return first;
    Outcome again = refused;  // a connection may be in its last gasps
    for (int tries = 0; tries < 2 && again == refused; ++tries) again = outcome_of(play);
    return again == refused ? does_not_recover : again;
  };
  fail_each(run, sample_seconds, "12 that something cannot be closed");
}

}  // namespace aperture::nth
