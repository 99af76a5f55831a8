// The faults that this process is to inject: APERTURE_FAULT, read once. Any thread.
#pragma once

#include "base/fault_plan.hpp"

namespace aperture::link::faulty {

// Null: none. What asks first says once, on stderr, which they are and by which seed, so that a run
// can be repeated and nobody looks for a fault elsewhere; APERTURE_LOG=off keeps it quiet.
const FaultPlan* configured() noexcept;

// The same for a fault that ends something: a line at warn.
[[gnu::format(printf, 1, 2), gnu::cold]] void tell(const char* format, ...) noexcept;

// A number for whoever draws, counted from 1 in the life of the process.
uint64_t next_number() noexcept;

}  // namespace aperture::link::faulty
