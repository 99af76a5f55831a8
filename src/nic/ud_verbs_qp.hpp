// A datagram queue pair of the verbs door, with its port, which is its number, and its place in the
// engine.
//
// A sleeping engine is woken by the control thread, which watches a descriptor that becomes
// readable once per sleep: nothing is watched while the engine is driven. Locks as verbs_nic.hpp
// says.
#pragma once

#include <memory>

#include "ib/ud_qp.hpp"
#include "nic/control_thread.hpp"
#include "nic/verbs_nic.hpp"

namespace aperture::nic {

class UdVerbsQp final : public VerbsQp, private Engine::DrivenOwner {
 public:
  // spec.qpn is filled in. Errors: those of VerbsNic::make_qp().
  static Result<std::unique_ptr<VerbsQp>> create(Engine& engine, ib::QpSpec spec) noexcept;
  // By exception std::bad_alloc.
  UdVerbsQp(Engine& engine, const ib::QpSpec& spec, std::unique_ptr<link::Datagrams> datagrams);
  ~UdVerbsQp() override;

  ib::Qp& qp() noexcept override { return qp_; }
  Status modify(const ib::QpAttributes& attr, uint32_t mask) noexcept override;
  Status attach_group(const Address& group, const Address& interface_ip) noexcept override;
  Status detach_group(const Address& group) noexcept override;

 private:
  Status start() noexcept;
  void on_wake() noexcept;
  void wind_up(link::Driven&) noexcept override {}

  Engine& engine_;
  ib::UdQp qp_;
  bool driven_ = false;
  ControlThread::WatchId watch_ = 0;  // control thread only, once it has started
};

}  // namespace aperture::nic
