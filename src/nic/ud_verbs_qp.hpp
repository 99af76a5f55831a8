// A datagram queue pair of the verbs door, with its port, which is its number, and its place in the
// engine.
//
// Its sockets wake a sleeping engine by themselves: their descriptor is among those that the engine
// sleeps on (Wakers::sleep_fd()), and is armed during the sleep alone. Locks as verbs_nic.hpp says.
#pragma once

#include <memory>

#include "ib/ud_qp.hpp"
#include "nic/verbs_nic.hpp"

namespace aperture::nic {

class UdVerbsQp final : public VerbsQp, private Engine::PollableOwner {
 public:
  // spec.qpn is filled in. Errors: those of VerbsNic::make_qp().
  static Result<std::unique_ptr<VerbsQp>> create(Engine& engine, ib::QpSpec spec) noexcept;
  // By exception std::bad_alloc.
  UdVerbsQp(Engine& engine, const ib::QpSpec& spec, std::unique_ptr<link::Datagrams> datagrams);
  ~UdVerbsQp() override;

  ib::QueuePair& qp() noexcept override { return qp_; }
  Status modify(const ib::QpAttributes& attr, uint32_t mask) noexcept override;
  Status attach_group(const Address& group, const Address& interface_ip) noexcept override;
  Status detach_group(const Address& group) noexcept override;

 private:
  Status start() noexcept;
  void wind_up(link::Pollable&) noexcept override {}

  Engine& engine_;
  ib::UdQp qp_;
  bool started_ = false;  // it has its place in the engine
};

}  // namespace aperture::nic
