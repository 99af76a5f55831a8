// Says which drivers the tests of device memory meet with this environment: a real one, a stand-in,
// or none. One line each: its name, what it is, how many devices it has. With a kind as argument:
// 0 if that is real.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "memory/device_memory.hpp"

namespace {

using aperture::test::DeviceKind;
using aperture::test::Devices;

// Of a real one, where its library says it.
std::string device_name(DeviceKind kind) {
  char name[256] = {};
  void* const library = ::dlopen(aperture::test::library_of(kind), RTLD_NOW | RTLD_LOCAL);
  void* const call = library != nullptr ? ::dlsym(library, "cuDeviceGetName") : nullptr;
  if (call != nullptr) reinterpret_cast<int (*)(char*, int, int)>(call)(name, sizeof name - 1, 0);
  return name;
}

bool say(DeviceKind kind) {
  std::string why;
  const auto devices = Devices::open(kind, why);
  const bool is_real = devices != nullptr && !devices->is_standin();
  std::string what = "none: " + why;
  if (devices != nullptr) what = is_real ? "real " + device_name(kind) : "a stand-in";
  std::printf("%s\t%s\t%zu\n", aperture::test::name_of(kind), what.c_str(),
              devices != nullptr ? devices->count() : 0);
  return is_real;
}

}  // namespace

int main(int argc, char** argv) {
  bool asked = false;
  for (const DeviceKind kind : aperture::test::kDeviceKinds) {
    if (argc > 1 && std::strcmp(argv[1], aperture::test::name_of(kind)) != 0) continue;
    asked = say(kind);
  }
  return argc > 1 && !asked ? 1 : 0;
}
