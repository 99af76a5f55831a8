// Codecs of first contact: see hello.hpp for the layouts.
#include "wire/hello.hpp"

#include <algorithm>
#include <cstring>

namespace aperture::wire {

namespace {

constexpr uint8_t kKindHello = 1;
constexpr uint8_t kKindAnswer = 2;
constexpr uint8_t kPeerVersion = 1;

template <typename T>
T load(std::span<const std::byte> in, size_t at) noexcept {
  T v = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    v = static_cast<T>(v | static_cast<T>(std::to_integer<T>(in[at + i]) << (8 * i)));
  }
  return v;
}

template <typename T>
void store(std::span<std::byte> out, size_t at, T v) noexcept {
  for (size_t i = 0; i < sizeof(T); ++i) out[at + i] = static_cast<std::byte>(v >> (8 * i));
}

Id128 load_id(std::span<const std::byte> in, size_t at) noexcept {
  Id128 id;
  std::memcpy(id.data(), in.data() + at, id.size());
  return id;
}

void store_id(std::span<std::byte> out, size_t at, const Id128& id) noexcept {
  std::memcpy(out.data() + at, id.data(), id.size());
}

Proof load_proof(std::span<const std::byte> in, size_t at) noexcept {
  Proof proof;
  std::memcpy(proof.data(), in.data() + at, proof.size());
  return proof;
}

void store_proof(std::span<std::byte> out, size_t at, const Proof& proof) noexcept {
  std::memcpy(out.data() + at, proof.data(), proof.size());
}

Address load_address(std::span<const std::byte> in, size_t at) noexcept {
  Address a;
  a.ip = load_id(in, at);
  a.port = load<uint16_t>(in, at + 16);
  return a;
}

void store_address(std::span<std::byte> out, size_t at, const Address& a) noexcept {
  store_id(out, at, a.ip);
  store<uint16_t>(out, at + 16, a.port);
}

// Apart from their addresses: source, then destination.
void store_indices(std::span<std::byte> out, size_t at, const Address& source,
                   const Address& destination) noexcept {
  store<uint8_t>(out, at, source.index);
  store<uint8_t>(out, at + 1, destination.index);
}

void load_indices(std::span<const std::byte> in, size_t at, Address& source,
                  Address& destination) noexcept {
  source.index = load<uint8_t>(in, at);
  destination.index = load<uint8_t>(in, at + 1);
}

// The first 16 bytes of Hello and Answer.
void store_head(std::span<std::byte> out, uint8_t kind, uint8_t verdict) noexcept {
  store<uint64_t>(out, 0, kMagic);
  store<uint16_t>(out, 8, kVersion);
  store<uint8_t>(out, 10, kind);
  store<uint8_t>(out, 11, verdict);
  store<uint32_t>(out, 12, static_cast<uint32_t>(out.size()));
}

Status check_head(std::span<const std::byte> in, uint8_t kind, size_t size) noexcept {
  if (in.size() != size || load<uint64_t>(in, 0) != kMagic) return Errc::protocol;
  if (load<uint8_t>(in, 10) != kind) return Errc::protocol;
  if (load<uint16_t>(in, 8) != kVersion) return Errc::not_supported;
  if (load<uint32_t>(in, 12) != size) return Errc::protocol;
  return {};
}

struct PeerKind {
  size_t size;
  uint16_t bits;  // those with a meaning
};

bool kind_of(uint8_t type, PeerKind& kind) noexcept {
  switch (static_cast<PeerMessage>(type)) {
    case PeerMessage::join:
    case PeerMessage::joined: kind = {kJoinBytes, 3}; return true;
    case PeerMessage::open: kind = {kOpenBytes, 0}; return true;
    case PeerMessage::accept: kind = {kAcceptBytes, 0}; return true;
    case PeerMessage::reject: kind = {kRejectBytes, 0}; return true;
    case PeerMessage::lane_close: kind = {kLaneCloseBytes, 1}; return true;
    case PeerMessage::ring: kind = {kRingBytes, 0}; return true;
    case PeerMessage::connect: kind = {kConnectBytes, 0}; return true;
    case PeerMessage::connected: kind = {kConnectedBytes, 0}; return true;
    case PeerMessage::refuse: kind = {kRefuseBytes, 0}; return true;
    case PeerMessage::withdraw: kind = {kWithdrawBytes, 0}; return true;
  }
  return false;
}

PeerPacket packet(PeerMessage type, size_t size, uint16_t bits) noexcept {
  PeerPacket p;
  p.size = size;
  store<uint8_t>(p.bytes, 0, static_cast<uint8_t>(type));
  store<uint8_t>(p.bytes, 1, kPeerVersion);
  store<uint16_t>(p.bytes, 2, bits);
  store<uint32_t>(p.bytes, 4, static_cast<uint32_t>(size));
  return p;
}

bool is(std::span<const std::byte> bytes, PeerMessage type) noexcept {
  const auto got = peer_message(bytes);
  return got.ok() && got.value() == type;
}

void store_open(std::span<std::byte> out, const Open& open) noexcept {
  store_id(out, 8, open.nonce);
  store<uint64_t>(out, 24, open.ticket.unchecked());
  store_address(out, 32, open.source);
  store_address(out, 50, open.destination);
  store<uint32_t>(out, 68, open.lane.unchecked());
  store<uint32_t>(out, 72, open.segment.unchecked());
  store<uint32_t>(out, 76, open.domain.unchecked());
  store<uint64_t>(out, 80, open.engine.unchecked());
  store<uint64_t>(out, 88, open.key_file_bytes.unchecked());
  store<uint32_t>(out, 96, open.attempt.unchecked());
  store_proof(out, 104, open.proof);
}

Open load_open(std::span<const std::byte> in) noexcept {
  Open o;
  o.nonce = load_id(in, 8);
  o.ticket = Wild<uint64_t>(load<uint64_t>(in, 24));
  o.source = load_address(in, 32);
  o.destination = load_address(in, 50);
  o.lane = Wild<uint32_t>(load<uint32_t>(in, 68));
  o.segment = Wild<uint32_t>(load<uint32_t>(in, 72));
  o.domain = Wild<uint32_t>(load<uint32_t>(in, 76));
  o.engine = Wild<uint64_t>(load<uint64_t>(in, 80));
  o.key_file_bytes = Wild<uint64_t>(load<uint64_t>(in, 88));
  o.attempt = Wild<uint32_t>(load<uint32_t>(in, 96));
  o.proof = load_proof(in, 104);
  return o;
}

void store_accept(std::span<std::byte> out, const Accept& accept) noexcept {
  store<uint32_t>(out, 8, accept.attempt.unchecked());
  store<uint32_t>(out, 12, accept.domain.unchecked());
  store<uint64_t>(out, 16, accept.engine.unchecked());
  store<uint64_t>(out, 24, accept.key_file_bytes.unchecked());
  store_proof(out, 32, accept.proof);
}

Accept load_accept(std::span<const std::byte> in) noexcept {
  Accept a;
  a.attempt = Wild<uint32_t>(load<uint32_t>(in, 8));
  a.domain = Wild<uint32_t>(load<uint32_t>(in, 12));
  a.engine = Wild<uint64_t>(load<uint64_t>(in, 16));
  a.key_file_bytes = Wild<uint64_t>(load<uint64_t>(in, 24));
  a.proof = load_proof(in, 32);
  return a;
}

void store_private(std::span<std::byte> out, size_t size_at, size_t at,
                   const PrivateData& data) noexcept {
  store<uint32_t>(out, size_at, data.size);
  std::memcpy(out.data() + at, data.bytes.data(), std::min<size_t>(data.size, kPrivateBytes));
}

// False: more than there can be, or something behind its end.
bool load_private(std::span<const std::byte> in, size_t size_at, size_t at,
                  PrivateData& data) noexcept {
  if (!Wild<uint32_t>(load<uint32_t>(in, size_at)).bounded(kPrivateBytes, data.size)) return false;
  std::memcpy(data.bytes.data(), in.data() + at, kPrivateBytes);
  return std::all_of(data.bytes.begin() + data.size, data.bytes.end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

PeerPacket encode_join_as(PeerMessage type, const Join& join) noexcept {
  const unsigned bits = (join.heavy_barriers ? 1u : 0u) | (join.direct_denied ? 2u : 0u);
  PeerPacket p = packet(type, kJoinBytes, static_cast<uint16_t>(bits));
  store_id(p.bytes, 8, join.nonce);
  store_id(p.bytes, 24, join.incarnation);
  store<uint64_t>(p.bytes, 40, join.pid_ns);
  store<uint64_t>(p.bytes, 48, join.start_time.unchecked());
  return p;
}

Result<Join> decode_join_as(PeerMessage type, std::span<const std::byte> in) noexcept {
  if (!is(in, type)) return Errc::protocol;
  if (load<uint64_t>(in, 56) != 0) return Errc::protocol;
  const auto bits = load<uint16_t>(in, 2);
  Join j;
  j.nonce = load_id(in, 8);
  j.incarnation = load_id(in, 24);
  j.pid_ns = load<uint64_t>(in, 40);
  j.start_time = Wild<uint64_t>(load<uint64_t>(in, 48));
  j.heavy_barriers = (bits & 1) != 0;
  j.direct_denied = (bits & 2) != 0;
  return j;
}

}  // namespace

bool equal_in_constant_time(const Id128& a, const Id128& b) noexcept {
  volatile uint8_t difference = 0;  // volatile: no early exit may be put in
  for (size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) noexcept {
  std::array<std::byte, kHelloBytes> out{};
  store_head(out, kKindHello, 0);
  store_id(out, 16, hello.boot_id);
  store<uint64_t>(out, 32, hello.net_ns);
  store_id(out, 40, hello.incarnation);
  store_id(out, 56, hello.nonce);
  store_address(out, 72, hello.source);
  store_address(out, 90, hello.destination);
  store_indices(out, 108, hello.source, hello.destination);
  return out;
}

Result<Hello> decode_hello(std::span<const std::byte> in) noexcept {
  if (const Status s = check_head(in, kKindHello, kHelloBytes); !s) return s.error();
  if (load<uint8_t>(in, 11) != 0 || load<uint16_t>(in, 110) != 0) return Errc::protocol;
  Hello h;
  h.boot_id = load_id(in, 16);
  h.net_ns = load<uint64_t>(in, 32);
  h.incarnation = load_id(in, 40);
  h.nonce = load_id(in, 56);
  h.source = load_address(in, 72);
  h.destination = load_address(in, 90);
  load_indices(in, 108, h.source, h.destination);
  if (h.source.port == 0 || h.destination.port == 0) return Errc::protocol;
  return h;
}

bool may_become_hello(std::span<const std::byte> in) noexcept {
  std::array<std::byte, sizeof kMagic> magic{};
  store<uint64_t>(magic, 0, kMagic);
  return std::memcmp(in.data(), magic.data(), std::min(in.size(), magic.size())) == 0;
}

std::array<std::byte, kAnswerBytes> encode(const Answer& answer) noexcept {
  std::array<std::byte, kAnswerBytes> out{};
  store_head(out, kKindAnswer, static_cast<uint8_t>(answer.verdict));
  store_id(out, 16, answer.boot_id);
  store<uint64_t>(out, 32, answer.net_ns);
  store_id(out, 40, answer.incarnation);
  store_id(out, 56, answer.nonce);
  store_id(out, 72, answer.socket_name);
  store<uint64_t>(out, 88, answer.ticket);
  return out;
}

Result<Answer> decode_answer(std::span<const std::byte> in) noexcept {
  if (const Status s = check_head(in, kKindAnswer, kAnswerBytes); !s) return s.error();
  const auto verdict = load<uint8_t>(in, 11);
  if (verdict < static_cast<uint8_t>(Verdict::offered) ||
      verdict > static_cast<uint8_t>(Verdict::not_yet)) {
    return Errc::protocol;
  }
  Answer a;
  a.verdict = static_cast<Verdict>(verdict);
  a.boot_id = load_id(in, 16);
  a.net_ns = load<uint64_t>(in, 32);
  a.incarnation = load_id(in, 40);
  a.nonce = load_id(in, 56);
  a.socket_name = load_id(in, 72);
  a.ticket = load<uint64_t>(in, 88);
  const bool empty = a.nonce == Id128{} && a.socket_name == Id128{} && a.ticket == 0;
  if (a.verdict != Verdict::offered && !empty) return Errc::protocol;
  return a;
}

PeerPacket encode_join(const Join& join) noexcept {
  return encode_join_as(PeerMessage::join, join);
}

PeerPacket encode_joined(const Join& joined) noexcept {
  return encode_join_as(PeerMessage::joined, joined);
}

PeerPacket encode(const Open& open) noexcept {
  PeerPacket p = packet(PeerMessage::open, kOpenBytes, 0);
  store_open(p.bytes, open);
  store_indices(p.bytes, 100, open.source, open.destination);
  return p;
}

PeerPacket encode(const Accept& accept) noexcept {
  PeerPacket p = packet(PeerMessage::accept, kAcceptBytes, 0);
  store_accept(p.bytes, accept);
  return p;
}

PeerPacket encode(const Reject& reject) noexcept {
  PeerPacket p = packet(PeerMessage::reject, kRejectBytes, 0);
  store<uint32_t>(p.bytes, 8, reject.attempt.unchecked());
  store<uint32_t>(p.bytes, 12, static_cast<uint32_t>(reject.why));
  return p;
}

PeerPacket encode(const LaneClose& close) noexcept {
  PeerPacket p = packet(PeerMessage::lane_close, kLaneCloseBytes, close.of_sender ? 1 : 0);
  store<uint32_t>(p.bytes, 8, close.segment.unchecked());
  store<uint32_t>(p.bytes, 12, close.lane.unchecked());
  return p;
}

PeerPacket encode_ring() noexcept {
  return packet(PeerMessage::ring, kRingBytes, 0);
}

PeerPacket encode(const Connect& connect) noexcept {
  PeerPacket p = packet(PeerMessage::connect, kConnectBytes, 0);
  store_open(p.bytes, connect.open);
  store_private(p.bytes, 100, kOpenBytes, connect.data);
  return p;
}

PeerPacket encode(const Connected& connected) noexcept {
  PeerPacket p = packet(PeerMessage::connected, kConnectedBytes, 0);
  store_accept(p.bytes, connected.accept);
  store_private(p.bytes, kAcceptBytes, kAcceptBytes + 8, connected.data);
  return p;
}

PeerPacket encode(const Refuse& refuse) noexcept {
  PeerPacket p = packet(PeerMessage::refuse, kRefuseBytes, 0);
  store<uint32_t>(p.bytes, 8, refuse.attempt.unchecked());
  store_private(p.bytes, 12, 16, refuse.data);
  return p;
}

PeerPacket encode(const Withdraw& withdraw) noexcept {
  PeerPacket p = packet(PeerMessage::withdraw, kWithdrawBytes, 0);
  store<uint32_t>(p.bytes, 8, withdraw.attempt.unchecked());
  return p;
}

Result<PeerMessage> peer_message(std::span<const std::byte> in) noexcept {
  if (in.size() < 8) return Errc::protocol;
  PeerKind kind{};
  const auto type = load<uint8_t>(in, 0);
  if (!kind_of(type, kind)) return Errc::protocol;
  if (load<uint8_t>(in, 1) != kPeerVersion) return Errc::protocol;
  if ((load<uint16_t>(in, 2) & ~kind.bits) != 0) return Errc::protocol;
  if (in.size() != kind.size || load<uint32_t>(in, 4) != kind.size) return Errc::protocol;
  return static_cast<PeerMessage>(type);
}

Result<Join> decode_join(std::span<const std::byte> in) noexcept {
  return decode_join_as(PeerMessage::join, in);
}

Result<Join> decode_joined(std::span<const std::byte> in) noexcept {
  return decode_join_as(PeerMessage::joined, in);
}

Result<Open> decode_open(std::span<const std::byte> in) noexcept {
  if (!is(in, PeerMessage::open) || load<uint16_t>(in, 102) != 0) return Errc::protocol;
  Open o = load_open(in);
  load_indices(in, 100, o.source, o.destination);
  return o;
}

Result<Accept> decode_accept(std::span<const std::byte> in) noexcept {
  if (!is(in, PeerMessage::accept)) return Errc::protocol;
  return load_accept(in);
}

Result<Reject> decode_reject(std::span<const std::byte> in) noexcept {
  if (!is(in, PeerMessage::reject)) return Errc::protocol;
  const auto why = load<uint32_t>(in, 12);
  if (why < static_cast<uint32_t>(Why::no_endpoint) ||
      why > static_cast<uint32_t>(Why::wrong_key)) {
    return Errc::protocol;
  }
  Reject r;
  r.attempt = Wild<uint32_t>(load<uint32_t>(in, 8));
  r.why = static_cast<Why>(why);
  return r;
}

Result<LaneClose> decode_lane_close(std::span<const std::byte> in) noexcept {
  if (!is(in, PeerMessage::lane_close)) return Errc::protocol;
  LaneClose c;
  c.segment = Wild<uint32_t>(load<uint32_t>(in, 8));
  c.lane = Wild<uint32_t>(load<uint32_t>(in, 12));
  c.of_sender = (load<uint16_t>(in, 2) & 1) != 0;
  return c;
}

Result<Connect> decode_connect(std::span<const std::byte> in) noexcept {
  Connect c;
  if (!is(in, PeerMessage::connect) || !load_private(in, 100, kOpenBytes, c.data)) {
    return Errc::protocol;
  }
  c.open = load_open(in);
  return c;
}

Result<Connected> decode_connected(std::span<const std::byte> in) noexcept {
  Connected c;
  if (!is(in, PeerMessage::connected) || load<uint32_t>(in, kAcceptBytes + 4) != 0 ||
      !load_private(in, kAcceptBytes, kAcceptBytes + 8, c.data)) {
    return Errc::protocol;
  }
  c.accept = load_accept(in);
  return c;
}

Result<Refuse> decode_refuse(std::span<const std::byte> in) noexcept {
  Refuse r;
  if (!is(in, PeerMessage::refuse) || !load_private(in, 12, 16, r.data)) return Errc::protocol;
  r.attempt = Wild<uint32_t>(load<uint32_t>(in, 8));
  return r;
}

Result<Withdraw> decode_withdraw(std::span<const std::byte> in) noexcept {
  if (!is(in, PeerMessage::withdraw) || load<uint32_t>(in, 12) != 0) return Errc::protocol;
  Withdraw w;
  w.attempt = Wild<uint32_t>(load<uint32_t>(in, 8));
  return w;
}

std::array<char, kAbstractNameBytes> abstract_name(const Id128& id) noexcept {
  constexpr char kDigits[] = "0123456789abcdef";
  std::array<char, kAbstractNameBytes> name{};
  std::memcpy(name.data(), "aperture.", 9);
  for (size_t i = 0; i < id.size(); ++i) {
    name[9 + 2 * i] = kDigits[id[i] >> 4];
    name[9 + 2 * i + 1] = kDigits[id[i] & 15];
  }
  return name;
}

}  // namespace aperture::wire
