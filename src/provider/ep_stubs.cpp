// Atomics and collectives of an endpoint: not offered by this version.
#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>

#include "provider/ep.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {
constexpr NotOffered<"fi_atomic: atomics are not offered by this version; do not ask for FI_ATOMIC">
    kNoAtomics;
constexpr NotOffered<"fi_collective: collectives are not offered"> kNoCollectives;
}  // namespace

fi_ops_atomic g_atomic_ops = {
    .size = sizeof(fi_ops_atomic),
    .write = kNoAtomics,
    .writev = kNoAtomics,
    .writemsg = kNoAtomics,
    .inject = kNoAtomics,
    .readwrite = kNoAtomics,
    .readwritev = kNoAtomics,
    .readwritemsg = kNoAtomics,
    .compwrite = kNoAtomics,
    .compwritev = kNoAtomics,
    .compwritemsg = kNoAtomics,
    .writevalid = kNoAtomics,
    .readwritevalid = kNoAtomics,
    .compwritevalid = kNoAtomics,
};

fi_ops_collective g_collective_ops = {
    .size = sizeof(fi_ops_collective),
    .barrier = kNoCollectives,
    .broadcast = kNoCollectives,
    .alltoall = kNoCollectives,
    .allreduce = kNoCollectives,
    .allgather = kNoCollectives,
    .reduce_scatter = kNoCollectives,
    .reduce = kNoCollectives,
    .scatter = kNoCollectives,
    .gather = kNoCollectives,
    .msg = kNoCollectives,
    .barrier2 = kNoCollectives,
};

}  // namespace aperture::provider
