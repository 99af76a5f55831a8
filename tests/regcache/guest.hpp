// What the library guest.cpp offers, and its loading in a test.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>

// Of each of its variables.
inline constexpr size_t kGuestBytes = 192 * 1024;
// Where it unmaps so much as soon as it is loaded, in hexadecimal.
inline constexpr const char* kGuestUnmaps = "APERTURE_TEST_GUEST_UNMAPS";

namespace aperture::regcache::test {

class Guest {
 public:
  explicit Guest(const char* path) : handle_(::dlopen(path, RTLD_LAZY | RTLD_LOCAL)) {
    EXPECT_NE(handle_, nullptr) << ::dlerror();
    munmap = get<decltype(munmap)>("guest_munmap");
    mprotect = get<decltype(mprotect)>("guest_mprotect");
    free = get<decltype(free)>("guest_free");
    of_thread = get<decltype(of_thread)>("guest_of_thread");
    of_library = get<decltype(of_library)>("guest_of_library");
    free_by = get<decltype(free_by)>("guest_free_by");
  }
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;
  ~Guest() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }

  int (*munmap)(void* addr, size_t len) = nullptr;
  int (*mprotect)(void* addr, size_t len, int rights) = nullptr;
  void (*free)(void* block) = nullptr;
  char* (*of_thread)() = nullptr;
  char* (*of_library)() = nullptr;
  void (**free_by)(void* block) = nullptr;

 private:
  template <typename Function>
  Function get(const char* name) {
    void* const at = handle_ != nullptr ? ::dlsym(handle_, name) : nullptr;
    EXPECT_NE(at, nullptr) << name;
    return reinterpret_cast<Function>(at);
  }

  void* handle_;
};

}  // namespace aperture::regcache::test
