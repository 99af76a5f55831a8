// Looking at mappings of files: see file_mappings.hpp.
#include "base/file_mappings.hpp"

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

namespace aperture {

namespace {

// Whether [from, end) is one shared mapping of a file that has a name.
bool is_line_of_file(const char* line, uintptr_t& from, uintptr_t& end) {
  char sharing[5] = {};
  unsigned long inode = 0;
  int name_at = 0;
  if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*x %*s %lu %n", &from, &end, sharing,
                  &inode, &name_at) < 4) {
    return false;
  }
  return sharing[3] == 's' && inode != 0 && std::strstr(line + name_at, "(deleted)") == nullptr;
}

}  // namespace

bool is_mapped_from_files(const void* start, size_t len) {
  const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                   &std::fclose);
  if (maps == nullptr) return false;
  auto at = reinterpret_cast<uintptr_t>(start);
  const uintptr_t end = at + len;
  char line[4352];  // a path has at most 4096 bytes
  // in the order of addresses
  while (at < end && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    uintptr_t from = 0;
    uintptr_t to = 0;
    if (is_line_of_file(line, from, to) && from <= at && at < to) at = to;
  }
  return at >= end;
}

}  // namespace aperture
