// An unreliable datagram of the verbs door, as the payload of one UDP datagram, and where multicast
// groups are on an IP network. IBTA vol. 1, 9.8.3 (unreliable datagram) and 9.6.3 (DETH); 10.5.2
// (multicast).
//
// All integers are little-endian, reserved bits zero; whatever is not exactly as drawn does not
// decode. What decodes is still a stranger's word: the receiver compares queue pair, Q_Key and
// group with its own. No I/O and no state: any thread.
//
//   0       4         5       6        8          11      12        16      20    24      28
//   | magic | version | flags | length | dest QPN | class | src QPN | Q_Key | imm | group | payload
//
//   length: bytes of the payload, all that follows the header; at most kDatagramMtu
//   QPNs:   24 bits; dest is kMulticastQpn for a multicast group
//   class:  the traffic class of the sender's route
//   imm:    as the application gave it, 0 without kDatagramImm
//   group:  group_tag() of the MGID, 0 if it is for one queue pair
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "base/wild.hpp"

namespace aperture::wire {

inline constexpr uint32_t kDatagramMagic = 0x4455'5041;  // "APUD", little-endian
inline constexpr uint8_t kDatagramVersion = 1;
inline constexpr size_t kDatagramHeaderBytes = 28;
inline constexpr size_t kDatagramMtu = 4096;
inline constexpr size_t kMaxDatagramBytes = kDatagramHeaderBytes + kDatagramMtu;

inline constexpr uint8_t kDatagramImm = 1;
inline constexpr uint8_t kDatagramSolicited = 2;

inline constexpr uint32_t kMulticastQpn = 0xffffff;
// The UDP port of every group: that of RoCE version 2.
inline constexpr uint16_t kGroupPort = 4791;

struct DatagramHead {
  uint8_t flags = 0;
  Wild<uint16_t> length;
  Wild<uint32_t> dest_qpn;
  uint8_t traffic_class = 0;  // handed on and never used
  Wild<uint32_t> src_qpn;
  Wild<uint32_t> qkey;
  uint32_t imm = 0;  // handed on and never used
  Wild<uint32_t> group;
};

void encode(const DatagramHead& head, std::span<std::byte, kDatagramHeaderBytes> out) noexcept;
// `in` is the whole datagram. Errors: protocol.
Result<DatagramHead> decode_datagram(std::span<const std::byte> in) noexcept;

// An MGID: 224.0.0.0/4, IPv4-mapped, or ff00::/8.
bool is_group(const Address& address) noexcept;
// Never 0. Several MGIDs may have to share an IP: this tells them apart.
uint32_t group_tag(const Address& group) noexcept;
// Where a group is on an IPv4 network: itself, or, of any MGID that is no IPv4 address, one of
// 239.192.0.0/14 (RFC 2365, organization-local scope), the same in every process.
Address group_on_ipv4(const Address& group) noexcept;

// --- the global route header, of which every receive of a datagram begins with one (IBTA 8.3) ----
//
//   0                             4          6             7           8           24
//   | version 6, class, flow label | length   | next header | hop limit | source GID | dest GID |
//
// In network order. length counts what InfiniBand would carry behind it: BTH, DETH, immediate data,
// the payload padded to words, ICRC.
inline constexpr size_t kGrhBytes = 40;
std::array<std::byte, kGrhBytes> grh_of(const DatagramHead& head, const Address& from,
                                        const Address& to) noexcept;

}  // namespace aperture::wire
