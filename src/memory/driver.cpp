// Which drivers of device memory this process has: see driver.hpp.
#include "memory/driver.hpp"

#include <atomic>
#include <cassert>

#include "base/per_process.hpp"
#include "memory/library.hpp"
#include "memory/vendors.hpp"

namespace aperture::memory {

namespace {

struct Vendor {
  const char* library;  // its name for the loader
  const char* absent;   // what to do where there is no such library
  bool (*in_use)(Library) noexcept;
  Result<Driver*> (*make)(Library, const char*& why) noexcept;
};

// One driver of this process, or that it has none yet.
class Place {
 public:
  explicit constexpr Place(const Vendor& vendor) noexcept
      : vendor_(vendor), seen_(vendor.library) {}

  Driver* existing() const noexcept { return driver_.existing(); }

  Result<Driver*> get(const char*& why) noexcept {
    if (is_of_a_parent()) {
      why =
          "this process was forked from one that had the driver set up: no driver survives a "
          "fork. Start it anew with exec, or fork before device memory is used.";
      return Errc::not_supported;
    }
    return driver_.get([&]() -> Result<Driver*> {
      const Library library = Library::load(vendor_.library);
      if (!library.there()) {
        why = vendor_.absent;
        return Errc::not_supported;
      }
      const char* said = nullptr;
      Result<Driver*> made = vendor_.make(library, said);
      assert(made || said != nullptr);
      // relaxed: read in this process, or in a child that fork(2) gave all of its memory
      if (made) set_up_in_.store(process_epoch(), std::memory_order_relaxed);
      if (!made) why = said;
      return made;
    });
  }

  // The same, but only where the application uses the driver: loads nothing, sets up nothing.
  Driver* get_if_in_use(unsigned long long loads) noexcept {
    if (Driver* driver = existing()) return driver;
    if (is_of_a_parent()) return nullptr;
    const Library library = seen_.look(loads);
    if (!library.there() || !vendor_.in_use(library)) return nullptr;
    const char* why = nullptr;
    Result<Driver*> driver = get(why);
    return driver ? *driver : nullptr;
  }

 private:
  bool is_of_a_parent() const noexcept {
    const uint64_t set_up_in = set_up_in_.load(std::memory_order_relaxed);  // relaxed: see get()
    return set_up_in != 0 && set_up_in != process_epoch();
  }

  const Vendor vendor_;
  AlreadyLoaded seen_;
  PerProcess<Driver> driver_;
  std::atomic<uint64_t> set_up_in_{0};  // process_epoch() of who set it up; 0: nobody
};

// In the order of Kind.
constinit Place places[kKinds] = {
    Place({"libcuda.so.1",
           "libcuda.so.1 is not there or does not load (APERTURE_LOG=info says which): install "
           "NVIDIA's driver, or name its folder in LD_LIBRARY_PATH.",
           cuda_in_use, make_cuda}),
    Place({"libhsa-runtime64.so.1",
           "libhsa-runtime64.so.1 is not there or does not load (APERTURE_LOG=info says which): "
           "install AMD's ROCm runtime, or name its folder in LD_LIBRARY_PATH.",
           rocr_in_use, make_rocr}),
    Place(
        {"libze_loader.so.1",
         "libze_loader.so.1 is not there or does not load (APERTURE_LOG=info says which): install "
         "the loader of Level Zero and Intel's driver, or name its folder in LD_LIBRARY_PATH.",
         ze_in_use, make_ze}),
};

}  // namespace

const char* name_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::cuda: return "CUDA";
    case Kind::rocr: return "ROCr";
    case Kind::ze: return "Level Zero";
    case Kind::dma_buf: return "a dma-buf";
  }
  return "no driver";
}

Result<Driver*> driver(Kind kind, const char*& why) noexcept {
  assert(static_cast<size_t>(kind) < kKinds);
  Result<Driver*> found = places[static_cast<size_t>(kind)].get(why);
  assert(!found || (*found)->kind() == kind);
  return found;
}

Driver* in_use(Kind kind) noexcept {
  assert(static_cast<size_t>(kind) < kKinds);
  Place& place = places[static_cast<size_t>(kind)];
  Driver* const driver = place.existing();
  return driver != nullptr ? driver : place.get_if_in_use(loads_so_far());
}

std::shared_ptr<const Registration> open(const Share& share, size_t len, pid_t owner) noexcept {
  if (share.kind >= kKinds || len == 0) return nullptr;  // any byte may have come
  Driver* const driver = in_use(static_cast<Kind>(share.kind));
  return driver != nullptr ? driver->open(share, len, owner) : nullptr;
}

Driver* find(const void* at) noexcept {
  const unsigned long long loads = loads_so_far();  // asked once: it costs more than all the rest
  for (Place& place : places) {
    Driver* driver = place.get_if_in_use(loads);
    if (driver != nullptr && driver->has(at)) return driver;
  }
  return nullptr;
}

}  // namespace aperture::memory
