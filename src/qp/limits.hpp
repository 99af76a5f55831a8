// Limits of the core, as the doors report them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aperture::qp {

inline constexpr size_t kIovLimit = 8;       // pieces of a local buffer
inline constexpr size_t kRmaIovLimit = 8;    // pieces of a remote range
inline constexpr size_t kInjectBytes = 256;  // copied at the call, whatever the operation
inline constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 40;
// Of those that know no such limit: more than an address space has, with room for sums.
inline constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 60;

}  // namespace aperture::qp
