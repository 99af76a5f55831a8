// Whether the kernel lets one process copy into another, asked without our own code: what is
// skipped where it does not must not be skipped because we have come to believe so.
#pragma once

#include <sys/uio.h>
#include <unistd.h>

namespace aperture::test {

// The byte at `at` in the memory of `pid` is read and written back: process_vm_readv(2),
// process_vm_writev(2).
inline bool cma_works(pid_t pid, void* at) {
  char byte = 0;
  const iovec local{&byte, 1}, remote{at, 1};
  return ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == 1 &&
         ::process_vm_writev(pid, &local, 1, &remote, 1, 0) == 1;
}
// Within this process.
inline bool cma_works() {
  char byte = 0;
  return cma_works(::getpid(), &byte);
}

}  // namespace aperture::test
