// Codecs of first contact: see hello.hpp for the layouts.
#include "wire/hello.hpp"

#include <cassert>

#include "wire/codec.hpp"

namespace aperture::wire {

// The fields of each message. Found by their arguments, so not in a nameless namespace.

// Apart from the addresses themselves: that of the source, then that of the destination.
static void index_fields(auto& io, size_t at, auto& message) noexcept {
  io.halves(at, at + 2, message.source.index, Address::kMostIndex);
  io.halves(at + 1, at + 3, message.destination.index, Address::kMostIndex);
}

static void fields(auto& io, Like<Hello> auto& hello) noexcept {
  io.zeros(11, 12);
  io.bytes(16, hello.boot_id);
  io.number(32, hello.net_ns);
  io.bytes(40, hello.incarnation);
  io.bytes(56, hello.nonce);
  io.address(72, hello.source);
  io.address(90, hello.destination);
  index_fields(io, 108, hello);
  io.bytes(112, hello.key_tag);
  io.bytes(120, hello.meeting_tag);
}

static void fields(auto& io, Like<Answer> auto& answer) noexcept {
  io.one_of(11, answer.verdict, Verdict::offered, Verdict::meets);
  io.bytes(16, answer.boot_id);
  io.number(32, answer.net_ns);
  io.bytes(40, answer.incarnation);
  io.bytes(56, answer.nonce);
  io.bytes(72, answer.socket_name);
  io.number(88, answer.ticket);
}

static void fields(auto& io, Like<Join> auto& join) noexcept {
  io.bit(2, 0, join.heavy_barriers);
  io.bit(2, 1, join.direct_denied);
  io.bytes(8, join.nonce);
  io.bytes(24, join.incarnation);
  io.number(40, join.pid_ns);
  io.number(48, join.start_time);
  io.number(56, join.time_ns);
}

// What Open and Connect share.
static void open_fields(auto& io, Like<Open> auto& open) noexcept {
  io.bit(2, 0, open.checksums);
  io.bytes(8, open.nonce);
  io.number(24, open.ticket);
  io.address(32, open.source);
  io.address(50, open.destination);
  io.number(68, open.lane);
  io.number(72, open.segment);
  io.number(76, open.domain);
  io.number(80, open.engine);
  io.number(88, open.key_file_bytes);
  io.number(96, open.attempt);
  io.bytes(kOpenProofAt, open.proof);
}

static void fields(auto& io, Like<Open> auto& open) noexcept {
  open_fields(io, open);
  index_fields(io, 100, open);
}

static void fields(auto& io, Like<Accept> auto& accept) noexcept {
  io.bit(2, 0, accept.checksums);
  io.number(8, accept.attempt);
  io.number(12, accept.domain);
  io.number(16, accept.engine);
  io.number(24, accept.key_file_bytes);
  io.bytes(kAcceptProofAt, accept.proof);
}

static void fields(auto& io, Like<Reject> auto& reject) noexcept {
  io.number(8, reject.attempt);
  io.one_of(12, reject.why, Why::no_endpoint, Why::wrong_key);
}

static void fields(auto& io, Like<LaneClose> auto& close) noexcept {
  io.bit(2, 0, close.of_sender);
  io.number(8, close.segment);
  io.number(12, close.lane);
}

static void private_fields(Writer& io, size_t size_at, size_t at,
                           const PrivateData& data) noexcept {
  PrivateData sent = data;
  const size_t size = std::min<size_t>(data.size, kPrivateBytes);
  std::fill(sent.bytes.begin() + size, sent.bytes.end(), std::byte{0});
  io.number(size_at, sent.size);
  io.bytes(at, sent.bytes);
}

// There cannot be more than kPrivateBytes, and nothing behind their end.
static void private_fields(Reader& io, size_t size_at, size_t at, PrivateData& data) noexcept {
  io.number(size_at, data.size, static_cast<uint32_t>(kPrivateBytes));
  io.bytes(at, data.bytes);
  if (io.sound()) io.zeros(at + data.size, at + kPrivateBytes);
}

static void fields(auto& io, Like<Connect> auto& connect) noexcept {
  open_fields(io, connect.open);
  private_fields(io, 100, kOpenBytes, connect.data);
}

static void fields(auto& io, Like<Connected> auto& connected) noexcept {
  fields(io, connected.accept);
  io.zeros(kAcceptBytes + 4, kAcceptBytes + 8);
  private_fields(io, kAcceptBytes, kAcceptBytes + 8, connected.data);
}

static void fields(auto& io, Like<Refuse> auto& refuse) noexcept {
  io.number(8, refuse.attempt);
  private_fields(io, 12, 16, refuse.data);
}

static void fields(auto& io, Like<Withdraw> auto& withdraw) noexcept {
  io.number(8, withdraw.attempt);
  io.zeros(12, 16);
}

namespace {

constexpr uint8_t kKindHello = 1;
constexpr uint8_t kKindAnswer = 2;
constexpr uint8_t kPeerVersion = 1;

constexpr std::string_view kNameHead = "aperture.";
constexpr std::string_view kDigits = "0123456789abcdef";
static_assert(kSocketNameBytes == kNameHead.size() + 2 * sizeof(Id128));

bool names_socket(Verdict verdict) noexcept {
  return verdict == Verdict::offered || verdict == Verdict::meets;
}

// The first 16 bytes of Hello and Answer, but for the verdict.
void store_head(std::span<std::byte> out, uint8_t kind) noexcept {
  store<uint64_t>(out, 0, kMagic);
  store<uint16_t>(out, 8, kVersion);
  store<uint8_t>(out, 10, kind);
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
    case PeerMessage::open: kind = {kOpenBytes, 1}; return true;
    case PeerMessage::accept: kind = {kAcceptBytes, 1}; return true;
    case PeerMessage::reject: kind = {kRejectBytes, 0}; return true;
    case PeerMessage::lane_close: kind = {kLaneCloseBytes, 1}; return true;
    case PeerMessage::ring: kind = {kRingBytes, 0}; return true;
    case PeerMessage::connect: kind = {kConnectBytes, 1}; return true;
    case PeerMessage::connected: kind = {kConnectedBytes, 1}; return true;
    case PeerMessage::refuse: kind = {kRefuseBytes, 0}; return true;
    case PeerMessage::withdraw: kind = {kWithdrawBytes, 0}; return true;
  }
  return false;
}

PeerPacket packet(PeerMessage type) noexcept {
  PeerKind kind{};
  [[maybe_unused]] const bool known = kind_of(static_cast<uint8_t>(type), kind);
  assert(known);
  PeerPacket p;
  p.size = kind.size;
  store<uint8_t>(p.bytes, 0, static_cast<uint8_t>(type));
  store<uint8_t>(p.bytes, 1, kPeerVersion);
  store<uint32_t>(p.bytes, 4, static_cast<uint32_t>(p.size));
  return p;
}

template <typename Message>
PeerPacket encode_as(PeerMessage type, const Message& message) noexcept {
  PeerPacket p = packet(type);
  write(message, p.bytes);
  return p;
}

template <typename Message>
Result<Message> decode_as(PeerMessage type, std::span<const std::byte> in) noexcept {
  const auto got = peer_message(in);
  if (!got.ok() || got.value() != type) return Errc::protocol;
  return read<Message>(in);
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
  store_head(out, kKindHello);
  write(hello, out);
  return out;
}

Result<Hello> decode_hello(std::span<const std::byte> in) noexcept {
  if (const Status s = check_head(in, kKindHello, kHelloBytes); !s) return s.error();
  auto hello = read<Hello>(in);
  if (hello.ok() && (hello->source.port == 0 || hello->destination.port == 0))
    return Errc::protocol;
  return hello;
}

bool may_become_hello(std::span<const std::byte> in) noexcept {
  std::array<std::byte, sizeof kMagic> magic{};
  store<uint64_t>(magic, 0, kMagic);
  return std::memcmp(in.data(), magic.data(), std::min(in.size(), magic.size())) == 0;
}

bool is_of_another_version(std::span<const std::byte> in) noexcept {
  return in.size() >= 11 && may_become_hello(in) && load<uint8_t>(in, 10) == kKindHello &&
         load<uint16_t>(in, 8) != kVersion;
}

std::array<std::byte, kAnswerBytes> encode(const Answer& answer) noexcept {
  std::array<std::byte, kAnswerBytes> out{};
  store_head(out, kKindAnswer);
  write(answer, out);
  return out;
}

Result<Answer> decode_answer(std::span<const std::byte> in) noexcept {
  if (const Status s = check_head(in, kKindAnswer, kAnswerBytes); !s) return s.error();
  auto answer = read<Answer>(in);
  if (!answer.ok() || names_socket(answer->verdict)) return answer;
  const bool has_ticket = answer->nonce != Id128{} || answer->ticket != 0;
  if (answer->socket_name != Id128{}) return Errc::protocol;
  if (has_ticket && answer->verdict != Verdict::stays) return Errc::protocol;
  return answer;
}

PeerPacket encode_join(const Join& join) noexcept {
  return encode_as(PeerMessage::join, join);
}
PeerPacket encode_joined(const Join& joined) noexcept {
  return encode_as(PeerMessage::joined, joined);
}
PeerPacket encode(const Open& open) noexcept {
  return encode_as(PeerMessage::open, open);
}
PeerPacket encode(const Accept& accept) noexcept {
  return encode_as(PeerMessage::accept, accept);
}
PeerPacket encode(const Reject& reject) noexcept {
  return encode_as(PeerMessage::reject, reject);
}
PeerPacket encode(const LaneClose& close) noexcept {
  return encode_as(PeerMessage::lane_close, close);
}
PeerPacket encode(const Connect& connect) noexcept {
  return encode_as(PeerMessage::connect, connect);
}
PeerPacket encode(const Connected& connected) noexcept {
  return encode_as(PeerMessage::connected, connected);
}
PeerPacket encode(const Refuse& refuse) noexcept {
  return encode_as(PeerMessage::refuse, refuse);
}
PeerPacket encode(const Withdraw& withdraw) noexcept {
  return encode_as(PeerMessage::withdraw, withdraw);
}
PeerPacket encode_ring() noexcept {
  return packet(PeerMessage::ring);
}

Result<size_t> peer_message_size(std::span<const std::byte> head) noexcept {
  if (head.size() < 8) return Errc::protocol;
  PeerKind kind{};
  if (!kind_of(load<uint8_t>(head, 0), kind)) return Errc::protocol;
  if (load<uint8_t>(head, 1) != kPeerVersion) return Errc::protocol;
  if ((load<uint16_t>(head, 2) & ~kind.bits) != 0) return Errc::protocol;
  if (load<uint32_t>(head, 4) != kind.size) return Errc::protocol;
  return kind.size;
}

Result<PeerMessage> peer_message(std::span<const std::byte> in) noexcept {
  auto size = peer_message_size(in);
  if (!size || in.size() != *size) return Errc::protocol;
  return static_cast<PeerMessage>(load<uint8_t>(in, 0));
}

Result<Join> decode_join(std::span<const std::byte> in) noexcept {
  return decode_as<Join>(PeerMessage::join, in);
}
Result<Join> decode_joined(std::span<const std::byte> in) noexcept {
  return decode_as<Join>(PeerMessage::joined, in);
}
Result<Open> decode_open(std::span<const std::byte> in) noexcept {
  return decode_as<Open>(PeerMessage::open, in);
}
Result<Accept> decode_accept(std::span<const std::byte> in) noexcept {
  return decode_as<Accept>(PeerMessage::accept, in);
}
Result<Reject> decode_reject(std::span<const std::byte> in) noexcept {
  return decode_as<Reject>(PeerMessage::reject, in);
}
Result<LaneClose> decode_lane_close(std::span<const std::byte> in) noexcept {
  return decode_as<LaneClose>(PeerMessage::lane_close, in);
}
Result<Connect> decode_connect(std::span<const std::byte> in) noexcept {
  return decode_as<Connect>(PeerMessage::connect, in);
}
Result<Connected> decode_connected(std::span<const std::byte> in) noexcept {
  return decode_as<Connected>(PeerMessage::connected, in);
}
Result<Refuse> decode_refuse(std::span<const std::byte> in) noexcept {
  return decode_as<Refuse>(PeerMessage::refuse, in);
}
Result<Withdraw> decode_withdraw(std::span<const std::byte> in) noexcept {
  return decode_as<Withdraw>(PeerMessage::withdraw, in);
}

std::array<char, kSocketNameBytes> socket_name(const Id128& id) noexcept {
  std::array<char, kSocketNameBytes> name{};
  std::memcpy(name.data(), kNameHead.data(), kNameHead.size());
  for (size_t i = 0; i < id.size(); ++i) {
    name[kNameHead.size() + 2 * i] = kDigits[id[i] >> 4];
    name[kNameHead.size() + 2 * i + 1] = kDigits[id[i] & 15];
  }
  return name;
}

bool is_socket_name(std::string_view name) noexcept {
  return name.size() == kSocketNameBytes && name.substr(0, kNameHead.size()) == kNameHead &&
         name.find_first_not_of(kDigits, kNameHead.size()) == std::string_view::npos;
}

}  // namespace aperture::wire
