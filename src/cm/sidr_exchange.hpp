// How a service id is resolved, for datagram ids: SIDR REQ and SIDR REP. IBTA volume 1, 12.11.
//
// The control thread's own; see exchange.hpp. Invariants: an answer names the question that it
// answers, and one that names another is none; a question is answered once, after which nothing is
// left of its connection; who asked and was lost asks again while its time lasts.
#pragma once

#include "cm/exchange.hpp"

namespace aperture::cm {

class SidrExchange final : public Exchange {
 public:
  using Exchange::Exchange;

  // A SIDR REQ that came over that connection, to an id that is bound to its addresses.
  void become_asked(std::shared_ptr<Connection> connection, uint64_t request_id) noexcept;

  Result<wire::CmPacket> request(const Params& params) noexcept override;
  uint64_t answer_ns() const noexcept override { return core_.timeouts.sidr_ns; }
  Status accept(const Params& params) noexcept override;
  Status reject(uint32_t reason, std::span<const uint8_t> data) noexcept override;
  void end() noexcept override;

  void on_message(wire::CmKind kind, Connection::Bytes bytes) noexcept override;
  void on_lost() noexcept override;
  void on_no_peer(Errc why) noexcept override;
  void on_expired(State before) noexcept override;

 private:
  void on_rep(const wire::SidrRep& rep) noexcept;
  void answer(uint32_t status, const Params& params) noexcept;

  uint64_t request_id_ = 0;  // of the question, ours or the peer's
};

}  // namespace aperture::cm
