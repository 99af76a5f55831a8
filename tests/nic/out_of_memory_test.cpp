// Out of memory on the control plane (docs/adr/0006): the Nth allocation fails, for each N.
#include "nic/everything.hpp"

namespace {

void* allocate(size_t bytes) noexcept {
  return aperture::nth::is_the_nth() ? nullptr : std::malloc(bytes != 0 ? bytes : 1);
}

}  // namespace

void* operator new(size_t bytes) {
  void* p = allocate(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new[](size_t bytes) {
  return ::operator new(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}

namespace aperture::nic {
namespace {

TEST(OutOfMemory, the_nth_allocation_may_fail_wherever_it_is) {
  nth::fail_each(outcome_of, 25, kMeaning);
}

}  // namespace
}  // namespace aperture::nic
