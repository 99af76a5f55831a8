// Whatever comes to a UDP port: what decodes is written again as the very same bytes, so that
// nothing in a header goes unlooked at; and a queue pair that is ready to receive takes it without
// writing anywhere but into its receive.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "ib/ud_qp.hpp"
#include "wire/datagram.hpp"

namespace aperture {
namespace {

constexpr uint32_t kQpn = 0x123400;
constexpr uint32_t kQkey = 0x11111111;
constexpr size_t kRoom = wire::kGrhBytes + 64;
constexpr std::byte kUntouched{0xa5};

void require(bool so) {
  if (!so) std::abort();
}

// Hands over what it was given, once.
class OneDatagram final : public link::Datagrams {
 public:
  link::Datagram datagram;
  bool there = false;
  uint16_t port() const noexcept override { return kQpn >> 8; }
  bool is_own(const Address&) const noexcept override { return false; }
  Status send(const Address&, const Address&, std::span<const iovec>) noexcept override {
    return {};
  }
  size_t receive(link::DatagramSink& sink, size_t) noexcept override {
    if (!std::exchange(there, false)) return 0;
    sink.on_datagram(datagram);
    return 1;
  }
  bool anything_arrived() const noexcept override { return there; }
  void ask_wake(bool) noexcept override {}
  int wake_fd() const noexcept override { return -1; }
  Status join(const Address&, const Address&) noexcept override { return {}; }
  Status leave(const Address&) noexcept override { return {}; }
};

class Events final : public ib::CqEvents, public ib::QpEvents {
 public:
  void on_completion_event() noexcept override {}
  void on_overrun() noexcept override { std::abort(); }
  void on_async_event(ib::AsyncEvent) noexcept override { std::abort(); }
};

void receive(std::span<const std::byte> in, bool to_group) {
  static auto keys = *protect::KeyTable::create(16);
  static const protect::DomainId pd = protect::new_domain();
  static std::vector<std::byte> memory(kRoom + 64);
  static const auto region = [] {
    protect::RegionSpec spec;
    spec.pd = pd;
    spec.base = reinterpret_cast<uint64_t>(memory.data());
    spec.length = memory.size();
    spec.rights = protect::Rights::local_read | protect::Rights::local_write;
    spec.requested_key = 0x1000;
    return *keys->add(spec);
  }();
  std::fill(memory.begin(), memory.end(), kUntouched);
  Events events;
  ib::CompletionQueue cq(8, events, false);
  auto link = std::make_unique<OneDatagram>();
  OneDatagram& one = *link;
  ib::QpSpec spec;
  spec.type = ib::QpType::ud;
  spec.qpn = kQpn;
  spec.keys = keys.get();
  spec.pd = pd;
  spec.send_cq = spec.recv_cq = &cq;
  spec.max_recv_wr = spec.max_recv_sge = 1;
  spec.events = &events;
  ib::UdQp qp(spec, std::move(link));
  ib::QpAttributes attr;
  attr.qkey = kQkey;
  attr.state = ib::QpState::init;
  qp.modify(attr, ib::kAttrState | ib::kAttrQkey);
  attr.state = ib::QpState::rtr;
  qp.modify(attr, ib::kAttrState);
  const ib::Sge sge{reinterpret_cast<uint64_t>(memory.data()), kRoom,
                    static_cast<uint32_t>(region.key)};
  require(qp.post_recv({1, &sge, 1}).ok());
  one.datagram.bytes = in;
  one.datagram.to_group = to_group;
  if (in.size() >= 15) {  // as if it came from the port that it claims
    one.datagram.from.port = static_cast<uint16_t>(std::to_integer<unsigned>(in[13]) |
                                                   std::to_integer<unsigned>(in[14]) << 8);
  }
  one.there = true;
  qp.poll(0);
  if (cq.empty()) {
    for (const std::byte b : memory) require(b == kUntouched);
    return;
  }
  const ib::Wc wc = cq.front();
  require(cq.size() == 1 && wc.status == ib::WcStatus::success);
  require(wc.byte_len == wire::kGrhBytes + in.size() - wire::kDatagramHeaderBytes);
  require(wc.byte_len <= kRoom);
  for (size_t i = wc.byte_len; i < memory.size(); ++i) require(memory[i] == kUntouched);
  qp.leave();
}

}  // namespace
}  // namespace aperture

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aperture;
  const auto in = std::as_bytes(std::span(data, size));
  if (const auto head = wire::decode_datagram(in); head.ok()) {
    std::array<std::byte, wire::kDatagramHeaderBytes> out;
    wire::encode(head.value(), out);
    require(std::memcmp(out.data(), in.data(), out.size()) == 0);
  }
  receive(in, false);
  receive(in, true);
  return 0;
}
