// The reliable datagram endpoint behind nic/endpoint.hpp: operations to the addresses of a table
// through the queue pairs of its connections (rdm_connections.hpp), and matching by their sources.
//
// A context of a scalable endpoint is one of these too: it shares its port with the others, and is
// told apart from them by the index of its address.
#pragma once

#include "nic/endpoint.hpp"
#include "nic/matched_port.hpp"
#include "nic/rdm_connections.hpp"
#include "qp/qp.hpp"

namespace aperture::nic {

class RdmEndpoint final : public Endpoint, private msg::Matcher::Host {
 public:
  explicit RdmEndpoint(const EndpointOptions& options);
  ~RdmEndpoint() override;
  Status listen() noexcept;

  const Address& address() const noexcept override { return connections_.address(); }
  Status send(const qp::SendWr& wr) noexcept override;
  Status recv(const qp::RecvWr& wr) noexcept override;
  Status recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept override;
  Status write(const qp::RmaWr& wr) noexcept override;
  Status read(const qp::RmaWr& wr) noexcept override;
  Status atomic(const qp::AtomicWr& wr) noexcept override;
  Status probe(const msg::Probe& probe) noexcept override;
  Status cancel(void* context) noexcept override;
  Status recv_of_group(const qp::RecvWr& wr) noexcept override;
  Status cancel_of_group(void* context) noexcept override;
  void learn(uint64_t index) noexcept override;
  void forget(uint64_t index) noexcept override;
  Result<protect::EndpointId> queue_pair_number(uint64_t index) noexcept override;
  bool has_pending() const noexcept override;

 private:
  uint64_t source_of(qp::Qp& qp) noexcept override;
  uint64_t reported_source_of(qp::Qp& qp) noexcept override;
  uint64_t reported(uint64_t source) noexcept override { return addresses_.reported(source); }
  bool hears(const Address& remote) noexcept override {
    return connections_.all().contains(remote);
  }
  void set_pressure(bool on) noexcept override;

  void look_up_source(qp::Qp& qp) noexcept;
  Result<qp::Qp*> connect(uint64_t name) noexcept;
  uint64_t canonical(uint64_t index) const noexcept;
  void flush() noexcept;

  Engine& engine_;
  AddressTable& addresses_;
  const bool directed_;  // receives name sources
  MatchedPort port_;
  RdmConnections connections_;
};

}  // namespace aperture::nic
