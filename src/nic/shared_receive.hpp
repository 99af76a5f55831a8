// A shared receive context: one matching for the messages of several endpoints, connected ones and
// reliable datagram ones. fi_endpoint(3), "SHARED CONTEXTS".
//
// Guarded by its engine's lock. Receives are posted here and complete at the endpoint that the
// message came to: in the completion queue and the counter of its port. It outlives its endpoints.
#pragma once

#include <vector>

#include "msg/matcher.hpp"
#include "nic/endpoint.hpp"

namespace aperture::nic {

class SharedReceive final : public Endpoint, private msg::Matcher::Host {
 public:
  struct Options {
    size_t rx_size = 1024;
    uint64_t imm_flag = 0;  // as in EndpointOptions
    uint64_t invalidated_flag = 0;
    bool directed_recv = false;  // its endpoints have one address table
    bool report_source = false;
  };

  // An endpoint whose messages come here, as its queue pairs see it: the sink of its port, from
  // join() to its end. What came to it and was not received goes with it.
  class Member final : public qp::MessageSink {
   public:
    // The port and the host, which are the endpoint's, outlive it.
    Member(SharedReceive& shared, qp::Port& port, msg::Matcher::Host& host) noexcept
        : shared_(shared), port_(port), host_(host) {}
    // With the lock held, if it has joined.
    ~Member() override {
      if (joined_) shared_.remove(*this);
    }
    // Errors: no_memory.
    Status join() noexcept {
      const Status s = shared_.add(*this);
      joined_ = s.ok();
      return s;
    }
    // As msg::Matcher has it, but receives that anybody else may still fill stay posted: when it is
    // the endpoint that goes (Errc::canceled), or while another member hears that peer.
    void on_lost(qp::Qp& qp, Errc why) noexcept;

    bool on_message(qp::Qp& qp, const qp::Arrival& arrival) noexcept override;
    bool on_line(qp::Qp& qp, wire::SoundHead head, const std::byte* body) noexcept override;
    void on_received(qp::Qp& qp, void* cookie, Errc err) noexcept override;
    uint64_t source_to_report(qp::Qp& qp) noexcept override;

   private:
    friend class SharedReceive;
    SharedReceive& shared_;
    qp::Port& port_;
    msg::Matcher::Host& host_;
    bool joined_ = false;
  };

  // By exception std::bad_alloc.
  SharedReceive(Engine& engine, const Options& options);
  ~SharedReceive() override;

  msg::Matcher& receives() noexcept { return matcher_; }
  // Whose queue and counter receives complete in now.
  const qp::Port& completes_now() const noexcept { return port_; }

  const Address& address() const noexcept override { return no_address_; }
  Status send(const qp::SendWr&) noexcept override { return Errc::not_supported; }
  Status write(const qp::RmaWr&) noexcept override { return Errc::not_supported; }
  Status read(const qp::RmaWr&) noexcept override { return Errc::not_supported; }
  Status atomic(const qp::AtomicWr&) noexcept override { return Errc::not_supported; }
  Status recv(const qp::RecvWr& wr) noexcept override { return matcher_.recv(wr); }
  Status recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept override {
    return matcher_.recv_multi(wr, least_room);
  }
  Status probe(const msg::Probe& probe) noexcept override { return matcher_.probe(probe); }
  Status cancel(void* context) noexcept override { return matcher_.cancel(context); }
  void forget(uint64_t) noexcept override {}
  bool has_pending() const noexcept override { return false; }

 private:
  Status add(Member& member) noexcept;
  void remove(Member& member) noexcept;
  void take_turn(Member* member) noexcept;

  uint64_t source_of(qp::Qp& qp) noexcept override;
  uint64_t reported_source_of(qp::Qp& qp) noexcept override;
  uint64_t reported(uint64_t source) noexcept override;
  void set_pressure(bool on) noexcept override;
  void completes_at(qp::Port& port) noexcept override;

  Engine& engine_;
  const Address no_address_{};
  qp::Port port_;  // a stand-in: its receive side is that of the endpoint whose turn it is
  msg::Matcher matcher_;
  std::vector<Member*> members_;
  Member* turn_ = nullptr;  // null: there is none
};

}  // namespace aperture::nic
