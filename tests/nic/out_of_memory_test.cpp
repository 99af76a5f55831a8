// Out of memory on the control plane (docs/adr/0006): the Nth allocation fails, for each N.
#include "base/own_new.hpp"
#include "nic/everything.hpp"

inline void* aperture::test::allocate(size_t bytes) noexcept {
  return nth::is_the_nth() ? nullptr : std::malloc(bytes);
}

namespace aperture::nic {
namespace {

TEST(OutOfMemory, the_nth_allocation_may_fail_wherever_it_is) {
  nth::fail_each(outcome_of, 25, kMeaning);
}

}  // namespace
}  // namespace aperture::nic
