// A shared receive context: one matching for the messages of several connected endpoints.
// fi_endpoint(3), "SHARED CONTEXTS".
//
// Guarded by its engine's lock. Receives are posted here and complete at the endpoint that the
// message came to: in the completion queue and the counter of its port. It outlives its endpoints.
#pragma once

#include <vector>

#include "msg/matcher.hpp"
#include "nic/endpoint.hpp"

namespace aperture::nic {

class SharedReceive final : public Endpoint, public qp::MessageSink, private msg::Matcher::Host {
 public:
  // An endpoint whose messages come here, and its queue pairs.
  class Member {
   public:
    virtual ~Member() = default;
    virtual qp::Port& port() noexcept = 0;
    virtual void set_pressure_of(bool on) noexcept = 0;
  };

  // The flags as in EndpointOptions. By exception std::bad_alloc.
  SharedReceive(Engine& engine, size_t rx_size, uint64_t imm_flag, uint64_t invalidated_flag = 0);
  ~SharedReceive() override;

  Status add(Member& member) noexcept;   // Errors: no_memory
  void remove(Member& member) noexcept;  // what came to it and was not received goes with it
  msg::Matcher& receives() noexcept { return matcher_; }

  const Address& address() const noexcept override { return no_address_; }
  Status send(const qp::SendWr&) noexcept override { return Errc::not_supported; }
  Status write(const qp::RmaWr&) noexcept override { return Errc::not_supported; }
  Status read(const qp::RmaWr&) noexcept override { return Errc::not_supported; }
  Status atomic(const qp::AtomicWr&) noexcept override { return Errc::not_supported; }
  Status recv(const qp::RecvWr& wr) noexcept override { return matcher_.recv(wr); }
  Status recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept override {
    return matcher_.recv_multi(wr, least_room);
  }
  Status probe(const msg::Probe& probe) noexcept override;
  Status cancel(void* context) noexcept override { return matcher_.cancel(context); }
  void forget(uint64_t) noexcept override {}
  bool has_pending() const noexcept override { return false; }

  bool on_message(qp::Qp& qp, const qp::Arrival& arrival) noexcept override;
  bool on_line(qp::Qp& qp, wire::Head head, const std::byte* body) noexcept override;
  void on_received(qp::Qp& qp, void* cookie, Errc err) noexcept override;

 private:
  uint64_t source_of(qp::Qp&) noexcept override { return qp::kNoSource; }
  void set_pressure(bool on) noexcept override;
  void completes_at(qp::Port& port) noexcept override;

  Engine& engine_;
  const Address no_address_{};
  qp::Port port_;  // a stand-in: its receive side is that of the endpoint whose turn it is
  msg::Matcher matcher_;
  std::vector<Member*> members_;
};

}  // namespace aperture::nic
