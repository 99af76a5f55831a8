// syscall(2) of a program, which decides what becomes of each: included by one source, whose
// function stands before the C library's, and which says what on_system_call() does.
#pragma once

#include <dlfcn.h>
#include <sys/syscall.h>

#include <cstdarg>

namespace aperture::test {

struct SystemCall {
  long number;
  const void* caller;
  long a[6];  // as many as one has at most

  // To the C library's own.
  long pass_on() const noexcept {
    using Call = long (*)(long, ...);
    static const auto real = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "syscall"));
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
};

inline long on_system_call(const SystemCall& call) noexcept;

}  // namespace aperture::test

#pragma GCC visibility push(default)  // a library finds it here

extern "C" long syscall(long number, ...) noexcept {
  aperture::test::SystemCall call{number, __builtin_return_address(0), {}};
  va_list more;
  va_start(more, number);
  for (long& one : call.a) one = va_arg(more, long);
  va_end(more);
  return aperture::test::on_system_call(call);
}

#pragma GCC visibility pop
