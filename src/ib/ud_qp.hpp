// Unreliable datagrams: queue pairs without a connection. IBTA vol. 1, 9.8.3 (unreliable datagram),
// 9.9.3 (errors of the responder), 10.2.5 (Q_Keys), 10.3.1 (states), 10.5.2 (multicast);
// ibv_create_ah(3), ibv_attach_mcast(3).
//
// Guarded by its context's engine lock. A WQE is complete when the network has taken its datagram;
// nobody answers. A WQE that names memory which it may not read ends the send queue alone (SQE),
// and receiving goes on. Everything that arrives is a stranger's: a datagram that is no message for
// this queue pair, has another Q_Key, or is longer than the receive that it would take is dropped,
// counted, and changes nothing (a responder error of class D: the receive stays posted; hardware
// that ends the queue pair instead lets every stranger do so).
//
// A message without a receive is dropped, but not at once (transport/datagram_end.hpp).
#pragma once

#include <array>
#include <memory>

#include "ib/queue_pair.hpp"
#include "transport/datagram_end.hpp"
#include "wire/datagram.hpp"

namespace aperture::ib {

class UdQp final : public QueuePair, private link::DatagramSink {
 public:
  static constexpr uint64_t kReceiveTimeoutNs = transport::DatagramEnd::kReceiveTimeoutNs;

  // Why datagrams were dropped, so often each.
  struct Drops {
    uint64_t malformed = 0;   // no datagram of ours, or not from the port that its sender claims
    uint64_t not_for_us = 0;  // another queue pair or group
    uint64_t wrong_qkey = 0;
    uint64_t not_ready = 0;  // before RTR, or in error
    uint64_t no_receive = 0;
    uint64_t too_long = 0;
  };

  // spec.qpn: port << 8. By exception std::bad_alloc.
  UdQp(const QpSpec& spec, std::unique_ptr<link::Datagrams> datagrams);
  ~UdQp() override;

  // Messages to that MGID come in from now on, until it is detached; once however often it is
  // attached. interface_ip: a local address; any: at all of them. Errors: invalid (no group; not
  // attached), addr_not_avail, addr_in_use, no_fds, no_memory.
  Status attach_group(const Address& group, const Address& interface_ip) noexcept;
  Status detach_group(const Address& group) noexcept;

  link::Datagrams& datagrams() noexcept { return end_.link(); }
  const Drops& drops() const noexcept { return drops_; }

  // link::Pollable
  bool poll(uint64_t polls) noexcept override;
  Look look() noexcept override;
  void fall_asleep(uint64_t sleep_number) noexcept override;
  void wake_up() noexcept override;
  bool anything_arrived() const noexcept override;
  bool needs_polling() const noexcept override;
  bool needs_wind_up() const noexcept override { return false; }

  void on_receive_posted() noexcept override;

 protected:
  void run_send_queue() noexcept override;
  void stop() noexcept override;

 private:
  bool send(uint32_t at) noexcept;
  bool is_waiting_to_send() const noexcept { return may_go_on() && !sq_.is_posted(); }
  bool is_receiving() const noexcept {
    return attr_.state >= QpState::rtr && attr_.state != QpState::err;
  }
  size_t receive() noexcept;
  void on_datagram(const link::Datagram& datagram) noexcept override;
  void deliver(const link::Datagram& datagram, const wire::DatagramHead& head) noexcept;
  void explain_too_long(uint64_t len, uint64_t room) noexcept;

  transport::DatagramEnd end_;
  Drops drops_;
  bool told_too_long_ = false;
  std::array<std::byte, wire::kMaxDatagramBytes> out_;
};

}  // namespace aperture::ib
