// Unpredictable bits: a seed from the kernel, stretched by ChaCha20 (libsodium) with a new seed for
// each 4 KiB and one from the kernel for each 4 MiB, since a system call for each key is too slow.
// Per thread, and dropped in a forked child.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aperture {

uint64_t random_u64() noexcept;                           // some 4 ns
void random_bytes(void* out, size_t len_bytes) noexcept;  // aborts if the kernel has none

}  // namespace aperture
