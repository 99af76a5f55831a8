// Unpredictable bits from the kernel, buffered: one getrandom(2) fills 4 KiB, since a system call
// for each key is too slow. The buffer is per thread and is dropped in a forked child.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aperture {

uint64_t random_u64() noexcept;                           // some 20 ns, nearly all in the kernel
void random_bytes(void* out, size_t len_bytes) noexcept;  // aborts if the kernel has none

}  // namespace aperture
