// A datagram queue pair over UDP on loopback, as the tests use it: what an engine and a context
// would give it; and a stranger with a socket.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "ib/pair.hpp"
#include "ib/ud_qp.hpp"
#include "link/udp/udp.hpp"

namespace aperture::ib::test {

constexpr uint32_t kQkey = 0x11111111;
constexpr size_t kGrh = wire::kGrhBytes;
inline const Address kLoopback = Address::v4(INADDR_LOOPBACK, 0);

inline protect::KeyTable& ud_keys() {
  static const auto keys = protect::KeyTable::create(1024);
  return *keys.value();
}

struct UdOptions {
  std::vector<Address> ips = {kLoopback};
  QpState state = QpState::rts;
  uint32_t qkey = kQkey;
  bool block_self = false;
  ReceiveQueue* srq = nullptr;
  std::unique_ptr<link::Datagrams> link = nullptr;  // null: UDP
};

class UdSide {
 public:
  explicit UdSide(UdOptions o = {})
      : send_cq(256, events, false), recv_cq(256, events, false), memory(1 << 20) {
    if (o.link == nullptr) {
      auto opened = link::udp::open(o.ips, {});
      EXPECT_TRUE(opened.ok()) << describe(opened.error());
      o.link = *std::move(opened);
    }
    QpSpec spec;
    spec.type = QpType::ud;
    spec.qpn = uint32_t{o.link->port()} << 8;
    spec.keys = &ud_keys();
    spec.pd = protect::new_domain();
    spec.send_cq = &send_cq;
    spec.recv_cq = &recv_cq;
    spec.srq = o.srq;
    spec.max_send_wr = spec.max_recv_wr = 64;
    spec.max_send_sge = spec.max_recv_sge = 4;
    spec.max_inline_bytes = 256;
    spec.block_self_multicast = o.block_self;
    spec.events = &events;
    qp = std::make_unique<UdQp>(spec, std::move(o.link));
    static uint64_t next_key = 0x5000;
    protect::RegionSpec region;
    region.pd = spec.pd;
    region.base = reinterpret_cast<uint64_t>(memory.data());
    region.length = memory.size();
    region.rights = kLocal;
    region.requested_key = next_key++;
    key = static_cast<uint32_t>((*ud_keys().add(region)).key);
    bring_to(o.state, o.qkey);
  }
  ~UdSide() { qp->leave(); }

  void bring_to(QpState state, uint32_t qkey = kQkey) {
    QpAttributes attr;
    attr.qkey = qkey;
    for (const QpState next : {QpState::init, QpState::rtr, QpState::rts}) {
      if (next > state) break;
      attr.state = next;
      qp->modify(attr, kAttrState | kAttrQkey);
    }
  }
  Sge sge(size_t offset, size_t len) const {
    return {reinterpret_cast<uint64_t>(memory.data()) + offset, static_cast<uint32_t>(len), key};
  }
  Status post_recv(uint64_t id, size_t offset, size_t len = kGrh + 4096) {
    const Sge s = sge(offset, len);
    return qp->post_recv({id, &s, 1});
  }
  std::vector<std::byte> bytes(size_t offset, size_t n) const {
    const auto at = memory.begin() + static_cast<ptrdiff_t>(offset);
    return {at, at + static_cast<ptrdiff_t>(n)};
  }
  void fill(size_t offset, const std::vector<std::byte>& from) {
    std::copy(from.begin(), from.end(), memory.begin() + static_cast<ptrdiff_t>(offset));
  }

  SendWr work(uint64_t id, uint32_t qpn) const {
    SendWr wr;
    wr.id = id;
    wr.flags = kSignaled;
    wr.route = &route;
    wr.remote_qpn = qpn;
    wr.remote_qkey = kQkey;
    return wr;
  }
  Status send(uint64_t id, uint32_t qpn, size_t offset, size_t len, uint32_t qkey = kQkey) {
    SendWr wr = work(id, qpn);
    const Sge s = sge(offset, len);
    wr.sge = &s;
    wr.sge_count = 1;
    wr.remote_qkey = qkey;
    return qp->post_send(wr);
  }
  Status send_to_group(uint64_t id, const Address& group, const Address& local = kLoopback) {
    const Route to{local, group};
    SendWr wr = work(id, wire::kMulticastQpn);
    const Sge s = sge(0, 8);
    wr.route = &to;
    wr.sge = &s;
    wr.sge_count = 1;
    return qp->post_send(wr);
  }
  // Polls until that many receives are complete; false after five seconds.
  bool received(uint32_t n) {
    return until([&] { return recv_cq.size() >= n; });
  }
  template <typename So>
  bool until(So so) {
    const uint64_t end = now_ns() + 5'000'000'000;
    while (!so()) {
      if (now_ns() > end) return false;
      qp->poll(++polls);
    }
    return true;
  }
  // Polls long enough for what is under way on this host.
  void settle() {
    const uint64_t end = now_ns() + 30'000'000;
    while (now_ns() < end) qp->poll(++polls);
  }
  static Wc take(Cq& cq) {
    EXPECT_FALSE(cq.empty());
    if (cq.empty()) return {};
    const Wc wc = cq.front();
    cq.pop();
    return wc;
  }

  Events events;
  Cq send_cq;
  Cq recv_cq;
  std::vector<std::byte> memory;
  uint32_t key = 0;
  std::unique_ptr<UdQp> qp;
  Route route{kLoopback, kLoopback};
  uint64_t polls = 0;
};

// Who has a socket and knows the layout.
class Stranger {
 public:
  Stranger() : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage addr;
    socklen_t len = kLoopback.to_sockaddr(addr);
    EXPECT_EQ(::bind(fd_.get(), reinterpret_cast<sockaddr*>(&addr), len), 0);
    len = sizeof addr;
    EXPECT_EQ(::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&addr), &len), 0);
    port_ = Address::from_sockaddr(&addr, len).value().port;
  }
  // A datagram that is right in every respect.
  std::vector<std::byte> sound(uint32_t dest_qpn, size_t length = 8) const {
    wire::DatagramHead head;
    head.length = static_cast<uint16_t>(length);
    head.dest_qpn = dest_qpn;
    head.src_qpn = uint32_t{port_} << 8;
    head.qkey = kQkey;
    return bytes(head);
  }
  static std::vector<std::byte> bytes(const wire::DatagramHead& head) {
    std::vector<std::byte> out(wire::kDatagramHeaderBytes + head.length);
    wire::encode(head, std::span(out).first<wire::kDatagramHeaderBytes>());
    return out;
  }
  void send(uint16_t port, const std::vector<std::byte>& bytes) const {
    Address to = kLoopback;
    to.port = port;
    sockaddr_storage addr;
    const socklen_t len = to.to_sockaddr(addr);
    EXPECT_EQ(
        ::sendto(fd_.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&addr), len),
        static_cast<ssize_t>(bytes.size()));
  }
  uint16_t port() const { return port_; }

 private:
  UniqueFd fd_;
  uint16_t port_ = 0;
};

}  // namespace aperture::ib::test
