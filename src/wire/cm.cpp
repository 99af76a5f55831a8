// Codecs of connection management: see cm.hpp for the layouts.
#include "wire/cm.hpp"

#include <algorithm>
#include <cstring>

namespace aperture::wire {

namespace {

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

Address load_address(std::span<const std::byte> in, size_t at) noexcept {
  Address a;
  std::memcpy(a.ip.data(), in.data() + at, a.ip.size());
  a.port = load<uint16_t>(in, at + 16);
  return a;
}

void store_address(std::span<std::byte> out, size_t at, const Address& a) noexcept {
  std::memcpy(out.data() + at, a.ip.data(), a.ip.size());
  store<uint16_t>(out, at + 16, a.port);
}

template <size_t N>
void load_data(std::span<const std::byte> in, size_t at, std::array<uint8_t, N>& data) noexcept {
  std::memcpy(data.data(), in.data() + at, N);
}

template <size_t N>
void store_data(std::span<std::byte> out, size_t at, const std::array<uint8_t, N>& data) noexcept {
  std::memcpy(out.data() + at, data.data(), N);
}

Ece load_ece(std::span<const std::byte> in, size_t at) noexcept {
  return {load<uint32_t>(in, at), load<uint32_t>(in, at + 4)};
}

void store_ece(std::span<std::byte> out, size_t at, const Ece& ece) noexcept {
  store<uint32_t>(out, at, ece.vendor);
  store<uint32_t>(out, at + 4, ece.attributes);
}

CmPacket packet(CmKind kind) noexcept {
  CmPacket p;
  p.size = cm_bytes(kind);
  store<uint64_t>(p.bytes, 0, kCmMagic);
  store<uint16_t>(p.bytes, 8, kCmVersion);
  store<uint8_t>(p.bytes, 10, static_cast<uint8_t>(kind));
  store<uint32_t>(p.bytes, 12, static_cast<uint32_t>(p.size));
  return p;
}

Status check(std::span<const std::byte> in, CmKind kind) noexcept {
  if (in.size() != cm_bytes(kind)) return Errc::protocol;
  const auto head = decode_cm_head(in.first(kCmHeadBytes));
  if (!head.ok()) return head.error();
  return head.value() == kind ? Status{} : Status{Errc::protocol};
}

bool is_flag(std::span<const std::byte> in, size_t at) noexcept {
  return load<uint8_t>(in, at) <= 1;
}

bool is_zero(std::span<const std::byte> in, size_t from, size_t to) noexcept {
  const auto bytes = in.subspan(from, to - from);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
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

CmPacket encode(const Req& req) noexcept {
  CmPacket p = packet(CmKind::req);
  store_address(p.bytes, 16, req.source);
  store_address(p.bytes, 34, req.destination);
  store<uint32_t>(p.bytes, 52, req.qpn);
  store<uint32_t>(p.bytes, 56, req.psn);
  store_ece(p.bytes, 60, req.ece);
  store<uint8_t>(p.bytes, 68, req.responder_resources);
  store<uint8_t>(p.bytes, 69, req.initiator_depth);
  store<uint8_t>(p.bytes, 70, req.flow_control ? 1 : 0);
  store<uint8_t>(p.bytes, 71, req.retry_count);
  store<uint8_t>(p.bytes, 72, req.rnr_retry_count);
  store<uint8_t>(p.bytes, 73, req.srq ? 1 : 0);
  store_data(p.bytes, 76, req.data);
  return p;
}

Result<Req> decode_req(std::span<const std::byte> in) noexcept {
  if (const Status s = check(in, CmKind::req); !s) return s.error();
  Req r;
  r.source = load_address(in, 16);
  r.destination = load_address(in, 34);
  r.qpn = load<uint32_t>(in, 52);
  r.psn = load<uint32_t>(in, 56);
  r.ece = load_ece(in, 60);
  r.responder_resources = load<uint8_t>(in, 68);
  r.initiator_depth = load<uint8_t>(in, 69);
  r.retry_count = load<uint8_t>(in, 71);
  r.rnr_retry_count = load<uint8_t>(in, 72);
  if (r.qpn > kMax24Bits || r.psn > kMax24Bits || r.ece.vendor > kMax24Bits ||
      r.retry_count > kMaxRetries || r.rnr_retry_count > kMaxRetries || !is_flag(in, 70) ||
      !is_flag(in, 73) || !is_zero(in, 74, 76)) {
    return Errc::protocol;
  }
  r.flow_control = load<uint8_t>(in, 70) != 0;
  r.srq = load<uint8_t>(in, 73) != 0;
  load_data(in, 76, r.data);
  return r;
}

CmPacket encode(const Rep& rep) noexcept {
  CmPacket p = packet(CmKind::rep);
  store<uint32_t>(p.bytes, 16, rep.qpn);
  store<uint32_t>(p.bytes, 20, rep.psn);
  store_ece(p.bytes, 24, rep.ece);
  store<uint8_t>(p.bytes, 32, rep.responder_resources);
  store<uint8_t>(p.bytes, 33, rep.initiator_depth);
  store<uint8_t>(p.bytes, 34, rep.flow_control ? 1 : 0);
  store<uint8_t>(p.bytes, 35, rep.rnr_retry_count);
  store<uint8_t>(p.bytes, 36, rep.srq ? 1 : 0);
  store_data(p.bytes, 40, rep.data);
  return p;
}

Result<Rep> decode_rep(std::span<const std::byte> in) noexcept {
  if (const Status s = check(in, CmKind::rep); !s) return s.error();
  Rep r;
  r.qpn = load<uint32_t>(in, 16);
  r.psn = load<uint32_t>(in, 20);
  r.ece = load_ece(in, 24);
  r.responder_resources = load<uint8_t>(in, 32);
  r.initiator_depth = load<uint8_t>(in, 33);
  r.rnr_retry_count = load<uint8_t>(in, 35);
  if (r.qpn > kMax24Bits || r.psn > kMax24Bits || r.ece.vendor > kMax24Bits ||
      r.rnr_retry_count > kMaxRetries || !is_flag(in, 34) || !is_flag(in, 36) ||
      !is_zero(in, 37, 40)) {
    return Errc::protocol;
  }
  r.flow_control = load<uint8_t>(in, 34) != 0;
  r.srq = load<uint8_t>(in, 36) != 0;
  load_data(in, 40, r.data);
  return r;
}

CmPacket encode(const Rej& rej) noexcept {
  CmPacket p = packet(CmKind::rej);
  store<uint32_t>(p.bytes, 16, rej.reason);
  store_data(p.bytes, 20, rej.data);
  return p;
}

Result<Rej> decode_rej(std::span<const std::byte> in) noexcept {
  if (const Status s = check(in, CmKind::rej); !s) return s.error();
  Rej r;
  r.reason = load<uint32_t>(in, 16);
  if (r.reason == 0 || r.reason > 0xffff) return Errc::protocol;
  load_data(in, 20, r.data);
  return r;
}

CmPacket encode(const SidrReq& req) noexcept {
  CmPacket p = packet(CmKind::sidr_req);
  store<uint64_t>(p.bytes, 16, req.request_id);
  store_data(p.bytes, 24, req.data);
  return p;
}

Result<SidrReq> decode_sidr_req(std::span<const std::byte> in) noexcept {
  if (const Status s = check(in, CmKind::sidr_req); !s) return s.error();
  SidrReq r;
  r.request_id = load<uint64_t>(in, 16);
  load_data(in, 24, r.data);
  return r;
}

CmPacket encode(const SidrRep& rep) noexcept {
  CmPacket p = packet(CmKind::sidr_rep);
  store<uint64_t>(p.bytes, 16, rep.request_id);
  store<uint32_t>(p.bytes, 24, rep.qpn);
  store<uint32_t>(p.bytes, 28, rep.qkey);
  store_ece(p.bytes, 32, rep.ece);
  store<uint32_t>(p.bytes, 40, rep.status);
  store_data(p.bytes, 44, rep.data);
  return p;
}

Result<SidrRep> decode_sidr_rep(std::span<const std::byte> in) noexcept {
  if (const Status s = check(in, CmKind::sidr_rep); !s) return s.error();
  SidrRep r;
  r.request_id = load<uint64_t>(in, 16);
  r.qpn = load<uint32_t>(in, 24);
  r.qkey = load<uint32_t>(in, 28);
  r.ece = load_ece(in, 32);
  r.status = load<uint32_t>(in, 40);
  if (r.qpn > kMax24Bits || r.ece.vendor > kMax24Bits || r.status > 0xff) return Errc::protocol;
  load_data(in, 44, r.data);
  return r;
}

CmPacket encode_bare(CmKind kind) noexcept {
  return packet(kind);
}

}  // namespace aperture::wire
