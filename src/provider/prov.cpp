// The way in: what libfabric finds when it loads libaperture-fi.so.
//
// libfabric calls fi_prov_ini() once per load, and from then on only the functions in the
// structure. We never link to libfabric: it may be loaded RTLD_LOCAL, and one file serves every
// version from 1.17 on. A provider whose fi_version is below what an application asks for is
// skipped, so ours is that of the library that has loaded us. man 7 fi_provider;
// rdma/providers/fi_prov.h.
#include <dlfcn.h>
#include <rdma/providers/fi_prov.h>

#include <algorithm>

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

void cleanup() noexcept {}  // the control thread lives until the process ends

int getinfo_entry(uint32_t version, const char* node, const char* service, uint64_t flags,
                  const fi_info* hints, fi_info** info) noexcept {
  return guarded("fi_getinfo", [&] {
    return get_info({version, node, service, flags, hints}, info);
  });
}

int fabric_entry(fi_fabric_attr* attr, fid_fabric** fabric, void* context) noexcept {
  return guarded("fi_fabric", [&] { return open_fabric(attr, fabric, context); });
}

fi_provider g_provider{};  // libfabric writes its own notes into `context`

}  // namespace

}  // namespace aperture::provider

extern "C" __attribute__((visibility("default"))) fi_provider* fi_prov_ini() {
  using namespace aperture::provider;
  g_provider.version = kProviderVersion;
  g_provider.fi_version = std::max(version_of_library(__builtin_return_address(0)), kBuiltAgainst);
  g_provider.name = kProviderName;
  g_provider.getinfo = getinfo_entry;
  g_provider.fabric = fabric_entry;
  g_provider.cleanup = cleanup;
  return &g_provider;
}
