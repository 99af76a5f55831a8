// libaperture-explain.so: stands before libfabric's fi_getinfo in what `aperture explain` starts,
// and says what libfabric itself refuses, of which the provider never hears: a newer API than the
// library's, and another provider's name. It is preloaded; programs that look fi_getinfo up in a
// library of their own choice pass it by.
//
// Each version of fi_getinfo is handed on to the same version. What is read of the hints has been
// at its place since the first. man 3 fi_getinfo. Any thread.
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <cstdlib>
#include <string>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/spelling.hpp"
#include "provider/names.hpp"

namespace aperture::provider {

namespace {

using GetInfo = int (*)(uint32_t version, const char* node, const char* service, uint64_t flags,
                        const fi_info* hints, fi_info** info);
using Version = uint32_t (*)();

// Of the library that would have been called; or of the one that is loaded for a plugin alone.
void* next(const char* function, const char* version) noexcept {
  const auto look_up = [=](void* handle) {
    void* found = version != nullptr ? ::dlvsym(handle, function, version) : nullptr;
    return found != nullptr ? found : ::dlsym(handle, function);
  };
  if (void* found = look_up(RTLD_NEXT)) return found;
  void* library = ::dlopen("libfabric.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* found = look_up(library);
  ::dlclose(library);  // it stays loaded: somebody else has it
  return found;
}

void explain_version(uint32_t asked, uint32_t there) noexcept {
  APERTURE_WARN(
      "fi_getinfo: API %u.%u is asked of libfabric %u.%u, which refuses a newer one than its own "
      "before it asks any provider; ask for %u.%u or older, or run with a newer libfabric",
      FI_MAJOR(asked), FI_MINOR(asked), FI_MAJOR(there), FI_MINOR(there), FI_MAJOR(there),
      FI_MINOR(there));
}

void explain_name(const char* name) {
  if (own_name().is_meant_by(name)) return;  // the provider has been asked, and has said why
  if (const Name* other = other_name(); other != nullptr && other->is_meant_by(name)) return;
  const char* list = std::getenv("FI_PROVIDER");
  if (is_nearly(name, own_name().whole)) {
    APERTURE_WARN(
        "fi_getinfo: provider \"%s\" is asked for, and there is none of that name; \"%s\" is "
        "perhaps what is meant",
        name, own_name().whole.c_str());
    return;
  }
  APERTURE_WARN(
      "fi_getinfo: provider \"%s\" is asked for and found nothing%s%s%s; to have Aperture answer "
      "under that name, run with --as '%s'",
      name, list != nullptr ? " (FI_PROVIDER=" : "", list != nullptr ? list : "",
      list != nullptr ? ")" : "", name);
}

// libfabric's utility providers ask it for what is beneath them, through this very function; only
// what the program itself asks is explained.
thread_local int g_depth = 0;

int ask(const char* abi, uint32_t version, const char* node, const char* service, uint64_t flags,
        const fi_info* hints, fi_info** info) noexcept {
  const auto real = reinterpret_cast<GetInfo>(next("fi_getinfo", abi));
  if (real == nullptr) {
    APERTURE_WARN("fi_getinfo: no libfabric.so.1 is loaded that could be asked");
    return -FI_ENOSYS;
  }
  ++g_depth;
  const int code = real(version, node, service, flags, hints, info);
  if (--g_depth != 0 || code == 0) return code;
  const auto real_version = reinterpret_cast<Version>(next("fi_version", nullptr));
  const uint32_t there = real_version != nullptr ? real_version() : version;
  const fi_fabric_attr* asked = hints != nullptr ? hints->fabric_attr : nullptr;
  if (there < version) {
    explain_version(version, there);
  } else if (asked != nullptr && asked->prov_name != nullptr) {
    (void)no_throw([asked] { explain_name(asked->prov_name); });
  }
  return code;
}

}  // namespace

}  // namespace aperture::provider

#define APERTURE_GETINFO(suffix, at, abi)                                            \
  extern "C" __attribute__((visibility("default"))) int aperture_getinfo_##suffix(   \
      uint32_t version, const char* node, const char* service, uint64_t flags,       \
      const fi_info* hints, fi_info** info) noexcept {                               \
    return aperture::provider::ask(abi, version, node, service, flags, hints, info); \
  }                                                                                  \
  __asm__(".symver aperture_getinfo_" #suffix ", fi_getinfo" at abi)

APERTURE_GETINFO(1_0, "@", "FABRIC_1.0");
APERTURE_GETINFO(1_1, "@", "FABRIC_1.1");
APERTURE_GETINFO(1_2, "@", "FABRIC_1.2");
APERTURE_GETINFO(1_3, "@", "FABRIC_1.3");
APERTURE_GETINFO(1_7, "@", "FABRIC_1.7");
APERTURE_GETINFO(1_8, "@", "FABRIC_1.8");
APERTURE_GETINFO(1_9, "@", "FABRIC_1.9");
APERTURE_GETINFO(1_10, "@@", "FABRIC_1.10");
