// What a program and its libraries write out to mapped files: an msync() that stands before the C
// library's and passes on. Included by one source of a program.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace aperture::test {

struct Synced {
  uintptr_t from;
  uintptr_t end;
};
inline std::mutex synced_mutex;
inline std::vector<Synced> all_synced;  // since they were last forgotten; guarded by synced_mutex

inline std::vector<Synced> synced() {
  const std::lock_guard guard(synced_mutex);
  return all_synced;
}
inline void forget_syncs() {
  const std::lock_guard guard(synced_mutex);
  all_synced.clear();
}

}  // namespace aperture::test

extern "C" __attribute__((visibility("default"))) int msync(void* at, size_t n, int flags) {
  if ((flags & MS_SYNC) != 0) {
    const std::lock_guard guard(aperture::test::synced_mutex);
    const auto from = reinterpret_cast<uintptr_t>(at);
    aperture::test::all_synced.push_back({from, from + n});
  }
  return static_cast<int>(::syscall(SYS_msync, at, n, flags));
}
