// System calls that fail on the control plane: the Nth one, for each N.
#include "base/each_call.hpp"
#include "nic/everything.hpp"

namespace aperture::nth {

// This program's: who calls from libraries, whose code lies far away, does not count.
inline bool may_fail(const void* caller) noexcept {
  extern const char begin_of_program __asm__("__executable_start");
  extern const char end_of_code __asm__("etext");
  return caller >= &begin_of_program && caller < &end_of_code;
}

}  // namespace aperture::nth

namespace aperture::nic {
namespace {

TEST(FailingCalls, the_nth_system_call_may_fail_wherever_it_is) {
  nth::fail_each(outcome_of, 25, kMeaning);
}

}  // namespace
}  // namespace aperture::nic
