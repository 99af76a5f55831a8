// The functions that stand before those which change memory: each notices, and calls the one that
// it stands before.
//
// What is called next is what the word pointed to that now points to the hook, whichever function
// that was: another library's hook goes on being called as it was. So there are several hooks for a
// call, one for each function that was found in such a word. They are as safe in signal handlers as
// the call itself, keep errno, use no thread-local storage and know no cancellation point that the
// call has not got. They are not noexcept: a thread that is cancelled in one is unwound through it.
//
// What an allocator of libc does with memory of its own, it does without a word to anybody: free(3)
// unmaps, trims the heap and gives pages back by calls that no word leads to. So memory is taken
// for changed as soon as the block is freed on which it lies, and what becomes of its pages from
// there on does not matter. posix_madvise(3) changes nothing, not even with POSIX_MADV_DONTNEED;
// shmdt(2) takes away shared memory, which is never watched. Of a few calls the kernel tells
// userfaultfd(2) nothing either (kernel_is_silent_of()); which of their arguments those are is for
// the hooks to know.
//
// A word that was given a hook may be used at any time afterwards, by who has read it before it was
// put back; so this code is never unloaded (the doors are linked with -z nodelete). Any thread;
// hook_before() is for one at a time. What has been put before what is never forgotten.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aperture::regcache {

enum class HookedCall : uint8_t {
  munmap,
  mmap,
  mremap,
  madvise,
  process_madvise,
  brk,
  sbrk,
  shmat,
  mprotect,
  pkey_mprotect,
  ioctl,  // UFFDIO_MOVE alone
  fork,   // _Fork(3), which runs no handlers of pthread_atfork(3)
  free,
  realloc,
};
inline constexpr size_t kHookedCalls = 14;

// Pages stay what they are, and what was made for their rights may not be made any more.
constexpr bool takes_rights_alone(HookedCall call) noexcept {
  return call == HookedCall::mprotect || call == HookedCall::pkey_mprotect;
}
// It may change memory without a word of the kernel's to who watches that by userfaultfd(2).
constexpr bool kernel_is_silent_of(HookedCall call) noexcept {
  return call == HookedCall::madvise || call == HookedCall::process_madvise ||
         call == HookedCall::shmat || takes_rights_alone(call) || call == HookedCall::ioctl ||
         call == HookedCall::fork;
}

// A hook that calls `next` and is called as that is. 0: too many functions have been found for that
// call.
uintptr_t hook_before(HookedCall call, uintptr_t next) noexcept;
// What a hook calls; 0: that is no hook of ours.
uintptr_t function_behind(uintptr_t hook) noexcept;

// malloc_usable_size(3) of the allocator, before any hook of free or realloc is put anywhere.
using UsableSize = size_t (*)(void*);
void set_usable_size(UsableSize usable_size) noexcept;

}  // namespace aperture::regcache
