// The names by which objects reach what is hooked, what this process has under them, and whether
// hooks would notice enough here. Found out once; no state but that, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "regcache/hooked_calls.hpp"

namespace aperture::regcache {

inline constexpr std::array kHookedNames = {
    "munmap", "mmap",        "mmap64", "mremap",   "madvise",       "process_madvise", "brk",
    "sbrk",   "__sbrk",      "shmat",  "mprotect", "pkey_mprotect", "ioctl",           "_Fork",
    "free",   "__libc_free", "cfree",  "realloc",  "__libc_realloc"};
// What each of them calls.
inline constexpr std::array<HookedCall, kHookedNames.size()> kCallsOfNames = {
    HookedCall::munmap, HookedCall::mmap,     HookedCall::mmap,
    HookedCall::mremap, HookedCall::madvise,  HookedCall::process_madvise,
    HookedCall::brk,    HookedCall::sbrk,     HookedCall::sbrk,
    HookedCall::shmat,  HookedCall::mprotect, HookedCall::pkey_mprotect,
    HookedCall::ioctl,  HookedCall::fork,     HookedCall::free,
    HookedCall::free,   HookedCall::free,     HookedCall::realloc,
    HookedCall::realloc};
inline constexpr size_t kNameOfFree = 14, kNameOfRealloc = 17;

struct HookedNames {
  // Static storage; nullptr: hooks would notice.
  const char* why_not = nullptr;
  // The same of hooks for what the kernel is silent of alone, whatever the allocator does.
  const char* why_not_beside_the_kernel = nullptr;
  // Who defines each, for objects that ask for it as they usually do. 0: nobody.
  std::array<uintptr_t, kHookedNames.size()> defined{};
  // The allocator is libc's, which changes memory by calls that no hook can see. Another one
  // changes it by calls that objects have words for.
  bool hooks_allocator = false;
};

const HookedNames& hooked_names() noexcept;

}  // namespace aperture::regcache
