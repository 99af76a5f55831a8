// How two ids make a connection and end it: REQ, MRA, REP, RTU, REJ, DREQ and DREP. IBTA volume 1,
// 12.9; the statuses that are told are those that a kernel reports.
//
// The control thread's own; see exchange.hpp. Invariants: what was agreed is complete from the
// state on in which the application may ask for it (req_received, rep_received); a DREQ is answered
// at once; every end is told exactly once, and after it nothing of the peer's is heard.
#pragma once

#include "cm/exchange.hpp"

namespace aperture::cm {

class ConnectionExchange final : public Exchange {
 public:
  using Exchange::Exchange;

  // A REQ that came over that connection, to an id that is bound to its addresses.
  void become_requested(std::shared_ptr<Connection> connection, const Params& params,
                        Wild<uint32_t> psn) noexcept;

  Result<wire::CmPacket> request(const Params& params) noexcept override;
  uint64_t answer_ns() const noexcept override { return core_.timeouts.connect_ns; }
  Status accept(const Params& params) noexcept override;
  Status reject(uint32_t reason, std::span<const uint8_t> data) noexcept override;
  // The active side's half of accept: RTU.
  void establish() noexcept;
  // `before`: the state in which it was asked for.
  void disconnect(State before) noexcept;
  void end() noexcept override;

  void on_message(wire::CmKind kind, Connection::Bytes bytes) noexcept override;
  void on_lost() noexcept override;
  void on_no_peer(Errc why) noexcept override;
  void on_expired(State before) noexcept override;

 private:
  void agree(const Params& peers, Wild<uint32_t> psn) noexcept;
  void on_rep(const wire::Rep& rep) noexcept;
  void on_rej(const wire::Rej& rej) noexcept;
  void on_dreq() noexcept;
  void say_rej(uint32_t reason, std::span<const uint8_t> data) noexcept;
  void enter_timewait() noexcept;

  bool answered_by_cm_ = false;  // an MRA came: it is a connection manager that we talk to
};

}  // namespace aperture::cm
