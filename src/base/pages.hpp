// Whether memory is there to be registered, as a kernel that pins pages would find out. No state,
// any thread.
#pragma once

#include <cstdint>

namespace aperture {

// All of [start, start + length) is mapped and can be read, or also written. True for no bytes, and
// says something about now only. The range must not wrap. A short range is touched, page by page,
// as pinning it would; a long one, of which pages may never be needed, is looked up in
// /proc/self/maps.
bool may_be_pinned(uint64_t start, uint64_t length, bool for_writing) noexcept;

}  // namespace aperture
