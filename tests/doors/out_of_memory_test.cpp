// Connected endpoints while memory runs out: connected_play.cpp.
#include "doors/nth_allocation.hpp"

namespace aperture::nth {
namespace {

TEST(OutOfResources, the_nth_allocation_of_connected_endpoints_may_fail) {
  fail_each<load_door, play_connection>("libaperture-fi.so", 6);
}

}  // namespace
}  // namespace aperture::nth
