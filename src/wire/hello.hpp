// What travels at first contact: the hellos over TCP, and the messages on the unix socket of a
// process pair. docs/wire.md has the sequence.
//
// All integers are little-endian, all sizes fixed, all reserved bits zero; a message that is
// longer, shorter or otherwise not exactly as drawn here does not decode. No I/O and no state: any
// thread. Numbers that came from a peer are Wild; ids can only be compared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "base/wild.hpp"

namespace aperture::wire {

using Id128 = std::array<uint8_t, 16>;

// That the sender holds the authorization key of its endpoint, see proof.hpp; zeros if it has none.
using Proof = std::array<std::byte, 32>;

// Which of several authorization keys is meant, to whoever holds it, or which directory, to whoever
// has the same one: a keyed hash of the nonce. Zeros: none. It shows nothing to others and proves
// nothing to anybody.
using KeyTag = std::array<std::byte, 8>;

// Takes the same time wherever they differ.
bool equal_in_constant_time(const Id128& a, const Id128& b) noexcept;

inline constexpr uint64_t kMagic = 0x4552'5554'5245'5041;  // "APERTURE", little-endian
inline constexpr uint16_t kVersion = 10;

// --- over TCP ------------------------------------------------------------------------------------
//
//   Hello    0        8         10     11     12       16
//            | magic  | version | kind | 0    | length | boot id, 16 | net namespace u64 |
//            40                56          72           90                108                112
//            | incarnation, 16 | nonce, 16 | source, 18 | destination, 18 | indices, 4       |
//            112          120
//            | key tag, 8 | meeting tag, 8 |
//
//   Answer   0        8         10     11        12       16
//            | magic  | version | kind | verdict | length | boot id, 16 | net namespace u64 |
//            40                56          72                88         96
//            | incarnation, 16 | nonce, 16 | socket name, 16 | ticket   |
//
//   an address is 16 bytes of IP in network order (IPv4 mapped) and its port; its index lies
//   apart: the low bytes of that of the source and that of the destination, then the high bytes.
inline constexpr size_t kHelloBytes = 128;
inline constexpr size_t kAnswerBytes = 96;

struct Hello {
  Id128 boot_id{};       // zeros: it wants to stay on TCP
  uint64_t net_ns = 0;   // inode of the sender's network namespace
  Id128 incarnation{};   // of the sender's process
  Id128 nonce{};         // whoever answers on the unix socket must present it
  Address source;        // endpoint that wants a lane
  Address destination;   // endpoint that it wants a lane to
  KeyTag key_tag{};      // of the authorization key of source
  KeyTag meeting_tag{};  // of the directory in which the sender may meet others of its host
};

enum class Verdict : uint8_t {
  offered = 1,            // come to the socket named, with nonce and ticket
  crossing = 2,           // we are connecting to you, and our connect wins
  stays = 3,              // no memory is shared: Open or Connect come over this very connection
  wrong_destination = 4,  // no such endpoint here
  wrong_version = 5,
  busy = 6,     // out of descriptors or memory: try again
  not_yet = 7,  // a port that endpoints share, and none has that index so far: try again
  meets = 8,    // as offered, but the socket is in the directory that both have
};

struct Answer {
  Verdict verdict = Verdict::busy;
  Id128 boot_id{};
  uint64_t net_ns = 0;
  Id128 incarnation{};
  Id128 nonce{};        // to be presented in Join and in Open; zero unless offered, or it stays
  Id128 socket_name{};  // see socket_name(); zero unless offered
  uint64_t ticket = 0;  // which handshake the nonce belongs to; a locator, not a secret; likewise
};

std::array<std::byte, kHelloBytes> encode(const Hello& hello) noexcept;
std::array<std::byte, kAnswerBytes> encode(const Answer& answer) noexcept;
// Errors: protocol; not_supported if all that is wrong is the version.
Result<Hello> decode_hello(std::span<const std::byte> bytes) noexcept;
// False as soon as the first bytes that came show that it will not be one.
bool may_become_hello(std::span<const std::byte> bytes) noexcept;
// They show already that it will be one of another version, whose length may be another, too.
bool is_of_another_version(std::span<const std::byte> bytes) noexcept;
Result<Answer> decode_answer(std::span<const std::byte> bytes) noexcept;

// --- on the unix socket (SOCK_SEQPACKET: one message a packet), or over TCP where it stays -------
//
//   every one   0      1         2      4        8
//               | type | version | bits | length | ...
//
//   Join        8           24                40           48          56            64
//   Joined      | nonce, 16 | incarnation, 16 | pid ns u64 | start u64 | time ns u64 |
//
//   Open        8           24       32           50                68    72        76
//               | nonce, 16 | ticket | source, 18 | destination, 18 | lane | segment | domain |
//               80             88               96        100                 104
//               | engine u64   | key file bytes | attempt | indices, 4        | proof, 32 |
//               descriptors: segment, doorbell, and the key file if its size is not 0;
//               between two users the segment only
//
//   Accept      8         12       16           24               32          64
//               | attempt | domain | engine u64 | key file bytes | proof, 32 |
//               descriptors: doorbell, and the key file if its size is not 0;
//               between two users none
//
//   Reject      8         12            16
//               | attempt | why u32     |
//
//   LaneClose   8         12     16
//               | segment | lane |
//
//   Ring        8: nothing more
//
//   Between connected endpoints (fi_cm) Connect stands for Open, and waits for the application;
//   neither has an index:
//
//   Connect     8 ... 136: as Open    100    104         136
//                                     | size | proof, 32 | private data, 256, zeros behind |
//   Connected   8 ... 64: as Accept   64     68 72
//                                     | size | 0 | private data, 256, zeros behind |
//   Refuse      8         12     16
//               | attempt | size | private data, 256, zeros behind |
//   Withdraw    8         12 16
//               | attempt | 0 |
//
//   Each Connect is answered once: Connected, Refuse (the application's no) or Reject. Withdraw
//   says that nobody waits any more; the answer comes all the same, and ends the lane.
//
//   Over TCP there are Open, Accept and Reject alone, or Connect, Connected, Refuse, Reject and
//   Withdraw, one lane for a connection: what names memory or descriptors is zero. What comes
//   behind Accept and Connected is frames (frame.hpp).
//
//   A doorbell is a pipe, which the receiver opens anew (base/doorbell.hpp). Between two users none
//   travels, since a stranger may not open it: Ring is sent instead, and means all lanes of the two
//   processes.
inline constexpr size_t kJoinBytes = 64;
inline constexpr size_t kOpenBytes = 136;
inline constexpr size_t kAcceptBytes = 64;
inline constexpr size_t kRejectBytes = 16;
inline constexpr size_t kLaneCloseBytes = 16;
inline constexpr size_t kRingBytes = 8;
inline constexpr size_t kPrivateBytes = 256;  // of the application, at most
inline constexpr size_t kConnectBytes = kOpenBytes + kPrivateBytes;
inline constexpr size_t kConnectedBytes = kAcceptBytes + 8 + kPrivateBytes;
inline constexpr size_t kRefuseBytes = 16 + kPrivateBytes;
inline constexpr size_t kWithdrawBytes = 16;
inline constexpr size_t kMaxPeerMessageBytes = kConnectBytes;
inline constexpr size_t kOpenProofAt = 104;   // in Open and Connect
inline constexpr size_t kAcceptProofAt = 32;  // in Accept and Connected
inline constexpr size_t kMaxDescriptors = 3;

enum class PeerMessage : uint8_t {
  join = 1,
  joined = 2,
  open = 3,
  accept = 4,
  reject = 5,
  lane_close = 6,
  ring = 7,
  connect = 8,
  connected = 9,
  refuse = 10,
  withdraw = 11,
};

// The first message of each side. Join presents the acceptor's nonce, Joined the connector's.
struct Join {
  Id128 nonce{};
  Id128 incarnation{};
  uint64_t pid_ns = 0;          // inode of the sender's pid namespace
  uint64_t time_ns = 0;         // of its time namespace: elsewhere start times differ
  Wild<uint64_t> start_time;    // of the sender's process: field 22 of its stat
  bool heavy_barriers = false;  // bit 0: registered for membarrier GLOBAL_EXPEDITED
  bool direct_denied = false;   // bit 1: wants no one-sided copies, either way
};

// Of a process that has no ticket: one of the same user, which has had a lane to that port by one.
inline constexpr uint64_t kNoTicket = 0;

struct Open {
  Id128 nonce{};  // of the answer that gave the ticket; zeros without one
  Wild<uint64_t> ticket;
  Address source;
  Address destination;
  Wild<uint32_t> lane;            // index in the segment
  Wild<uint32_t> segment;         // the opener's number for it
  Wild<uint32_t> domain;          // protection domain that the other side's requests meet
  Wild<uint64_t> engine;          // the opener's number for its doorbell
  Wild<uint64_t> key_file_bytes;  // 0: no key file comes with it
  Wild<uint32_t> attempt;         // echoed in the answer
  bool checksums = false;         // bit 0: wants them in frames, over TCP
  Proof proof{};                  // of the connector
};

struct Accept {
  Wild<uint32_t> attempt;
  Wild<uint32_t> domain;
  Wild<uint64_t> engine;
  Wild<uint64_t> key_file_bytes;
  bool checksums = false;  // bit 0: one of the two wants them, and so frames have them
  Proof proof{};           // of the acceptor
};

enum class Why : uint32_t {
  no_endpoint = 1,  // it has been closed
  bad_ticket = 2,   // unknown, used, too old, or the nonce is wrong; or none, where one is needed
  crossing = 3,     // our own connect has gone further
  no_resources = 4,
  bad_lane = 5,    // the segment or the lane cannot be used
  wrong_kind = 6,  // Open at a passive endpoint, or Connect at one that is not
  wrong_key = 7,   // the authorization keys of the two endpoints differ, or one has none
};

struct Reject {
  Wild<uint32_t> attempt;
  Why why = Why::no_resources;
};

struct LaneClose {
  Wild<uint32_t> segment;  // number of the segment, given by its creator
  Wild<uint32_t> lane;
  bool of_sender = false;  // bit 0: the sender created that segment
};

// What the application says with a connection request, or with its answer.
struct PrivateData {
  uint32_t size = 0;  // at most kPrivateBytes
  std::array<std::byte, kPrivateBytes> bytes{};

