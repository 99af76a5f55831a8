// Datagram endpoints: see datagram_endpoint.hpp.
#include "nic/datagram_endpoint.hpp"

#include <array>
#include <cassert>
#include <new>

#include "base/iov.hpp"
#include "nic/datagram_sockets.hpp"
#include "nic/host_identity.hpp"

namespace aperture::nic {

Result<std::unique_ptr<DatagramEndpoint>> DatagramEndpoint::create(const EndpointOptions& options,
                                                                   const Wish& wish) noexcept {
  if (options.engine->life().is_over()) return Errc::not_supported;
  // an address that others know is there for them: the application has said it, or the user
  const std::span<const Address> here(&options.local, 1);
  auto link = open_datagrams(here, is_loopback(options.local) ? here.first(0) : here);
  if (!link) return link.error();
  try {
    auto made = std::make_unique<DatagramEndpoint>(options, wish, *std::move(link));
    if (Status s = made->start(); !s) return s.error();
    return made;
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
}

DatagramEndpoint::DatagramEndpoint(const EndpointOptions& options, const Wish& wish,
                                   std::unique_ptr<link::Datagrams> link)
    : Endpoint(nullptr, *options.addresses),
      engine_(*options.engine),
      addresses_(*options.addresses),
      wish_(wish),
      directed_(options.directed_recv),
      tells_sources_(options.directed_recv || options.report_source),
      port_(options.engine->keys(), 0),
      receives_(port_, options.rx_size,
                {.directed = options.directed_recv,
                 .report_source = options.report_source,
                 .prefix_bytes = wish.prefix_bytes}),
      end_(std::move(link), *this),
      address_(options.local),
      groups_(engine_, end_.link(), address_) {
  set_up(port_, options);
  address_.port = end_.link().port();
}

Status DatagramEndpoint::start() noexcept {
  const EngineGuard guard(engine_);
  assert(!started_ && end_.link().wake_fd() >= 0);
  if (Status s = engine_.wakers().watch(end_.link().wake_fd()); !s) return s;
  const Status s = engine_.add_pollable(*this, *this);
  if (!s) engine_.wakers().forget(end_.link().wake_fd());
  started_ = s.ok();
  return s;
}

DatagramEndpoint::~DatagramEndpoint() {
  const EngineGuard guard(engine_);
  if (started_) {
    engine_.remove_pollable(*this);
    engine_.wakers().forget(end_.link().wake_fd());
  }
  port_.discards = true;
  receives_.cancel_all(Errc::canceled);
}

// --- sending ---

Status DatagramEndpoint::destination(uint64_t dest, Address& to,
                                     wire::MessageHead& head) const noexcept {
  if (!DatagramGroups::is_group(dest)) {
    const Address* found = addresses_.find_fresh(dest);
    if (found == nullptr) return Errc::no_entry;
    to = *found;
    return {};
  }
  Result<Address> group = groups_.destination(dest);
  if (!group) return group.error();
  to = *group;
  head.group = Wild(wire::group_tag(to));
  head.group_port = Wild(to.port);
  return {};
}

Status DatagramEndpoint::send(const qp::SendWr& wr) noexcept {
  if (wr.tagged || wr.delivery != 0) return Errc::not_supported;  // nobody answers
  assert(wr.len >= wish_.prefix_bytes && wr.len - wish_.prefix_bytes <= kMostBytes);
  if (wr.completion == qp::kEntry && !port_.tx_cq->has_room()) return Errc::again;
  Address to;
  wire::MessageHead head;
  if (Status s = destination(wr.dest, to, head); !s) return s;
  head.flags = wr.has_imm ? wire::kMessageData : 0;
  head.length = Wild(static_cast<uint16_t>(wr.len - wish_.prefix_bytes));
  head.data = wr.has_imm ? wr.imm : 0;
  std::array<std::byte, wire::kMessageHeaderBytes> header;
  wire::encode(head, header);
  static_assert(link::Datagrams::kMostPieces > qp::kIovLimit);
  std::array<iovec, qp::kIovLimit + 1> pieces;
  size_t count = 0;
  pieces[count++] = {header.data(), header.size()};
  each_iov_piece(wr.iov, wr.iov_count, wish_.prefix_bytes, head.length.unchecked(),
                 [&](std::byte* piece, size_t n) {
                   if (n != 0) pieces[count++] = {piece, n};
                 });
  const Status s = end_.send(address_, to, {pieces.data(), count});
  if (!s) return s;
  if (wr.completion == qp::kEntry) port_.tx_cq->push({.context = wr.context, .flags = wr.flags});
  if (port_.send_counter != nullptr) port_.send_counter->add(1);
  return {};
}

// --- receiving ---

// Receives name a peer by the lowest index that it has.
qp::RecvWr DatagramEndpoint::canonical(const qp::RecvWr& wr) const noexcept {
  qp::RecvWr same = wr;
  if (directed_ && wr.source != qp::kAnySource && addresses_.receives_look())
    same.source = addresses_.receive_from(wr.source);
  return same;
}

void DatagramEndpoint::learn(uint64_t index) noexcept {
  const Address* address = addresses_.find(index);
  assert(address != nullptr);
  const uint64_t before = addresses_.index_of(*address, index);
  if (before > index && before != qp::kNoSource) receives_.rename_source(before, index);
}

void DatagramEndpoint::forget(uint64_t index) noexcept {
  const Address* address = addresses_.find(index);
  const uint64_t now = address != nullptr ? addresses_.index_of(*address, index) : qp::kNoSource;
  if (now != qp::kNoSource) receives_.rename_source(index, now);
}

Status DatagramEndpoint::recv(const qp::RecvWr& wr) noexcept {
  end_.on_receive_posted();
  return receives_.recv(canonical(wr));
}

Status DatagramEndpoint::recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept {
  end_.on_receive_posted();
  return receives_.recv_multi(canonical(wr), least_room);
}

bool DatagramEndpoint::poll(uint64_t) noexcept {
  return (wish_.receives ? end_.receive(receives_.room()) : end_.receive_in_vain()) != 0;
}

uint64_t DatagramEndpoint::source_of(const Address& from) noexcept {
  if (last_version_ != addresses_.version() || last_from_ != from) {
    bool may_come = false;
    last_from_ = from;
    last_source_ = addresses_.source_of(from, may_come);
    // of a stranger whom another process may be about to insert, each datagram asks again
    last_version_ = may_come ? uint64_t{0} : addresses_.version();
  }
  return last_source_;
}

bool DatagramEndpoint::is_for_us(const link::Datagram& datagram,
                                 const wire::MessageHead& head) const noexcept {
  if (!datagram.to_group) return head.group.unchecked() == 0;
  return head.group.unchecked() == wire::group_tag(datagram.to) &&
         groups_.receives_at(datagram.to, head.group_port.unchecked());
}

void DatagramEndpoint::on_datagram(const link::Datagram& datagram) noexcept {
  const auto head = wire::decode_message_datagram(datagram.bytes);
  if (!head) {
    ++drops_.malformed;
    return;
  }
  if (!is_for_us(datagram, head.value())) {
    ++drops_.not_for_us;
    return;
  }
  if (!wish_.receives || end_.is_dropping()) {
    ++drops_.no_receive;
    return;
  }
  msg::DatagramMessage message;
  message.payload = datagram.bytes.subspan(wire::kMessageHeaderBytes);
  if ((head.value().flags & wire::kMessageData) != 0) {
    message.beside = qp::Beside::imm;
    message.imm = head.value().data;
  }
  if (tells_sources_) {
    message.source = source_of(datagram.from);
    message.reported = addresses_.reported(message.source);
  }
  if (datagram.to_group) message.flags = wish_.group_flag;
  if (!receives_.take(message)) ++drops_.no_receive;
}

}  // namespace aperture::nic
