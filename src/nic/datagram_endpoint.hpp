// An unreliable datagram endpoint: a UDP port at one address of this host, posted receives, and
// multicast groups. What the libfabric door wraps as an fid_ep of type FI_EP_DGRAM. fi_endpoint(3),
// fi_cm(3).
//
// At any address but those of loopback other hosts are served.
//
// A send is complete when the network has taken its datagram; nobody answers. Everything that
// arrives is a stranger's: what is no message for this endpoint, or finds no receive, is dropped,
// counted, and changes nothing. Nothing is kept for a receive that will come but what still lies in
// the socket (transport/datagram_end.hpp). Messages between two endpoints are never mixed up, cut
// or repeated by this side; that each arrives, and in which order, is not promised.
//
// The calls of nic/endpoint.hpp are made with the engine's lock held.
#pragma once

#include <memory>

#include "msg/datagram_receives.hpp"
#include "nic/datagram_groups.hpp"
#include "nic/endpoint.hpp"
#include "transport/datagram_end.hpp"
#include "wire/message_datagram.hpp"

namespace aperture::nic {

class DatagramEndpoint final : public Endpoint,
                               public link::Pollable,
                               private link::DatagramSink,
                               private Engine::PollableOwner {
 public:
  static constexpr size_t kMostBytes = wire::kDatagramMtu;  // of a message

  struct Wish {
    bool receives = true;     // false: all that comes is dropped
    size_t prefix_bytes = 0;  // each buffer begins with so many that are not part of the message
    uint64_t group_flag = 0;  // or-ed into Completion::flags of what came through a group
  };

  // Why datagrams were dropped, so often each.
  struct Drops {
    uint64_t malformed = 0;   // no datagram of ours
    uint64_t not_for_us = 0;  // a group that was not joined, or for one where it should be for all
    uint64_t no_receive = 0;
  };

  // The port of options.local, or any. Errors: those of open_datagrams(), not_supported (the
  // process was forked), io.
  static Result<std::unique_ptr<DatagramEndpoint>> create(const EndpointOptions& options,
                                                          const Wish& wish) noexcept;
  // By exception std::bad_alloc.
  DatagramEndpoint(const EndpointOptions& options, const Wish& wish,
                   std::unique_ptr<link::Datagrams> link);
  ~DatagramEndpoint() override;

  DatagramGroups& groups() noexcept { return groups_; }
  const Drops& drops() const noexcept { return drops_; }

  const Address& address() const noexcept override { return address_; }
  // Errors: no_entry (also of a group that was left), access_denied (a group that was joined to
  // receive only), again, bad_buffer, not_supported (a tag, or a wish of delivery).
  Status send(const qp::SendWr& wr) noexcept override;
  Status recv(const qp::RecvWr& wr) noexcept override;
  Status recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept override;
  Status write(const qp::RmaWr&) noexcept override { return Errc::not_supported; }
  Status read(const qp::RmaWr&) noexcept override { return Errc::not_supported; }
  Status atomic(const qp::AtomicWr&) noexcept override { return Errc::not_supported; }
  Status probe(const msg::Probe&) noexcept override { return Errc::not_supported; }
  Status cancel(void* context) noexcept override { return receives_.cancel(context); }
  void learn(uint64_t index) noexcept override;
  void forget(uint64_t index) noexcept override;
  bool has_pending() const noexcept override { return false; }

  // link::Pollable
  bool poll(uint64_t polls) noexcept override;
  Look look() noexcept override { return end_.is_idle() ? Look::nothing : Look::poll; }
  void fall_asleep(uint64_t) noexcept override { end_.fall_asleep(); }
  void wake_up() noexcept override { end_.wake_up(); }
  bool anything_arrived() const noexcept override { return end_.anything_arrived(); }
  bool needs_polling() const noexcept override { return false; }
  bool needs_wind_up() const noexcept override { return false; }

 private:
  Status start() noexcept;
  void wind_up(link::Pollable&) noexcept override {}
  void on_datagram(const link::Datagram& datagram) noexcept override;
  bool is_for_us(const link::Datagram& datagram, const wire::MessageHead& head) const noexcept;
  Status destination(uint64_t dest, Address& to, wire::MessageHead& head) const noexcept;
  qp::RecvWr canonical(const qp::RecvWr& wr) const noexcept;
  uint64_t source_of(const Address& from) noexcept;

  Engine& engine_;
  AddressTable& addresses_;
  const Wish wish_;
  const bool directed_;  // receives name sources
  const bool tells_sources_;
  qp::Port port_;
  msg::DatagramReceives receives_;
  transport::DatagramEnd end_;
  Address address_;
  DatagramGroups groups_;
  Drops drops_;
  bool started_ = false;  // it has its place in the engine
  // who was looked up last in the address table, and what was found there
  Address last_from_;
  uint64_t last_source_ = qp::kNoSource;
  uint64_t last_version_ = 0;
};

}  // namespace aperture::nic
