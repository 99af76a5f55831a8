// Codecs of connection management: see cm.hpp for the layouts.
#include "wire/cm.hpp"

#include "wire/codec.hpp"

namespace aperture::wire {

// Found by their arguments, so not in a nameless namespace.
static void fields(auto& io, Like<Ece> auto& ece, size_t at) noexcept {
  io.number(at, ece.vendor, kMax24Bits);
  io.number(at + 4, ece.attributes);
}

static void fields(auto& io, Like<Req> auto& req) noexcept {
  io.address(16, req.source);
  io.address(34, req.destination);
  io.number(52, req.qpn, kMax24Bits);
  io.number(56, req.psn, kMax24Bits);
  fields(io, req.ece, 60);
  io.number(68, req.responder_resources);
  io.number(69, req.initiator_depth);
  io.flag(70, req.flow_control);
  io.number(71, req.retry_count, kMaxRetries);
  io.number(72, req.rnr_retry_count, kMaxRetries);
  io.flag(73, req.srq);
  io.zeros(74, 76);
  io.bytes(76, req.data);
}

static void fields(auto& io, Like<Rep> auto& rep) noexcept {
  io.number(16, rep.qpn, kMax24Bits);
  io.number(20, rep.psn, kMax24Bits);
  fields(io, rep.ece, 24);
  io.number(32, rep.responder_resources);
  io.number(33, rep.initiator_depth);
  io.flag(34, rep.flow_control);
  io.number(35, rep.rnr_retry_count, kMaxRetries);
  io.flag(36, rep.srq);
  io.zeros(37, 40);
  io.bytes(40, rep.data);
}

static void fields(auto& io, Like<Rej> auto& rej) noexcept {
  io.number(16, rej.reason, kMax16Bits);
  io.bytes(20, rej.data);
}

static void fields(auto& io, Like<SidrReq> auto& req) noexcept {
  io.number(16, req.request_id);
  io.bytes(24, req.data);
}

static void fields(auto& io, Like<SidrRep> auto& rep) noexcept {
  io.number(16, rep.request_id);
  io.number(24, rep.qpn, kMax24Bits);
  io.number(28, rep.qkey);
  fields(io, rep.ece, 32);
  io.number(40, rep.status, kMax8Bits);
  io.bytes(44, rep.data);
}

namespace {

template <typename Message>
CmPacket encode_as(CmKind kind, const Message& message) noexcept {
  CmPacket p = encode_bare(kind);
  write(message, p.bytes);
  return p;
}

template <typename Message>
Result<Message> decode_as(CmKind kind, std::span<const std::byte> in) noexcept {
  if (in.size() != cm_bytes(kind)) return Errc::protocol;
  const auto head = decode_cm_head(in.first(kCmHeadBytes));
  if (!head.ok()) return head.error();
  if (head.value() != kind) return Errc::protocol;
  return read<Message>(in);
}

}  // namespace

size_t cm_bytes(CmKind kind) noexcept {
  switch (kind) {
    case CmKind::req: return kReqBytes;
    case CmKind::rep: return kRepBytes;
    case CmKind::rej: return kRejBytes;
    case CmKind::sidr_req: return kSidrReqBytes;
    case CmKind::sidr_rep: return kSidrRepBytes;
    case CmKind::mra:
    case CmKind::rtu:
    case CmKind::dreq:
    case CmKind::drep: break;
  }
  return kCmHeadBytes;
}

Result<CmKind> decode_cm_head(std::span<const std::byte> head) noexcept {
  if (head.size() != kCmHeadBytes || load<uint64_t>(head, 0) != kCmMagic) return Errc::protocol;
  const uint8_t raw = load<uint8_t>(head, 10);
  if (raw < static_cast<uint8_t>(CmKind::req) || raw > static_cast<uint8_t>(CmKind::sidr_rep) ||
      load<uint8_t>(head, 11) != 0) {
    return Errc::protocol;
  }
  if (load<uint16_t>(head, 8) != kCmVersion) return Errc::not_supported;
  const auto kind = static_cast<CmKind>(raw);
  if (load<uint32_t>(head, 12) != cm_bytes(kind)) return Errc::protocol;
  return kind;
}

CmPacket encode_bare(CmKind kind) noexcept {
  CmPacket p;
  p.size = cm_bytes(kind);
  store<uint64_t>(p.bytes, 0, kCmMagic);
  store<uint16_t>(p.bytes, 8, kCmVersion);
  store<uint8_t>(p.bytes, 10, static_cast<uint8_t>(kind));
  store<uint32_t>(p.bytes, 12, static_cast<uint32_t>(p.size));
  return p;
}

CmPacket encode(const Req& req) noexcept {
  return encode_as(CmKind::req, req);
}
CmPacket encode(const Rep& rep) noexcept {
  return encode_as(CmKind::rep, rep);
}
CmPacket encode(const Rej& rej) noexcept {
  return encode_as(CmKind::rej, rej);
}
CmPacket encode(const SidrReq& req) noexcept {
  return encode_as(CmKind::sidr_req, req);
}
CmPacket encode(const SidrRep& rep) noexcept {
  return encode_as(CmKind::sidr_rep, rep);
}

Result<Req> decode_req(std::span<const std::byte> in) noexcept {
  return decode_as<Req>(CmKind::req, in);
}
Result<Rep> decode_rep(std::span<const std::byte> in) noexcept {
  return decode_as<Rep>(CmKind::rep, in);
}
Result<Rej> decode_rej(std::span<const std::byte> in) noexcept {
  auto rej = decode_as<Rej>(CmKind::rej, in);
  if (rej.ok() && rej->reason.unchecked() == 0) return Errc::protocol;
  return rej;
}
Result<SidrReq> decode_sidr_req(std::span<const std::byte> in) noexcept {
  return decode_as<SidrReq>(CmKind::sidr_req, in);
}
Result<SidrRep> decode_sidr_rep(std::span<const std::byte> in) noexcept {
  return decode_as<SidrRep>(CmKind::sidr_rep, in);
}

}  // namespace aperture::wire
