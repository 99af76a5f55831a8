// Whatever comes to the UDP port of a datagram endpoint: what decodes is written again as the very
// same bytes, so that nothing in a header goes unlooked at; and a receive takes it, behind a prefix
// or not, without a byte being written beside its place.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "msg/datagram_receives.hpp"
#include "wire/message_datagram.hpp"

namespace aperture {
namespace {

constexpr size_t kRoom = 64;
constexpr std::byte kUntouched{0xa5};

void require(bool so) {
  if (!so) std::abort();
}

void take(std::span<const std::byte> payload, uint64_t data, size_t prefix) {
  static auto keys = *protect::KeyTable::create(16);
  std::vector<std::byte> memory(prefix + kRoom + 64, kUntouched);
  qp::Cq cq(4);
  qp::Port port(*keys, 0);
  port.rx_cq = &cq;
  msg::DatagramReceives receives(port, 1, {.prefix_bytes = prefix});
  const size_t half = prefix + kRoom / 2;
  const iovec iov[2] = {{memory.data(), half}, {memory.data() + half, kRoom / 2}};
  require(receives.recv({.iov = iov, .iov_count = 2, .len = prefix + kRoom}).ok());
  require(receives.room() == 1);
  require(receives.take({.payload = payload, .beside = qp::Beside::imm, .imm = data}));
  require(cq.size() == 1 && receives.room() == 0);
  const size_t placed = std::min(payload.size(), kRoom);
  require(cq.error_first() == (payload.size() > kRoom));
  if (cq.error_first()) {
    const qp::CompletionError e = cq.pop_error();
    require(e.err == Errc::truncated && e.overflow == payload.size() - kRoom);
    require(e.entry.len == prefix + kRoom && e.entry.imm == data);
  } else {
    require(cq.front().len == prefix + payload.size() && cq.front().imm == data);
  }
  require(std::memcmp(memory.data() + prefix, payload.data(), placed) == 0);
  for (size_t i = 0; i < prefix; ++i) require(memory[i] == kUntouched);
  for (size_t i = prefix + placed; i < memory.size(); ++i) require(memory[i] == kUntouched);
  require(!receives.take({.payload = payload}));
}

}  // namespace
}  // namespace aperture

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aperture;
  const auto in = std::as_bytes(std::span(data, size));
  const auto head = wire::decode_message_datagram(in);
  if (!head.ok()) return 0;
  std::array<std::byte, wire::kMessageHeaderBytes> out;
  wire::encode(head.value(), out);
  require(std::memcmp(out.data(), in.data(), out.size()) == 0);
  const auto payload = in.subspan(wire::kMessageHeaderBytes);
  require(payload.size() == head.value().length.unchecked());
  take(payload, head.value().data, 0);
  take(payload, head.value().data, 24);
  return 0;
}
