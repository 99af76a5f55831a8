// Objects and a connection of the verbs door while descriptors and the like run out:
// connection_play.cpp.
#include "doors/nth_call.hpp"

namespace aperture::nth {
namespace {

TEST(OutOfResources, the_nth_system_call_of_a_connection_of_verbs_may_fail) {
  fail_each<load_door, play_connection>("libibverbs.so", 6);
}

}  // namespace
}  // namespace aperture::nth
