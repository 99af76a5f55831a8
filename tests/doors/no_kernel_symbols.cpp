// fopen() of every program with the fixture: for it there is no /proc/kallsyms.
//
// libfabric's verbs provider looks through that twice for what a kernel can do with device memory,
// in each process that uses libfabric at all: some 0.1 s of work, a third of all that these tests
// did. Without the file it takes the kernel for one that cannot.
#include <dlfcn.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

// By this name the linker takes the file in: an fopen() it has of a sanitizer's library already.
extern "C" {
extern const char aperture_no_kernel_symbols;
const char aperture_no_kernel_symbols = 1;
}

extern "C" [[gnu::visibility("default")]] FILE* fopen(const char* path, const char* mode) {
  using Open = FILE* (*)(const char*, const char*);
  static const Open next = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "fopen"));
  if (std::strcmp(path, "/proc/kallsyms") != 0) return next(path, mode);
  errno = ENOENT;
  return nullptr;
}