  std::span<const std::byte> view() const noexcept { return {bytes.data(), size}; }
};

struct Connect {
  Open open;
  PrivateData data;
};

struct Connected {
  Accept accept;
  PrivateData data;
};

struct Refuse {
  Wild<uint32_t> attempt;
  PrivateData data;
};

struct Withdraw {
  Wild<uint32_t> attempt;
};

// A message on the unix socket, ready to be sent.
struct PeerPacket {
  std::array<std::byte, kMaxPeerMessageBytes> bytes{};
  size_t size = 0;
  std::span<const std::byte> view() const noexcept { return {bytes.data(), size}; }
};

PeerPacket encode_join(const Join& join) noexcept;
PeerPacket encode_joined(const Join& joined) noexcept;
PeerPacket encode(const Open& open) noexcept;
PeerPacket encode(const Accept& accept) noexcept;
PeerPacket encode(const Reject& reject) noexcept;
PeerPacket encode(const LaneClose& close) noexcept;
PeerPacket encode_ring() noexcept;
PeerPacket encode(const Connect& connect) noexcept;
PeerPacket encode(const Connected& connected) noexcept;
PeerPacket encode(const Refuse& refuse) noexcept;
PeerPacket encode(const Withdraw& withdraw) noexcept;

// Which message it is; the length is that of its kind, version and unused bits are right. Errors:
// protocol.
Result<PeerMessage> peer_message(std::span<const std::byte> bytes) noexcept;
// How long the message is that begins with these 8 bytes. Errors: protocol.
Result<size_t> peer_message_size(std::span<const std::byte> head) noexcept;
Result<Join> decode_join(std::span<const std::byte> bytes) noexcept;
Result<Join> decode_joined(std::span<const std::byte> bytes) noexcept;
Result<Open> decode_open(std::span<const std::byte> bytes) noexcept;
Result<Accept> decode_accept(std::span<const std::byte> bytes) noexcept;
Result<Reject> decode_reject(std::span<const std::byte> bytes) noexcept;
Result<LaneClose> decode_lane_close(std::span<const std::byte> bytes) noexcept;
Result<Connect> decode_connect(std::span<const std::byte> bytes) noexcept;
Result<Connected> decode_connected(std::span<const std::byte> bytes) noexcept;
Result<Refuse> decode_refuse(std::span<const std::byte> bytes) noexcept;
Result<Withdraw> decode_withdraw(std::span<const std::byte> bytes) noexcept;

// The name of 128 random bits, of an abstract socket without the leading zero byte, or of one in a
// directory: "aperture." and 32 hexadecimal digits, not terminated. No other name can be told.
inline constexpr size_t kSocketNameBytes = 9 + 32;
std::array<char, kSocketNameBytes> socket_name(const Id128& id) noexcept;
// Whether it is one of those.
bool is_socket_name(std::string_view name) noexcept;

}  // namespace aperture::wire
