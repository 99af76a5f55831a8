// A connection by rdma_cm while memory runs out: connection_play.cpp.
#include "doors/nth_allocation.hpp"

namespace aperture::nth {
namespace {

TEST(OutOfResources, the_nth_allocation_of_a_connection_by_rdma_cm_may_fail) {
  fail_each<load_door, play_connection>("libibverbs.so", 6);
}

}  // namespace
}  // namespace aperture::nth
