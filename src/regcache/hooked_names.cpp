// Looking around in this process: see hooked_names.hpp.
#include "regcache/hooked_names.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <cassert>

#include "base/per_process.hpp"
#include "regcache/linkage.hpp"

namespace aperture::regcache {

namespace {

static_assert(kCallsOfNames[kNameOfFree] == HookedCall::free);
static_assert(kCallsOfNames[kNameOfRealloc] == HookedCall::realloc);

// The runtimes of the sanitizers have an allocator, and some have stacks, for which they make bare
// system calls. ThreadSanitizer's watches our threads all the same, in tests that use none of its
// allocator's memory.
#if defined(__SANITIZE_THREAD__)
constexpr bool kMindsSanitizers = false;
#else
constexpr bool kMindsSanitizers = true;
#endif

constinit FoundOnce<HookedNames> g_names;

// A program that is not position-independent may give out an address of its own for a function of
// another object, which leads there: that is not where it is defined.
uintptr_t definition_of(const char* name) noexcept {
  void* at = ::dlsym(RTLD_DEFAULT, name);
  Dl_info info{};
  const ElfW(Sym)* symbol = nullptr;
  if (at != nullptr &&
      ::dladdr1(at, &info, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)),
                RTLD_DL_SYMENT) != 0 &&
      symbol != nullptr && symbol->st_shndx == SHN_UNDEF) {
    void* const libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    at = libc != nullptr ? ::dlsym(libc, name) : nullptr;
    if (libc != nullptr) ::dlclose(libc);
  }
  return reinterpret_cast<uintptr_t>(at);
}

// Of the objects that are loaded.
struct Found {
  bool program_defines_any = false;
  bool allocator_is_libc = false;
  bool allocator_asks_by_words = false;  // when it changes memory
};

struct Asked {
  const HookedNames& names;
  uintptr_t in_libc;
  uintptr_t usable_size;
  Found found;
  size_t objects = 0;
};

// Whether one of its words for calls that change memory leads out of it.
bool asks_by_words(const LoadedObject& object) noexcept {
  bool any = false;
  object.for_each_word(kHookedNames, [&](const LinkageWord& word) {
    const HookedCall call = kCallsOfNames[word.name];
    any = any || ((call == HookedCall::munmap || call == HookedCall::madvise) && word.own == 0);
  });
  return any;
}

int look_at(dl_phdr_info* info, size_t, void* asked) {
  auto& [names, in_libc, usable_size, found, objects] = *static_cast<Asked*>(asked);
  const LoadedObject object(*info);
  if (objects++ == 0) {  // the program itself
    for (size_t name = 0; name < names.defined.size(); ++name) {
      // its own ioctl(2) or mprotect(2) says nothing of what it does with its memory's contents
      const HookedCall call = kCallsOfNames[name];
      if (call == HookedCall::ioctl || takes_rights_alone(call)) continue;
      found.program_defines_any = found.program_defines_any || object.contains(names.defined[name]);
    }
  }
  if (object.contains(names.defined[kNameOfFree])) {
    found.allocator_is_libc = object.contains(in_libc) && object.contains(usable_size);
    found.allocator_asks_by_words = asks_by_words(object);
  }
  return 0;
}

bool is_static() noexcept {
  bool names_a_loader = false;
  ::dl_iterate_phdr(
      [](dl_phdr_info* program, size_t, void* names) {
        *static_cast<bool*>(names) = LoadedObject(*program).names_a_loader();
        return 1;
      },
      &names_a_loader);
  return !names_a_loader;
}

HookedNames look_around() noexcept {
  HookedNames names;
  if (!knows_linkage()) {
    names.why_not = "how objects are linked on this machine is not known here";
  } else if (is_static()) {
    names.why_not = "the program is linked statically, so its calls cannot be hooked";
  }
  names.why_not_beside_the_kernel = names.why_not;
  if (names.why_not != nullptr) return names;
  std::transform(kHookedNames.begin(), kHookedNames.end(), names.defined.begin(), definition_of);
  const uintptr_t usable_size = definition_of("malloc_usable_size");
  Asked asked{names, definition_of("gnu_get_libc_version"), usable_size, {}, 0};
  ::dl_iterate_phdr(look_at, &asked);
  if (kMindsSanitizers && definition_of("__sanitizer_get_ownership") != 0) {
    names.why_not = "a sanitizer changes memory by calls that cannot be hooked";
  } else if (asked.found.program_defines_any) {
    names.why_not =
        "the program has an allocator or calls for memory of its own, which cannot be hooked";
  } else if (asked.found.allocator_is_libc) {
    names.hooks_allocator = true;
    set_usable_size(reinterpret_cast<UsableSize>(usable_size));
  } else if (!asked.found.allocator_asks_by_words && kMindsSanitizers) {
    names.why_not = "the allocator of this process changes memory by calls that cannot be hooked";
  }
  return names;
}

}  // namespace

const HookedNames& hooked_names() noexcept {
  return g_names.get(look_around);
}

}  // namespace aperture::regcache
