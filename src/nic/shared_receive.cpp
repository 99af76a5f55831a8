// The shared receive context: see shared_receive.hpp.
#include "nic/shared_receive.hpp"

#include <algorithm>
#include <cassert>
#include <new>

namespace aperture::nic {

SharedReceive::SharedReceive(Engine& engine, const Options& options)
    : Endpoint(&matcher_, no_addresses()),
      engine_(engine),
      port_(engine.keys(), 1),
      matcher_(port_, *this, options.rx_size, options.directed_recv, options.report_source, true) {
  port_.set_imm_flag(options.imm_flag);
  port_.set_invalidated_flag(options.invalidated_flag);
}

SharedReceive::~SharedReceive() {
  const EngineGuard guard(engine_);
  assert(members_.empty() && turn_ == nullptr);
  matcher_.cancel_all(Errc::canceled);
}

// --- members -------------------------------------------------------------------------------------

Status SharedReceive::add(Member& member) noexcept {
  assert(std::find(members_.begin(), members_.end(), &member) == members_.end());
  try {
    members_.push_back(&member);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  take_turn(&member);  // a cancelled receive completes somewhere
  return {};
}

void SharedReceive::remove(Member& member) noexcept {
  [[maybe_unused]] const size_t removed = std::erase(members_, &member);
  assert(removed == 1);
  matcher_.forget_port(member.port_);
  take_turn(members_.empty() ? nullptr : members_.front());
}

void SharedReceive::take_turn(Member* member) noexcept {
  turn_ = member;
  port_.rx_cq = member != nullptr ? member->port_.rx_cq : nullptr;
  port_.recv_counter = member != nullptr ? member->port_.recv_counter : nullptr;
  port_.release_flag = member != nullptr ? member->port_.release_flag : 0;
}

void SharedReceive::Member::on_lost(qp::Qp& qp, Errc why) noexcept {
  shared_.take_turn(this);
  const auto hears = [&](const Member* m) { return m != this && m->host_.hears(qp.remote()); };
  const bool stay =
      why == Errc::canceled || std::any_of(shared_.members_.begin(), shared_.members_.end(), hears);
  if (stay) return shared_.matcher_.drop_offers_of(qp);
  shared_.matcher_.on_lost(qp, why);
}

// --- what comes to them --------------------------------------------------------------------------

bool SharedReceive::Member::on_message(qp::Qp& qp, const qp::Arrival& arrival) noexcept {
  shared_.take_turn(this);
  return shared_.matcher_.on_message(qp, arrival);
}

bool SharedReceive::Member::on_line(qp::Qp& qp, wire::SoundHead head,
                                    const std::byte* body) noexcept {
  shared_.take_turn(this);
  return shared_.matcher_.on_line(qp, head, body);
}

void SharedReceive::Member::on_received(qp::Qp& qp, void* cookie, Errc err) noexcept {
  shared_.take_turn(this);
  shared_.matcher_.on_received(qp, cookie, err);
}

uint64_t SharedReceive::Member::source_to_report(qp::Qp& qp) noexcept {
  shared_.take_turn(this);
  return shared_.matcher_.source_to_report(qp);
}

// --- what the matching asks ----------------------------------------------------------------------

uint64_t SharedReceive::source_of(qp::Qp& qp) noexcept {
  return turn_ != nullptr ? turn_->host_.source_of(qp) : qp::kNoSource;
}

uint64_t SharedReceive::reported_source_of(qp::Qp& qp) noexcept {
  return turn_ != nullptr ? turn_->host_.reported_source_of(qp) : qp::kNoSource;
}

uint64_t SharedReceive::reported(uint64_t source) noexcept {
  return turn_ != nullptr ? turn_->host_.reported(source) : qp::kNoSource;
}

void SharedReceive::set_pressure(bool on) noexcept {
  for (Member* member : members_) member->host_.set_pressure(on);
}

// All that is kept here came through one of them. The port's sink need not be it: an endpoint that
// may be a member of groups has another in between.
void SharedReceive::completes_at(qp::Port& port) noexcept {
  if (turn_ != nullptr && &turn_->port_ == &port) return;
  const auto at = std::find_if(members_.begin(), members_.end(),
                               [&](const Member* member) { return &member->port_ == &port; });
  assert(at != members_.end());
  take_turn(*at);
}

}  // namespace aperture::nic
