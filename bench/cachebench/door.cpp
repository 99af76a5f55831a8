// Which functions stand behind a name.
#include "cachebench/door.hpp"

#include <dlfcn.h>

#include <bit>

#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

template <typename Function>
Function symbol_of(void* module, const char* name) {
  void* const found = ::dlsym(module, name);
  if (found == nullptr) throw Failure("it has no %s: is it a module for cachebench?", name);
  return std::bit_cast<Function>(found);
}

}  // namespace

Door no_cache() {
  Door door{};
  door.version = []() noexcept { return "no cache"; };
  door.open = [](const char*, cache_peer_counts*) -> const char* { return nullptr; };
  door.use = [](void*, size_t) { return 0; };
  door.close = [] {};
  door.keeps = false;
  return door;
}

// Never unloaded: its hooks may stay where they are.
Door load_cache(const std::string& path) {
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) throw Failure("%s", ::dlerror());
  Door door{};
  door.version = symbol_of<decltype(door.version)>(module, "cache_peer_version");
  door.open = symbol_of<decltype(door.open)>(module, "cache_peer_open");
  door.use = symbol_of<decltype(door.use)>(module, "cache_peer_use");
  door.close = symbol_of<decltype(door.close)>(module, "cache_peer_close");
  return door;
}

Door door_of(const std::string& name) {
  if (name == "aperture") return own_cache();
  if (name == "none") return no_cache();
  return load_cache(name);
}

}  // namespace aperture::bench
