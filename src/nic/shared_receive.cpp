// The shared receive context: see shared_receive.hpp.
#include "nic/shared_receive.hpp"

#include <algorithm>
#include <cassert>
#include <new>

namespace aperture::nic {

SharedReceive::SharedReceive(Engine& engine, size_t rx_size, uint64_t imm_flag,
                             uint64_t invalidated_flag)
    : Endpoint(&matcher_, no_addresses()),
      engine_(engine),
      port_(engine.keys(), 1),
      matcher_(port_, *this, rx_size, false, false, true) {
  port_.set_imm_flag(imm_flag);
  port_.set_invalidated_flag(invalidated_flag);
}

SharedReceive::~SharedReceive() {
  const EngineGuard guard(engine_);
  assert(members_.empty());
  matcher_.cancel_all(Errc::canceled);
}

Status SharedReceive::add(Member& member) noexcept {
  assert(std::find(members_.begin(), members_.end(), &member) == members_.end());
  try {
    members_.push_back(&member);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  completes_at(member.port());  // a cancelled receive completes somewhere
  return {};
}

void SharedReceive::remove(Member& member) noexcept {
  if (std::erase(members_, &member) == 0) return;
  matcher_.forget_port(member.port());
  if (!members_.empty()) return completes_at(members_.front()->port());
  port_.rx_cq = nullptr;
  port_.recv_counter = nullptr;
}

Status SharedReceive::probe(const msg::Probe& probe) noexcept {
  return matcher_.probe(probe);
}

void SharedReceive::completes_at(qp::Port& port) noexcept {
  port_.rx_cq = port.rx_cq;
  port_.recv_counter = port.recv_counter;
  port_.release_flag = port.release_flag;
}

bool SharedReceive::on_message(qp::Qp& qp, const qp::Arrival& arrival) noexcept {
  completes_at(qp.port());
  return matcher_.on_message(qp, arrival);
}

bool SharedReceive::on_line(qp::Qp& qp, wire::Head head, const std::byte* body) noexcept {
  completes_at(qp.port());
  return matcher_.on_line(qp, head, body);
}

void SharedReceive::on_received(qp::Qp& qp, void* cookie, Errc err) noexcept {
  completes_at(qp.port());
  matcher_.on_received(qp, cookie, err);
}

void SharedReceive::set_pressure(bool on) noexcept {
  for (Member* member : members_) member->set_pressure_of(on);
}

}  // namespace aperture::nic
