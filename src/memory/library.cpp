// The loader's calls: see library.hpp.
#include "memory/library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cassert>

#include "base/log.hpp"

namespace aperture::memory {

unsigned long long loads_so_far() noexcept {
  unsigned long long loads = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t bytes, void* to) {
        if (bytes >= offsetof(dl_phdr_info, dlpi_adds) + sizeof info->dlpi_adds)
          *static_cast<unsigned long long*>(to) = info->dlpi_adds;
        return 1;  // each library knows the number: the first one will do
      },
      &loads);
  return loads;
}

Library Library::load(const char* name) noexcept {
  void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* said = ::dlerror();
    APERTURE_INFO("%s was not loaded: %s", name, said != nullptr ? said : "no reason given");
  }
  return Library(handle);
}

Library AlreadyLoaded::look(unsigned long long loads) noexcept {
  // relaxed, all of them: a handle is the loader's word for what it guards itself, and a count of
  // loads that is too old only has us look again
  if (void* handle = handle_.load(std::memory_order_relaxed)) return Library(handle);
  if (loads != 0 && loads == absent_at_.load(std::memory_order_relaxed)) return Library();
  void* handle = ::dlopen(name_, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) {
    static_cast<void>(::dlerror());  // not for the application to find
    absent_at_.store(loads, std::memory_order_relaxed);
    return Library();
  }
  handle_.store(handle, std::memory_order_relaxed);
  return Library(handle);
}

Symbol Library::find(const char* name) const noexcept {
  assert(there() && name != nullptr);
  return Symbol{::dlsym(handle_, name)};
}

Symbol Finder::operator()(const char* name) noexcept {
  const Symbol found = library_.find(name);
  if (found.at == nullptr && missing_ == nullptr) missing_ = name;
  assert(found.at != nullptr || missing_ != nullptr);
  return found;
}

}  // namespace aperture::memory
