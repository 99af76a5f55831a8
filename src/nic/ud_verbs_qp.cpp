// Datagram queue pairs of the verbs door: see ud_verbs_qp.hpp.
#include "nic/ud_verbs_qp.hpp"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "nic/datagram_sockets.hpp"
#include "nic/host_identity.hpp"
#include "nic/qp_numbers.hpp"

namespace aperture::nic {

Result<std::unique_ptr<VerbsQp>> UdVerbsQp::create(Engine& engine, ib::QpSpec spec) noexcept {
  if (engine.life().is_over()) return Errc::not_supported;
  try {
    const std::vector<Address> ips = queue_pair_ips();
    std::vector<Address> offered;
    std::copy_if(ips.begin(), ips.end(), std::back_inserter(offered), serves_other_hosts);
    auto datagrams = open_datagrams(ips, offered);
    if (!datagrams)
      return refuse(datagrams.error(),
                    "a datagram queue pair finds no UDP port that is free on every address: %s",
                    describe(datagrams.error()));
    spec.qpn = qp_number((*datagrams)->port(), 0);
    auto made = std::make_unique<UdVerbsQp>(engine, spec, *std::move(datagrams));
    if (Status s = made->start(); !s) return s.error();
    return std::unique_ptr<VerbsQp>(std::move(made));
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
}

UdVerbsQp::UdVerbsQp(Engine& engine, const ib::QpSpec& spec,
                     std::unique_ptr<link::Datagrams> datagrams)
    : engine_(engine), qp_(spec, std::move(datagrams)) {}

Status UdVerbsQp::start() noexcept {
  const EngineGuard guard(engine_);
  assert(!started_ && qp_.datagrams().wake_fd() >= 0);
  if (Status s = engine_.wakers().watch(qp_.datagrams().wake_fd()); !s) return s;
  const Status s = engine_.add_pollable(qp_, *this);
  if (!s) engine_.wakers().forget(qp_.datagrams().wake_fd());
  started_ = s.ok();
  return s;
}

UdVerbsQp::~UdVerbsQp() {
  const EngineGuard guard(engine_);
  qp_.leave();
  if (!started_) return;
  engine_.remove_pollable(qp_);
  engine_.wakers().forget(qp_.datagrams().wake_fd());
}

Status UdVerbsQp::modify(const ib::QpAttributes& attr, uint32_t mask) noexcept {
  const EngineGuard guard(engine_);
  assert(started_);  // else it was never handed out
  qp_.modify(attr, mask);
  engine_.on_posted();
  return {};
}

Status UdVerbsQp::attach_group(const Address& group, const Address& interface_ip) noexcept {
  const EngineGuard guard(engine_);
  return qp_.attach_group(group, interface_ip);
}

Status UdVerbsQp::detach_group(const Address& group) noexcept {
  const EngineGuard guard(engine_);
  return qp_.detach_group(group);
}

}  // namespace aperture::nic
