// The codec of datagrams and the places of groups: see datagram.hpp.
#include "wire/datagram.hpp"

#include "wire/codec.hpp"

namespace aperture::wire {

namespace {

constexpr uint32_t kQpnMask = 0xffffff;
constexpr uint8_t kAllFlags = kDatagramImm | kDatagramSolicited;
static_assert(kAllFlags == 3, "the limit of the flags is the mask of all of them");

// FNV-1a over the MGID, mixed once more so that its upper bits are as good as its lower ones.
uint64_t hash_of(const Address& group) noexcept {
  uint64_t h = 0xcbf29ce484222325u;
  for (const uint8_t byte : group.ip) h = (h ^ byte) * 0x100000001b3u;
  h ^= h >> 32;
  h *= 0x94d049bb133111ebu;
  return h ^ h >> 29;
}

}  // namespace

// Found by its arguments, so not in a nameless namespace.
static void fields(auto& io, Like<DatagramHead> auto& head) noexcept {
  io.number(5, head.flags, kAllFlags);
  io.number(6, head.length);
  io.low_24(8, head.dest_qpn);
  io.number(11, head.traffic_class);
  io.number(12, head.src_qpn, kQpnMask);
  io.number(16, head.qkey);
  io.number(20, head.imm);
  io.number(24, head.group);
}

void encode(const DatagramHead& head, std::span<std::byte, kDatagramHeaderBytes> out) noexcept {
  store<uint32_t>(out, 0, kDatagramMagic);
  store<uint8_t>(out, 4, kDatagramVersion);
  write(head, out);
}

Result<DatagramHead> decode_datagram(std::span<const std::byte> in) noexcept {
  if (in.size() < kDatagramHeaderBytes || in.size() > kMaxDatagramBytes) return Errc::protocol;
  if (load<uint32_t>(in, 0) != kDatagramMagic) return Errc::protocol;
  if (load<uint8_t>(in, 4) != kDatagramVersion) return Errc::protocol;
  auto head = read<DatagramHead>(in);
  if (!head.ok()) return head;
  const bool to_group = head->dest_qpn.unchecked() == kMulticastQpn;
  const bool sound = head->length.unchecked() == in.size() - kDatagramHeaderBytes &&
                     ((head->flags & kDatagramImm) != 0 || head->imm == 0) &&
                     to_group == (head->group.unchecked() != 0);
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
  const size_t length = kBth + kDeth + imm + (head.length.unchecked() + 3u) / 4 * 4 + kIcrc;
  std::array<std::byte, kGrhBytes> grh{};
  grh[0] = static_cast<std::byte>(6 << 4 | head.traffic_class >> 4);
  grh[1] = static_cast<std::byte>(head.traffic_class << 4);
  grh[4] = static_cast<std::byte>(length >> 8);
  grh[5] = static_cast<std::byte>(length);
  grh[6] = std::byte{0x1b};
  grh[7] = std::byte{64};
  std::memcpy(&grh[8], from.ip.data(), from.ip.size());
  std::memcpy(&grh[24], to.ip.data(), to.ip.size());
  return grh;
}

}  // namespace aperture::wire
