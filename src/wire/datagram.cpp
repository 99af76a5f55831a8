// The codec of datagrams and the places of groups: see datagram.hpp.
#include "wire/datagram.hpp"

#include <cstring>

namespace aperture::wire {

namespace {

constexpr uint32_t kQpnMask = 0xffffff;
constexpr uint8_t kAllFlags = kDatagramImm | kDatagramSolicited;

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

// FNV-1a over the MGID, mixed once more so that its upper bits are as good as its lower ones.
uint64_t hash_of(const Address& group) noexcept {
  uint64_t h = 0xcbf29ce484222325u;
  for (const uint8_t byte : group.ip) h = (h ^ byte) * 0x100000001b3u;
  h ^= h >> 32;
  h *= 0x94d049bb133111ebu;
  return h ^ h >> 29;
}

}  // namespace

void encode(const DatagramHead& head, std::span<std::byte, kDatagramHeaderBytes> out) noexcept {
  store(out, 0, kDatagramMagic);
  store(out, 4, kDatagramVersion);
  store(out, 5, head.flags);
  store(out, 6, head.length);
  store(out, 8, head.dest_qpn);
  store(out, 12, head.src_qpn);
  store(out, 16, head.qkey);
  store(out, 20, head.imm);
  store(out, 24, head.group);
}

Result<DatagramHead> decode_datagram(std::span<const std::byte> in) noexcept {
  if (in.size() < kDatagramHeaderBytes || in.size() > kMaxDatagramBytes) return Errc::protocol;
  if (load<uint32_t>(in, 0) != kDatagramMagic) return Errc::protocol;
  if (load<uint8_t>(in, 4) != kDatagramVersion) return Errc::protocol;
  DatagramHead head;
  head.flags = load<uint8_t>(in, 5);
  head.length = load<uint16_t>(in, 6);
  head.dest_qpn = load<uint32_t>(in, 8);
  head.src_qpn = load<uint32_t>(in, 12);
  head.qkey = load<uint32_t>(in, 16);
  head.imm = load<uint32_t>(in, 20);
  head.group = load<uint32_t>(in, 24);
  const bool sound = (head.flags & ~kAllFlags) == 0 &&
                     head.length == in.size() - kDatagramHeaderBytes && head.dest_qpn <= kQpnMask &&
                     head.src_qpn <= kQpnMask &&
                     ((head.flags & kDatagramImm) != 0 || head.imm == 0) &&
                     (head.dest_qpn == kMulticastQpn) == (head.group != 0);
  if (!sound) return Errc::protocol;
  return head;
}

bool is_group(const Address& address) noexcept {
  return address.is_v4() ? address.ip[12] >> 4 == 0xe : address.ip[0] == 0xff;
}

uint32_t group_tag(const Address& group) noexcept {
  const auto tag = static_cast<uint32_t>(hash_of(group));
  return tag != 0 ? tag : 1;
}

Address group_on_ipv4(const Address& group) noexcept {
  if (group.is_v4()) return group;
  constexpr uint32_t kFirst = 0xefc00000;  // 239.192.0.0
  return Address::v4(kFirst | static_cast<uint32_t>(hash_of(group) >> (64 - 18)), group.port);
}

std::array<std::byte, kGrhBytes> grh_of(const DatagramHead& head, const Address& from,
                                        const Address& to) noexcept {
  constexpr size_t kBth = 12, kDeth = 8, kIcrc = 4;
  const size_t imm = (head.flags & kDatagramImm) != 0 ? 4 : 0;
  const size_t length = kBth + kDeth + imm + (head.length + 3u) / 4 * 4 + kIcrc;
  std::array<std::byte, kGrhBytes> grh{};
  grh[0] = std::byte{6 << 4};
  grh[4] = static_cast<std::byte>(length >> 8);
  grh[5] = static_cast<std::byte>(length);
  grh[6] = std::byte{0x1b};
  grh[7] = std::byte{64};
  std::memcpy(&grh[8], from.ip.data(), from.ip.size());
  std::memcpy(&grh[24], to.ip.data(), to.ip.size());
  return grh;
}

}  // namespace aperture::wire
