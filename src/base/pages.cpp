// Looking at mappings: see pages.hpp. /proc/self/maps: proc_pid_maps(5).
#include "base/pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <memory>

#include "base/guarded_copy.hpp"

namespace aperture {

namespace {

// Touching as many pages costs about what reading the table of a small process does.
constexpr uint64_t kTouchedBytes = 1u << 20;

bool is_mapped(uint64_t start, uint64_t length) noexcept {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t first = start & ~(page - 1);
  // MS_ASYNC writes nothing: it looks whether the range has mappings
  return ::msync(reinterpret_cast<void*>(first), start + length - first, MS_ASYNC) == 0;
}

// The mappings, in the order of their addresses, give all of the range that right.
bool is_in_table(uint64_t start, uint64_t length, bool for_writing) noexcept {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   &std::fclose);
  if (maps == nullptr) return true;  // a sandbox without /proc: nobody can tell, and accesses will
  uint64_t at = start;
  const uint64_t end = start + length;
  char line[4352];  // a path has at most 4096 bytes
  while (at < end && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    uint64_t from = 0;
    uint64_t to = 0;
    char rights[5] = {};  // "rwxp"
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &from, &to, rights) != 3 || to <= at) {
      continue;
    }
    if (from > at || rights[0] != 'r' || (for_writing && rights[1] != 'w')) return false;
    at = to;
  }
  return at >= end;
}

}  // namespace

bool may_be_pinned(uint64_t start, uint64_t length, bool for_writing) noexcept {
  assert(start + length >= start);
  if (length == 0) return true;
  const int kept = errno;
  const bool may =
      is_mapped(start, length) &&
      (length <= kTouchedBytes ? guarded_touch(reinterpret_cast<void*>(start), length, for_writing)
                               : is_in_table(start, length, for_writing));
  errno = kept;
  return may;
}

}  // namespace aperture
