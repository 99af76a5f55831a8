// Datagrams in and out: see ud_qp.hpp.
#include "ib/ud_qp.hpp"

#include <cassert>
#include <utility>

#include "base/log.hpp"

namespace aperture::ib {

namespace {

// Remote Q_Keys with this bit mean the sender's own (IBTA 10.2.5).
constexpr uint32_t kOwnQkey = 0x8000'0000;

// Datagram queue pairs have their port for themselves.
constexpr bool is_number_of(uint32_t qpn, uint16_t port) noexcept {
  return port_of(qpn) == port && index_of(qpn) == 0;
}

}  // namespace

UdQp::UdQp(const QpSpec& spec, std::unique_ptr<link::Datagrams> datagrams)
    : QueuePair(spec), end_(std::move(datagrams), *this) {}

UdQp::~UdQp() = default;

Status UdQp::attach_group(const Address& group, const Address& interface_ip) noexcept {
  return end_.link().join(group, interface_ip);
}

Status UdQp::detach_group(const Address& group) noexcept {
  return end_.link().leave(group);
}

// --- sending ---

void UdQp::run_send_queue() noexcept {
  while (is_waiting_to_send()) {
    if (!send(sq_.next)) return;
  }
}

// False: there is no room for it now.
bool UdQp::send(uint32_t at) noexcept {
  Wqe& w = sq_.wqe(at);
  assert(at == sq_.head && w.len <= wire::kDatagramMtu);
  wire::DatagramHead head;
  head.flags = static_cast<uint8_t>((w.op == SendOp::send_with_imm ? wire::kDatagramImm : 0) |
                                    (w.solicited ? wire::kDatagramSolicited : 0));
  head.length = Wild(static_cast<uint16_t>(w.len));
  head.dest_qpn = Wild(w.remote_qpn);
  head.traffic_class = w.route.traffic_class;
  head.src_qpn = Wild(spec_.qpn);
  head.qkey = Wild((w.remote_qkey & kOwnQkey) != 0 ? attr_.qkey : w.remote_qkey);
  head.imm = w.op == SendOp::send_with_imm ? w.imm : 0;
  const bool to_group = wire::is_group(w.route.remote);
  if (to_group) head.group = Wild(wire::group_tag(w.route.remote));
  wire::encode(head, std::span(out_).first<wire::kDatagramHeaderBytes>());
  w.status = sq_.gather(memory_, at, 0, out_.data() + wire::kDatagramHeaderBytes, w.len);
  // a number without a port, or of a connected queue pair, is nobody's who hears datagrams
  const bool lost = !to_group && (port_of(w.remote_qpn) == 0 || index_of(w.remote_qpn) != 0);
  if (w.status == WcStatus::success && !lost) {
    Address to = w.route.remote;
    to.port = port_of(w.remote_qpn);
    const iovec whole{out_.data(), wire::kDatagramHeaderBytes + w.len};
    if (Status s = end_.send(w.route.local, to, {&whole, 1}); s.error() == Errc::again) {
      return false;
    }
  }
  ++sq_.next;
  complete_head();
  return true;
}

// --- receiving ---

bool UdQp::poll(uint64_t) noexcept {
  const uint32_t before = sq_.next;
  if (is_waiting_to_send()) [[unlikely]]
    run_send_queue();
  const size_t got = receive();
  return got != 0 || sq_.next != before;
}

link::Pollable::Look UdQp::look() noexcept {
  return is_waiting_to_send() || !end_.is_idle() ? Look::poll : Look::nothing;
}

size_t UdQp::receive() noexcept {
  if (!is_receiving()) return end_.receive_in_vain();
  const bool was_waiting = end_.is_waiting_for_receive();
  const size_t got = end_.receive(receiving_.queue().size());
  if (!was_waiting && end_.is_waiting_for_receive()) receiving_.queue().wait(*this);
  return got;
}

void UdQp::on_receive_posted() noexcept {
  end_.on_receive_posted();
}

void UdQp::stop() noexcept {
  end_.stop();
}

void UdQp::on_datagram(const link::Datagram& datagram) noexcept {
  const auto decoded = wire::decode_datagram(datagram.bytes);
  if (!decoded || !is_number_of(decoded.value().src_qpn.unchecked(), datagram.from.port)) {
    ++drops_.malformed;
    return;
  }
  const wire::DatagramHead& head = decoded.value();
  const bool for_us = datagram.to_group ? head.dest_qpn.unchecked() == wire::kMulticastQpn &&
                                              head.group.unchecked() == wire::group_tag(datagram.to)
                                        : head.dest_qpn.unchecked() == spec_.qpn;
  const bool own_echo = spec_.block_self_multicast && datagram.to_group &&
                        head.src_qpn.unchecked() == spec_.qpn && end_.link().is_own(datagram.from);
  if (!for_us || own_echo) {
    ++drops_.not_for_us;
  } else if (!is_receiving()) {
    ++drops_.not_ready;
  } else if (head.qkey.unchecked() != attr_.qkey) {
    ++drops_.wrong_qkey;
  } else if (end_.is_dropping() || receiving_.queue().empty()) {
    ++drops_.no_receive;
  } else {
    deliver(datagram, head);
  }
}

void UdQp::deliver(const link::Datagram& datagram, const wire::DatagramHead& head) noexcept {
  const std::span<const std::byte> payload = datagram.bytes.subspan(wire::kDatagramHeaderBytes);
  const uint64_t len = wire::kGrhBytes + payload.size();  // the codec has compared it with the head
  if (const uint64_t room = receiving_.queue().room_of_next(); room < len) {
    ++drops_.too_long;
    explain_too_long(len, room);
    return;
  }
  assert(is_receiving() && !end_.is_dropping());
  TakenRecv taken;
  receiving_.queue().take(taken);
  const auto grh = wire::grh_of(head, datagram.from, datagram.to);
  WcStatus status = memory_.scatter(taken.sge, taken.sge_count, 0, grh.data(), grh.size());
  if (status == WcStatus::success) {
    status =
        memory_.scatter(taken.sge, taken.sge_count, grh.size(), payload.data(), payload.size());
  }
  if (status != WcStatus::success) [[unlikely]] {  // the fault of who posted the receive
    receiving_.fail(taken, status);
    fail();
    return;
  }
  receiving_.complete(taken, WcOpcode::recv, len, [&head](Wc& wc) {
    const bool has_imm = (head.flags & wire::kDatagramImm) != 0;
    wc.src_qpn = head.src_qpn.unchecked();  // the application is told, and has to choose
    wc.flags = has_imm ? kWcGrh | kWcWithImm : kWcGrh;
    if (has_imm) wc.imm = head.imm;
    wc.solicited = (head.flags & wire::kDatagramSolicited) != 0;
  });
}

void UdQp::explain_too_long(uint64_t len, uint64_t room) noexcept {
  if (std::exchange(told_too_long_, true)) return;
  APERTURE_WARN(
      "queue pair 0x%x drops a datagram: it takes %llu bytes, 40 of them for the global route "
      "header, and the receive has room for %llu: post longer receives",
      spec_.qpn, static_cast<unsigned long long>(len), static_cast<unsigned long long>(room));
}

// --- sleeping ---

void UdQp::fall_asleep(uint64_t) noexcept {
  end_.fall_asleep();
}

void UdQp::wake_up() noexcept {
  end_.wake_up();
}

bool UdQp::anything_arrived() const noexcept {
  return end_.anything_arrived();
}

bool UdQp::needs_polling() const noexcept {
  return is_waiting_to_send();
}

}  // namespace aperture::ib
