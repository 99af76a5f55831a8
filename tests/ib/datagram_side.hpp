// A datagram queue pair over UDP on loopback, as the tests use it: what an engine and a context
// would give it; and a stranger with a socket.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

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

class UdSide : public Registered {
 public:
  explicit UdSide(UdOptions o = {})
      : Registered(1 << 20), send_cq(256, events, false), recv_cq(256, events, false) {
    if (o.link == nullptr) {
      auto opened = link::udp::open(o.ips, {}, {});
      EXPECT_TRUE(opened.ok()) << describe(opened.error());
      o.link = *std::move(opened);
    }
    const QpSpec spec{.type = QpType::ud,
                      .qpn = uint32_t{o.link->port()} << 8,
                      .keys = &ud_keys(),
                      .pd = protect::new_domain(),
                      .send_cq = &send_cq,
                      .recv_cq = &recv_cq,
                      .srq = o.srq,
                      .max_send_wr = 64,
                      .max_recv_wr = 64,
                      .max_send_sge = 4,
                      .max_recv_sge = 4,
                      .max_inline_bytes = 256,
                      .block_self_multicast = o.block_self,
                      .events = &events};
    qp = std::make_unique<UdQp>(spec, std::move(o.link));
    static uint64_t next_key = 0x5000;
    region = *ud_keys().add({.pd = spec.pd,
                             .base = address(),
                             .length = memory.size(),
                             .rights = kLocal,
                             .requested_key = next_key++});
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
  void go_to(QpState state, uint32_t mask = 0, QpAttributes attr = {}) {
    attr.state = state;
    qp->modify(attr, mask | kAttrState);
  }
  Status post_recv(uint64_t id, size_t offset, size_t len = kGrh + 4096) {
    const Sge s = sge(offset, len);
    return qp->post_recv({id, &s, 1});
  }

  SendWr work(uint64_t id, uint32_t qpn) const {
    return {.id = id, .flags = kSignaled, .route = &route, .remote_qpn = qpn, .remote_qkey = kQkey};
  }
  Status post(SendWr wr, const Sge& piece) {
    wr.sge = &piece;
    wr.sge_count = 1;
    return qp->post_send(wr);
  }
  Status send(uint64_t id, uint32_t qpn, size_t offset, size_t len, uint32_t qkey = kQkey) {
    SendWr wr = work(id, qpn);
    wr.remote_qkey = qkey;
    return post(wr, sge(offset, len));
  }
  Status send_to_group(uint64_t id, const Address& group, const Address& local = kLoopback) {
    const Route to{local, group};
    SendWr wr = work(id, wire::kMulticastQpn);
    wr.route = &to;
    return post(wr, sge(0, 8));
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

  Events events;
  CompletionQueue send_cq;
  CompletionQueue recv_cq;
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
    head.length = Wild(static_cast<uint16_t>(length));
    head.dest_qpn = Wild<uint32_t>(dest_qpn);
    head.src_qpn = Wild<uint32_t>(uint32_t{port_} << 8);
    head.qkey = Wild<uint32_t>(kQkey);
    return bytes(head);
  }
  static std::vector<std::byte> bytes(const wire::DatagramHead& head) {
    std::vector<std::byte> out(wire::kDatagramHeaderBytes + head.length.unchecked());
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
