// Which atomics an application may ask for: libfabric's numbers for operations and datatypes, by
// the API version that defines them, and what the core offers of them. man 3 fi_atomic. Any thread;
// no state.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "transport/atomic_op.hpp"

namespace aperture::provider {

// The core has libfabric's numbers.
static_assert(FI_MIN == static_cast<int>(transport::AtomicOp::min) &&
              FI_ATOMIC_READ == static_cast<int>(transport::AtomicOp::read) &&
              FI_ATOMIC_WRITE == static_cast<int>(transport::AtomicOp::write) &&
              FI_CSWAP == static_cast<int>(transport::AtomicOp::cswap) &&
              FI_MSWAP == static_cast<int>(transport::AtomicOp::mswap));
static_assert(FI_INT8 == static_cast<int>(transport::AtomicType::int8) &&
              FI_FLOAT == static_cast<int>(transport::AtomicType::float32) &&
              FI_LONG_DOUBLE_COMPLEX ==
                  static_cast<int>(transport::AtomicType::long_double_complex) &&
              FI_UINT128 == static_cast<int>(transport::AtomicType::uint128));

// 128-bit integers came with 1.14; FI_DIFF and the 16- and 8-bit floating-point types with 2.0,
// where FI_ATOMIC_OP_LAST and the like had been.
constexpr int atomic_ops_of(uint32_t api) noexcept {
  return static_cast<int>(api >= FI_VERSION(2, 0) ? transport::AtomicOp::diff
                                                  : transport::AtomicOp::mswap) +
         1;
}
constexpr int atomic_types_of(uint32_t api) noexcept {
  return static_cast<int>(api >= FI_VERSION(2, 0)    ? transport::AtomicType::float8_e5m2
                          : api >= FI_VERSION(1, 14) ? transport::AtomicType::uint128
                                                     : transport::AtomicType::long_double_complex) +
         1;
}

// False: not in that API, or no such operation on that type in that kind of call.
inline bool is_offered(uint32_t api, transport::AtomicKind kind, int op, int type) noexcept {
  return op >= 0 && op < atomic_ops_of(api) && type >= 0 && type < atomic_types_of(api) &&
         transport::atomic_offered(kind, static_cast<transport::AtomicOp>(op),
                                   static_cast<transport::AtomicType>(type));
}

// The elements that one call may operate on.
inline size_t most_elements(int type) noexcept {
  return transport::kAtomicBytes / transport::atomic_size(static_cast<transport::AtomicType>(type));
}

// fi_ops_domain::query_atomic
int query_atomic(fid_domain* domain, fi_datatype type, fi_op op, fi_atomic_attr* attr,
                 uint64_t flags) noexcept;

}  // namespace aperture::provider
