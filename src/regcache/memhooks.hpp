// Hooks in the words of all loaded objects, and taking them out again.
//
// No code is changed: a word of an object's tables, by which it calls munmap(3) or the like, is
// made to point to a hook of ours by one store (linkage.hpp, hooked_calls.hpp). What is loaded
// later, and who writes over a hook, is found when the loader's own counts are looked at, at each
// use of a cache: hooks_are_whole() is false until put_hooks() has seen to it, and then everything
// that is kept is taken for changed, since nobody knows what was called meanwhile. dlopen(3) itself
// is not hooked: it looks at who calls it to know where to search.
//
// Taken out, a word points again to the function that it pointed to (one that was not bound yet is
// bound by then). A word over which somebody else has written is left alone: what it points to may
// call our hook, which goes on calling what it was put before, and tells nobody.
//
// Threads: any. The loader's lock is held for short looks: dl_iterate_phdr(3).
#pragma once

#include <cstdint>

#include "base/errc.hpp"

namespace aperture::regcache {

// Of which calls.
enum class Hooks : uint8_t {
  beside_the_kernel,  // kernel_is_silent_of() them
  all,
};

// All that is loaded now. `why`: static storage, where it fails. Errors: no_memory, busy (an object
// is just being loaded), not_supported (changes would not be noticed here, with hooks or without).
Status put_hooks(Hooks which, const char*& why) noexcept;
// What is loaded is what was when they were put, and they are where they were put. Neither
// allocates nor waits for more than the loader's lock.
bool hooks_are_whole(Hooks which) noexcept;
// Unless somebody listens.
void take_out_hooks() noexcept;

}  // namespace aperture::regcache
