// Fetching a cache line ahead of time.
#pragma once

namespace aperture {

// For a store to it, which another core would otherwise have to be asked for first. A hint: at
// worst it does nothing. (The builtin would fetch it for a load, unless told that the processor has
// the instruction; all of x86-64 take it, the oldest as none.)
inline void prefetch_to_write(const void* there) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(there)));
#else
  __builtin_prefetch(there, 1);
#endif
}

}  // namespace aperture
