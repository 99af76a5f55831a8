// A message of libfabric's datagram endpoints, as the payload of one UDP datagram. fi_endpoint(3),
// FI_EP_DGRAM; fi_msg(3).
//
// All integers are little-endian, reserved bytes zero; whatever is not exactly as drawn does not
// decode. Who sent it is not said here: that is what the kernel says. No I/O and no state: any
// thread.
//
//   0       4         5       6        8       12           14         16     24
//   | magic | version | flags | length | group | group port | reserved | data | payload
//
//   length:     bytes of the payload, all that follows the header; at most kDatagramMtu
//   group:      group_tag() of a multicast group's IP, 0 if it is for one endpoint
//   group port: the port that is part of the group's address, which is no UDP port: datagrams of
//               every group go to kGroupPort
//   data:       remote CQ data, 0 without kMessageData
#pragma once

#include "wire/datagram.hpp"

namespace aperture::wire {

inline constexpr uint32_t kMessageDatagramMagic = 0x4446'5041;  // "APFD", little-endian
inline constexpr uint8_t kMessageDatagramVersion = 1;
inline constexpr size_t kMessageHeaderBytes = 24;
static_assert(kMessageHeaderBytes + kDatagramMtu <= kMaxDatagramBytes, "the link's buffers");

inline constexpr uint8_t kMessageData = 1;

struct MessageHead {
  uint8_t flags = 0;
  Wild<uint16_t> length;
  Wild<uint32_t> group;
  Wild<uint16_t> group_port;
  uint64_t data = 0;  // handed on and never used
};

void encode(const MessageHead& head, std::span<std::byte, kMessageHeaderBytes> out) noexcept;
// `in` is the whole datagram. Errors: protocol.
Result<MessageHead> decode_message_datagram(std::span<const std::byte> in) noexcept;

}  // namespace aperture::wire
