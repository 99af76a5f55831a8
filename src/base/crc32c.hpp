// CRC32C (Castagnoli's polynomial; RFC 3720, appendix B.4): whether bytes have been damaged on
// their way. It keeps out nobody who means harm.
//
// By the CPU's own instruction where it has one, which is found out once. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace aperture {

// Of what was said to have the CRC `so_far`, and these bytes behind it.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t so_far = 0) noexcept;

// The same without that instruction.
uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t so_far = 0) noexcept;

}  // namespace aperture
