// How a connection of rdma_cm ids is begun between hosts: what is said to the porter of a host,
// what is answered, and what goes with a connection that he passes on.
//
// All integers are little-endian, reserved bytes zero; whatever is not exactly as drawn does not
// decode. Whose connection it is and where it has come to is not in here: the kernel knows. No
// state, no I/O, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/errc.hpp"
#include "base/wild.hpp"

namespace aperture::wire {

//   every one     0       8         10
//                 | magic | version | ...
//
//   PorterHello   10           11  12     14     16     who connects, first of all
//                 | port space | 0 | port | from |
//
//   PorterAnswer  10        11      16                  if it is taken, wire/cm.hpp follows
//                 | verdict | zeros |
//
//   PorterNote    10     12     14      16              porter to id, with the descriptor
//                 | zeros | from | zeros |
//
//   port, from: of the ids, that is asked for and that asks; never 0
inline constexpr uint64_t kPorterHelloMagic = 0x0048'5054'5245'5041;   // "APERTPH\0", little-endian
inline constexpr uint64_t kPorterAnswerMagic = 0x0041'5054'5245'5041;  // "APERTPA\0"
inline constexpr uint64_t kPorterNoteMagic = 0x004e'5054'5245'5041;    // "APERTPN\0"
inline constexpr uint16_t kPorterVersion = 1;
inline constexpr size_t kPorterBytes = 16;  // each of them
inline constexpr uint8_t kPortSpaces = 4;   // as cm/port_name.hpp numbers them

enum class PorterVerdict : uint8_t {
  taken = 1,   // whoever listens there has it
  nobody = 2,  // listens there
  busy = 3,    // as many wait there as may
};

struct PorterHello {
  uint8_t space = 0;  // less than kPortSpaces
  uint16_t port = 0;
  Wild<uint16_t> from;
};

struct PorterAnswer {
  PorterVerdict verdict = PorterVerdict::nobody;
};

struct PorterNote {
  Wild<uint16_t> from;
};

using PorterBytes = std::array<std::byte, kPorterBytes>;

PorterBytes encode(const PorterHello& hello) noexcept;
PorterBytes encode(const PorterAnswer& answer) noexcept;
PorterBytes encode(const PorterNote& note) noexcept;

// Errors: protocol; not_supported if all that is wrong is the version.
Result<PorterHello> decode_porter_hello(std::span<const std::byte> in) noexcept;
Result<PorterAnswer> decode_porter_answer(std::span<const std::byte> in) noexcept;
Result<PorterNote> decode_porter_note(std::span<const std::byte> in) noexcept;

}  // namespace aperture::wire
