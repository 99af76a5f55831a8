// Invariants that cost too much for the data path of a release: on under the sanitizers and in
// debug builds, out where NDEBUG or speed rules. Everything cheap is a plain assert, which stays on
// in what is shipped.
#pragma once

#include <cassert>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(APERTURE_INVARIANTS)
#define APERTURE_DEBUG_ASSERT(condition) assert(condition)
#else
#define APERTURE_DEBUG_ASSERT(condition) static_cast<void>(0)
#endif
