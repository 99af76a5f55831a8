// An rdma_cm id without the application: the commands that it may be given. rdma_cm(7); IBTA
// volume 1, 12.9 and 12.11.
//
// This is what the rooms above use; the work is in the parts, each with its contract at its head:
//
//   binding.hpp                 port, addresses and route
//   life.hpp                    where it stands in the table (state.hpp), deadlines, events
//   conversation.hpp            the connection to its peer
//   connection_exchange.hpp     what is said over it to make a connection
//   sidr_exchange.hpp           what is said over it to resolve a service id
//   listener.hpp                who comes to a listening id
//
// All of it, construction and destruction too, is the control thread's own. A command is refused
// with bad_state where the table has nothing for it; one that returns an error has not made a step.
// Events are told from within commands and from callbacks; whoever is told must not destroy the id
// in there.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "cm/connection_exchange.hpp"
#include "cm/event.hpp"
#include "cm/sidr_exchange.hpp"
#include "cm/state.hpp"
#include "nic/control_thread.hpp"

namespace aperture::cm {

class Listener;

// What an id is for: rdma_create_id(3). In RDMA_PS_IB it may be either.
struct Service {
  PortSpace space;
  bool datagram;  // resolves a service id instead of making a connection

  constexpr Service(
      PortSpace s) noexcept  // NOLINT(google-explicit-constructor): a port space is one
      : Service(s, s == PortSpace::udp || s == PortSpace::ipoib) {}
  constexpr Service(PortSpace s, bool is_datagram) noexcept : space(s), datagram(is_datagram) {}
};

class Id {
 public:
  // Errors: no_memory.
  static Result<std::unique_ptr<Id>> create(nic::ControlThread& control,
                                            const Service& service) noexcept;
  // The other side is told: a connection ends, a request is rejected.
  ~Id();
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;

  void tell(Life::OnEvent on_event) noexcept { core_.life.tell(std::move(on_event)); }
  Timeouts& timeouts() noexcept { return core_.timeouts; }

  Status set_reuse(bool reuse) noexcept;
  Status set_six_only(bool six_only) noexcept;
  // Errors: bad_state; addr_in_use, addr_not_avail (also: none of the device's GIDs), no_fds,
  // no_memory...
  Status bind(const Address& at) noexcept;
  // addr_resolved follows at once. Errors: as bind; unreachable, invalid (two families).
  Status resolve_addr(const std::optional<Address>& source, const Address& dest) noexcept;
  Status resolve_route() noexcept;
  // So many requests may wait for their owner's attention. Errors: bad_state, no_memory,
  // addr_in_use...
  Status listen(size_t backlog) noexcept;
  // Errors: bad_state, too_big (private data), no_memory (a datagram id; of a connection that finds
  // none `unreachable` is told, as of one that finds no peer), no_fds...
  Status connect(const Params& params) noexcept;
  Status accept(const Params& params) noexcept;
  // The active side's half of accept: RTU.
  Status establish() noexcept;
  Status reject(uint32_t reason, std::span<const uint8_t> data) noexcept;
  Status disconnect() noexcept;
  // Data has come before the RTU. Errors: bad_state; not_connected never: EISCONN is the caller's.
  Status notify_established() noexcept;

  State state() const noexcept { return core_.life.state(); }
  bool is_datagram() const noexcept { return service_.datagram; }
  const Binding& binding() const noexcept { return core_.binding; }
  const Agreed& agreed() const noexcept { return core_.agreed; }

 private:
  friend class Listener;  // makes ids of requests

  Id(nic::ControlThread& control, const Service& service) noexcept;

  nic::ControlThread& control_;
  const Service service_;
  IdCore core_;
  std::optional<ConnectionExchange> connection_;  // one of these two
  std::optional<SidrExchange> resolution_;        //
  Exchange* exchange_ = nullptr;                  // that one
  std::unique_ptr<Listener> listener_;            // while it listens
};

}  // namespace aperture::cm
