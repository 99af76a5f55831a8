// The three drivers, as driver.cpp knows them.
//
// in_use: whether the application has set the library up for itself; only then can any memory be of
// that driver's. It sets up nothing.
// make: sets the driver up and makes the one object that this process has of it, which lives as
// long as the process. Its errors are those of memory::driver(), and `why` is of use only with one;
// what was set up before it is given back.
#pragma once

#include "memory/driver.hpp"
#include "memory/library.hpp"

namespace aperture::memory {

bool cuda_in_use(Library library) noexcept;
Result<Driver*> make_cuda(Library library, const char*& why) noexcept;

bool rocr_in_use(Library library) noexcept;
Result<Driver*> make_rocr(Library library, const char*& why) noexcept;

bool ze_in_use(Library library) noexcept;
Result<Driver*> make_ze(Library library, const char*& why) noexcept;

// What a driver takes from a device at a time; it begins at a multiple of that. Small allocations
// come out of one such block, and a handle for another process is of whole blocks: memory is shared
// only where [base, base + len) are blocks of its own.
inline constexpr size_t kBlockBytes = size_t{2} << 20;
inline bool has_its_blocks(uint64_t base, size_t len) noexcept {
  return base % kBlockBytes == 0 && len % kBlockBytes == 0 && len != 0;
}

// What all of them may have to say.
inline constexpr const char* kNoRoom = "there is no memory left to keep account of it.";

}  // namespace aperture::memory
