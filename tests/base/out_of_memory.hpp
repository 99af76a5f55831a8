// Allocations that fail while a test says so. Included by one source of a program, which gets its
// operator new from here.
#pragma once

#include <cstdlib>
#include <new>

namespace aperture::test {

inline bool out_of_memory = false;

inline void* allocate(size_t bytes) noexcept {
  return out_of_memory ? nullptr : std::malloc(bytes != 0 ? bytes : 1);
}

}  // namespace aperture::test

void* operator new(size_t bytes) {
  void* p = aperture::test::allocate(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void* operator new[](size_t bytes) {
  return ::operator new(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return aperture::test::allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return aperture::test::allocate(bytes);
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
