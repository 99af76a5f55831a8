// operator new of a program, which decides what there is memory for: included by one source, which
// says what allocate() does.
#pragma once

#include <cstdlib>
#include <new>

namespace aperture::test {

// As std::malloc.
inline void* allocate(size_t bytes) noexcept;

}  // namespace aperture::test

#pragma GCC visibility push(default)  // for libraries; clang's <new> does not declare them all

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

#pragma GCC visibility pop
