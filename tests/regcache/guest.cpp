// A library that comes and goes, and changes memory by words of its own.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "guest.hpp"

namespace {

thread_local char g_of_thread[kGuestBytes];
alignas(4096) char g_of_library[kGuestBytes];

void* g_unmapped_at_load = nullptr;

// As a plugin may do with what it was handed by the environment.
[[gnu::constructor]] void unmap_at_load() {
  const char* const where = std::getenv(kGuestUnmaps);
  if (where == nullptr) return;
  g_unmapped_at_load = reinterpret_cast<void*>(std::strtoull(where, nullptr, 16));  // NOLINT
  ::munmap(g_unmapped_at_load, kGuestBytes);
  ::mmap(g_unmapped_at_load, kGuestBytes, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int guest_munmap(void* addr, size_t len) {
  return ::munmap(addr, len);
}
[[gnu::visibility("default")]] int guest_mprotect(void* addr, size_t len, int rights) {
  return ::mprotect(addr, len, rights);
}
[[gnu::visibility("default")]] void guest_free(void* block) {
  std::free(block);
}
[[gnu::visibility("default")]] char* guest_of_thread() {
  return g_of_thread;
}
[[gnu::visibility("default")]] char* guest_of_library() {
  return g_of_library;
}
// A pointer to a function in data, as tables of allocators have them.
[[gnu::visibility("default")]] void (*guest_free_by)(void*) = std::free;
}
