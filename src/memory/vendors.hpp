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

// What all of them may have to say.
inline constexpr const char* kNoRoom = "there is no memory left to keep account of it.";

}  // namespace aperture::memory
