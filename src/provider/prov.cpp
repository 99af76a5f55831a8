// The way in: what libfabric finds when it loads libaperture-fi.so.
//
// libfabric calls fi_prov_ini() once for each time that it finds the file, and from then on only
// the functions in the structure. We never link to libfabric: it may be loaded RTLD_LOCAL, and one
// file serves every version from 1.17 on. A provider whose fi_version is below what an application
// asks for is skipped, so ours is that of the library that has loaded us. man 7 fi_provider;
// rdma/providers/fi_prov.h.
#include <dlfcn.h>
#include <rdma/providers/fi_prov.h>

#include <algorithm>
#include <atomic>

#include "provider/entry.hpp"
#include "provider/fabric.hpp"
#include "provider/info.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

using VersionFn = uint32_t (*)();

constexpr uint32_t kBuiltAgainst = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);

// fi_version() of the library that `caller` (a code address) belongs to.
uint32_t version_of_library(const void* caller) noexcept {
  VersionFn found = nullptr;
  Dl_info info{};
  if (::dladdr(caller, &info) != 0 && info.dli_fname != nullptr) {
    if (void* library = ::dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
      found = reinterpret_cast<VersionFn>(::dlsym(library, "fi_version"));
      ::dlclose(library);  // it stays loaded: we are being called from it
    }
  }
  if (found == nullptr) found = reinterpret_cast<VersionFn>(::dlsym(RTLD_DEFAULT, "fi_version"));
  return found != nullptr ? found() : kBuiltAgainst;
}

void cleanup() noexcept {  // the control thread lives until the process ends
  explain_what_was_left();
}

int getinfo_entry(uint32_t version, const char* node, const char* service, uint64_t flags,
                  const fi_info* hints, fi_info** info) noexcept {
  return guarded("fi_getinfo", [&] {
    return get_info({version, node, service, flags, hints}, info);
  });
}

int other_getinfo_entry(uint32_t version, const char* node, const char* service, uint64_t flags,
                        const fi_info* hints, fi_info** info) noexcept {
  return guarded("fi_getinfo", [&] {
    return get_info({version, node, service, flags, hints, *other_name()}, info);
  });
}

int fabric_entry(fi_fabric_attr* attr, fid_fabric** fabric, void* context) noexcept {
  return guarded("fi_fabric", [&] { return open_fabric(attr, fabric, context); });
}

using GetInfo = decltype(fi_provider::getinfo);

// libfabric writes its own notes into their `context`.
fi_provider g_own{};
fi_provider g_other{};

fi_provider* fill(fi_provider& out, const Name& name, GetInfo getinfo, const void* library) {
  out.version = name.version;
  out.fi_version = std::max(version_of_library(library), kBuiltAgainst);
  out.name = name.registered.c_str();
  out.getinfo = getinfo;
  out.fabric = fabric_entry;
  out.cleanup = cleanup;
  return &out;
}

// Which of the names this call is for. libfabric calls once for each time that it meets the file in
// FI_PROVIDER_PATH, and `aperture run --as` puts our folder there twice.
bool is_for_other_name() noexcept {
  static std::atomic<unsigned> calls{0};
  // relaxed: libfabric loads providers under a lock of its own
  return calls.fetch_add(1, std::memory_order_relaxed) % 2 == 1 && other_name() != nullptr;
}

}  // namespace

}  // namespace aperture::provider

extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini() {
  using namespace aperture::provider;
  const void* library = __builtin_return_address(0);
  if (is_for_other_name()) return fill(g_other, *other_name(), other_getinfo_entry, library);
  return fill(g_own, own_name(), getinfo_entry, library);
}
