// Connected endpoints while descriptors and the like run out: connected_play.cpp.
#include "doors/nth_call.hpp"

namespace aperture::nth {
namespace {

TEST(OutOfResources, the_nth_system_call_of_connected_endpoints_may_fail) {
  fail_each<load_door, play_connection>("libaperture-fi.so", 6);
}

}  // namespace
}  // namespace aperture::nth
