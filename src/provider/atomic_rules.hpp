// Which atomics an application may ask for: libfabric's numbers for operations and datatypes, by
// the API version that defines them, and what the core offers of them. man 3 fi_atomic. Any thread;
// no state.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "qp/atomic_op.hpp"

namespace aperture::provider {

// The core has libfabric's numbers.
static_assert(FI_MIN == static_cast<int>(qp::AtomicOp::min) &&
              FI_ATOMIC_READ == static_cast<int>(qp::AtomicOp::read) &&
              FI_ATOMIC_WRITE == static_cast<int>(qp::AtomicOp::write) &&
              FI_CSWAP == static_cast<int>(qp::AtomicOp::cswap) &&
              FI_MSWAP == static_cast<int>(qp::AtomicOp::mswap));
static_assert(FI_INT8 == static_cast<int>(qp::AtomicType::int8) &&
              FI_FLOAT == static_cast<int>(qp::AtomicType::float32) &&
              FI_LONG_DOUBLE_COMPLEX == static_cast<int>(qp::AtomicType::long_double_complex) &&
              FI_UINT128 == static_cast<int>(qp::AtomicType::uint128));

// 128-bit integers came with 1.14; FI_DIFF and the 16- and 8-bit floating-point types with 2.0,
// where FI_ATOMIC_OP_LAST and the like had been.
constexpr int atomic_ops_of(uint32_t api) noexcept {
  return static_cast<int>(api >= FI_VERSION(2, 0) ? qp::AtomicOp::diff : qp::AtomicOp::mswap) + 1;
}
constexpr int atomic_types_of(uint32_t api) noexcept {
  return static_cast<int>(api >= FI_VERSION(2, 0)    ? qp::AtomicType::float8_e5m2
                          : api >= FI_VERSION(1, 14) ? qp::AtomicType::uint128
                                                     : qp::AtomicType::long_double_complex) +
         1;
}

// False: not in that API, or no such operation on that type in that kind of call.
inline bool is_offered(uint32_t api, qp::AtomicKind kind, int op, int type) noexcept {
  return op >= 0 && op < atomic_ops_of(api) && type >= 0 && type < atomic_types_of(api) &&
         qp::atomic_offered(kind, static_cast<qp::AtomicOp>(op), static_cast<qp::AtomicType>(type));
}

// The elements that one call may operate on.
inline size_t most_elements(int type) noexcept {
  return qp::kAtomicBytes / qp::atomic_size(static_cast<qp::AtomicType>(type));
}

// fi_ops_domain::query_atomic
int query_atomic(fid_domain* domain, fi_datatype type, fi_op op, fi_atomic_attr* attr,
                 uint64_t flags) noexcept;

}  // namespace aperture::provider
