// What connection managers say to each other over a connection of their ports: REQ, REP, RTU, REJ,
// MRA, DREQ and DREP, or SIDR REQ and SIDR REP.
//
// IBTA volume 1, chapter 12 names the messages and their fields; the layout is our own. Every
// message of a kind has the same length, all integers are little-endian, private data is followed
// by zeros up to what that message carries (which is how a kernel hands it on, too). Numbers are
// Wild, for a peer gave them; whoever sends a message wraps its own. No state, no I/O, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "base/wild.hpp"

namespace aperture::wire {

//   every one  0       8         10     11  12       16
//              | magic | version | kind | 0 | length | ...
//
//   Req        16       34            52    56    60          64         68
//              | source | destination | QPN | PSN | ECE vendor | ECE attr |
//              68                    69                70             71      72    73    74
//              | responder resources | initiator depth | flow control | retry | RNR | SRQ |
//              74  76                132
//              | 0 | private data, 56 |
//
//   Rep        16    20    24           28         32
//              | QPN | PSN | ECE vendor | ECE attr |
//              32                    33                34             35    36    37  40
//              | responder resources | initiator depth | flow control | RNR | SRQ | 0 |
//              40                  236
//              | private data, 196 |
//
//   Rej        16           20                  168
//              | reason u32 | private data, 148 |
//
//   Rtu, Mra, Dreq, Drep: nothing more than the first 16
//
//   SidrReq    16           24                  204
//              | request id | private data, 180 |
//
//   SidrRep    16           24    28     32           36         40           44
//              | request id | QPN | Q_Key | ECE vendor | ECE attr | status u32 |
//              44                  180
//              | private data, 136 |
//
//   an address is 16 bytes of IP in network order (IPv4 mapped) and its port.
inline constexpr uint64_t kCmMagic = 0x004d'4354'5245'5041;  // "APERTCM\0", little-endian
inline constexpr uint16_t kCmVersion = 1;

inline constexpr size_t kCmHeadBytes = 16;
inline constexpr size_t kReqPrivateBytes = 56;
inline constexpr size_t kRepPrivateBytes = 196;
inline constexpr size_t kRejPrivateBytes = 148;
inline constexpr size_t kSidrReqPrivateBytes = 180;
inline constexpr size_t kSidrRepPrivateBytes = 136;
inline constexpr size_t kReqBytes = 76 + kReqPrivateBytes;
inline constexpr size_t kRepBytes = 40 + kRepPrivateBytes;
inline constexpr size_t kRejBytes = 20 + kRejPrivateBytes;
inline constexpr size_t kSidrReqBytes = 24 + kSidrReqPrivateBytes;
inline constexpr size_t kSidrRepBytes = 44 + kSidrRepPrivateBytes;
inline constexpr size_t kMaxCmBytes = kRepBytes;

inline constexpr uint32_t kMax24Bits = 0xff'ffff;  // a QPN, a PSN, an ECE vendor
inline constexpr uint32_t kMax16Bits = 0xffff;     // a reason of a REJ
inline constexpr uint32_t kMax8Bits = 0xff;        // a status of a SIDR REP
inline constexpr uint8_t kMaxRetries = 7;          // of 3 bits

enum class CmKind : uint8_t {
  req = 1,
  mra = 2,  // the REQ has come; the application takes its time
  rep = 3,
  rtu = 4,
  rej = 5,
  dreq = 6,
  drep = 7,
  sidr_req = 8,
  sidr_rep = 9,
};

// Enhanced connection establishment: what two devices of a vendor agree upon.
struct Ece {
  Wild<uint32_t> vendor;  // 24 bits
  Wild<uint32_t> attributes;
};

struct Req {
  Address source;
  Address destination;
  Wild<uint32_t> qpn;
  Wild<uint32_t> psn;  // with which the other side begins to send
  Ece ece;
  Wild<uint8_t> responder_resources;
  Wild<uint8_t> initiator_depth;
  bool flow_control = false;
  Wild<uint8_t> retry_count;
  Wild<uint8_t> rnr_retry_count;
  bool srq = false;
  std::array<uint8_t, kReqPrivateBytes> data{};
};

struct Rep {
  Wild<uint32_t> qpn;
  Wild<uint32_t> psn;
  Ece ece;
  Wild<uint8_t> responder_resources;
  Wild<uint8_t> initiator_depth;
  bool flow_control = false;
  Wild<uint8_t> rnr_retry_count;
  bool srq = false;
  std::array<uint8_t, kRepPrivateBytes> data{};
};

struct Rej {
  Wild<uint32_t> reason;  // 16 bits; IBTA 12.6.7.2
  std::array<uint8_t, kRejPrivateBytes> data{};
};

struct SidrReq {
  Wild<uint64_t> request_id;
  std::array<uint8_t, kSidrReqPrivateBytes> data{};
};

struct SidrRep {
  Wild<uint64_t> request_id;
  Wild<uint32_t> qpn;
  Wild<uint32_t> qkey;
  Ece ece;
  Wild<uint32_t> status;  // 8 bits; IBTA 12.11.2.2
  std::array<uint8_t, kSidrRepPrivateBytes> data{};
};

// A message, ready to be sent.
struct CmPacket {
  std::array<std::byte, kMaxCmBytes> bytes{};
  size_t size = 0;
  std::span<const std::byte> view() const noexcept { return {bytes.data(), size}; }
};

CmPacket encode(const Req& req) noexcept;
CmPacket encode(const Rep& rep) noexcept;
CmPacket encode(const Rej& rej) noexcept;
CmPacket encode(const SidrReq& req) noexcept;
CmPacket encode(const SidrRep& rep) noexcept;
// Of rtu, mra, dreq and drep.
CmPacket encode_bare(CmKind kind) noexcept;

// How long a message of that kind is, head and all.
size_t cm_bytes(CmKind kind) noexcept;
// Which message begins with those 16 bytes. Errors: protocol; not_supported if all that is wrong is
// the version.
Result<CmKind> decode_cm_head(std::span<const std::byte> head) noexcept;
// The whole message and nothing but it. Errors: protocol, not_supported.
Result<Req> decode_req(std::span<const std::byte> bytes) noexcept;
Result<Rep> decode_rep(std::span<const std::byte> bytes) noexcept;
Result<Rej> decode_rej(std::span<const std::byte> bytes) noexcept;
Result<SidrReq> decode_sidr_req(std::span<const std::byte> bytes) noexcept;
Result<SidrRep> decode_sidr_rep(std::span<const std::byte> bytes) noexcept;

}  // namespace aperture::wire
