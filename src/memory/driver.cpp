// Which drivers of device memory this process has: see driver.hpp.
#include "memory/driver.hpp"

namespace aperture::memory {

const char* name_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::cuda: return "CUDA";
    case Kind::rocr: return "ROCr";
    case Kind::ze: return "Level Zero";
  }
  return "no driver";
}

Result<Driver*> driver(Kind, const char*& why) noexcept {
  why = "this build has no driver of device memory.";
  return Errc::not_supported;
}

Driver* find(const void*) noexcept {
  return nullptr;
}

}  // namespace aperture::memory
