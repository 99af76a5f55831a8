// The reliable datagram endpoint behind nic/endpoint.hpp: queue pairs by address, matching, and the
// handing over of what first contact tells from the control thread to the engine.
//
// Everything is guarded by the engine's lock but ContactEvents, which run on the control thread and
// only post to the engine. A queue pair lives from the first operation to an address (or the peer's
// first contact) until its lane is lost; the next operation makes a new one.
//
// A context of a scalable endpoint is one of these too: it shares its port with the others, and is
// told apart from them by the index of its address.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "msg/group_matching.hpp"
#include "msg/matcher.hpp"
#include "nic/endpoint.hpp"
#include "nic/lane_holder.hpp"
#include "nic/shared_receive.hpp"
#include "qp/qp.hpp"

namespace aperture::nic {

class RdmEndpoint final : public Endpoint,
                          private ContactEvents,
                          private Engine::Owner,
                          private msg::Matcher::Host {
 public:
  explicit RdmEndpoint(const EndpointOptions& options);
  ~RdmEndpoint() override;
  Status listen() noexcept;

  const Address& address() const noexcept override { return address_; }
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
  // Lanes that came while an older queue pair to the same address was not over: what its peer had
  // published is not all executed, or the peer is still inside. In the order in which they came.
  struct NextLife {
    Address remote;
    LaneHolder holder;
    Errc lost;  // ok: it is up
  };

  void on_lane_up(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept override;
  void on_connect_failed(const Address& remote, Errc why) noexcept override;
  void on_lane_down(link::Lane* lane, Errc why) noexcept override;
  void wind_up(qp::Qp& qp) noexcept override;
  uint64_t source_of(qp::Qp& qp) noexcept override;
  uint64_t reported_source_of(qp::Qp& qp) noexcept override;
  uint64_t reported(uint64_t source) noexcept override { return addresses_.reported(source); }
  void set_pressure(bool on) noexcept override;

  void look_up_source(qp::Qp& qp) noexcept;
  Result<qp::Qp*> connect(uint64_t name) noexcept;
  Result<qp::Qp*> connect_to(const Address& remote) noexcept;
  Result<qp::Qp*> qp_to(const Address& remote) noexcept;
  void adopt(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept;
  std::list<NextLife>::iterator next_life(const Address& remote) noexcept;
  void adopt_later(qp::Qp& old_life, std::unique_ptr<link::Lane> lane) noexcept;
  void fail_connect(const Address& remote, Errc why) noexcept;
  void lose(link::Lane* lane, Errc why) noexcept;
  void drop(qp::Qp& qp, Errc why) noexcept;
  uint64_t canonical(uint64_t index) const noexcept;
  void flush(uint64_t deadline_ns) noexcept;
  bool under_pressure() const noexcept {
    return matcher_->under_pressure() || (groups_ != nullptr && groups_->groups().under_pressure());
  }

  Engine& engine_;
  AddressTable& addresses_;
  Address address_;
  const bool at_open_port_;
  const bool connects_only_;
  const bool directed_;  // receives name sources
  const std::shared_ptr<const Secret> auth_key_;
  bool listening_ = false;
  ListenerId listener_ = 0;
  qp::Port port_;
  std::optional<msg::Matcher> own_;              // without a shared receive context
  std::optional<SharedReceive::Member> member_;  // with one
  msg::Matcher* matcher_ = nullptr;              // of either
  std::unique_ptr<msg::GroupMatching> groups_;   // null: it is in none
  std::unordered_map<Address, std::unique_ptr<qp::Qp>, AddressHash> by_remote_;
  std::list<NextLife> next_lives_;
  std::vector<qp::Qp*> by_index_;  // a cache over by_remote_: nullptr is looked up
  std::shared_ptr<bool> alive_;    // false once we are gone, for work posted to the engine
};

}  // namespace aperture::nic
