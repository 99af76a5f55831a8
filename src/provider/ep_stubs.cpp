// Collectives of an endpoint: not offered by this version.
#include <rdma/fi_collective.h>

#include "provider/ep.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {
constexpr NotOffered<"fi_collective: collectives are not offered"> kNoCollectives;
}  // namespace

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
