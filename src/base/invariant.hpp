// Invariants that cost too much for the data path of a release: on under the sanitizers and the
// fuzzer (APERTURE_INVARIANTS), out elsewhere. Everything cheap is a plain assert, which stays on
// in what is shipped.
#pragma once

#include <cassert>

#if defined(APERTURE_INVARIANTS)
#define APERTURE_DEBUG_ASSERT(condition) assert(condition)
#else
#define APERTURE_DEBUG_ASSERT(condition) static_cast<void>(0)
#endif
