// Connected queue pairs of the verbs door: see rc_verbs_qp.hpp.
#include "nic/rc_verbs_qp.hpp"

#include <cassert>
#include <utility>

namespace aperture::nic {

using ib::QpState;

RcVerbsQp::RcVerbsQp(Engine& engine, QpNumbers& numbers, const ib::QpSpec& spec)
    : engine_(engine),
      numbers_(numbers),
      qp_(spec, *this),
      entry_{engine, qp_},
      endpoint_(engine, *this) {
  VerbsQps::add(qp_.qpn(), entry_);
}

Status RcVerbsQp::start() noexcept {
  const EngineGuard guard(engine_);
  assert(!pollables_);
  const Status s = engine_.add_pollable(qp_, *this);
  pollables_ = s.ok();
  return s;
}

RcVerbsQp::~RcVerbsQp() {
  VerbsQps::remove(qp_.qpn());
  until(engine_, [this] { return qp_.end_access(); });
  {
    const EngineGuard guard(engine_);
    endpoint_.ignore_all();  // a lane may be on its way, for which nobody would be there
    qp_.leave();
    if (pollables_) engine_.remove_pollable(qp_);
  }
  endpoint_.close();  // no upcall from here on
  if (early_ != nullptr) endpoint_.give_back(std::move(early_));
  numbers_.give_back(qp_.qpn());
}

Status RcVerbsQp::modify(const ib::QpAttributes& attr, uint32_t mask) noexcept {
  const bool to = (mask & ib::kAttrState) != 0;
  if (to && attr.state == QpState::rtr) {
    if (Status s = expect(attr); !s) return s;
  }
  const bool ends = to && (attr.state == QpState::reset || attr.state == QpState::err);
  if (ends) until(engine_, [this] { return qp_.end_access(); });
  {
    const EngineGuard guard(engine_);
    qp_.modify(attr, mask);
    if (early_ != nullptr) {
      qp_.attach(std::move(early_));
      // the peer counts on polls from now on, and the engine may have been put to sleep before
      if (engine_.sleep().is_asleep()) engine_.wakers().ring();
    }
    engine_.on_posted();
  }
  until(engine_, [this] { return qp_.is_older_access_over(); });
  if (ends) {
    endpoint_.close();
    if (early_ != nullptr) endpoint_.give_back(std::move(early_));
  }
  return {};
}

// The peer may come from now on; that it is not there yet is no error.
Status RcVerbsQp::expect(const ib::QpAttributes& attr) noexcept {
  RcEndpoint::Wish wish;
  wish.local = attr.route.local;
  wish.local.port = ib::port_of(qp_.qpn());
  wish.local.index = ib::index_of(qp_.qpn());
  wish.remote = attr.route.remote;
  wish.remote.port = ib::port_of(attr.dest_qpn);
  wish.remote.index = ib::index_of(attr.dest_qpn);
  if (wish.remote.port == 0 || wish.remote.index == 0) return Errc::invalid;
  wish.domain = qp_.spec().pd;
  return endpoint_.expect(wish);
}

void RcVerbsQp::want_lane() noexcept {
  if (Status s = endpoint_.connect(); !s) qp_.lane_failed(s.error());
}

void RcVerbsQp::give_back(std::unique_ptr<link::Lane> lane) noexcept {
  endpoint_.give_back(std::move(lane));
}

// Its peer has published all of it, and rings no more.
void RcVerbsQp::share_taken() noexcept {
  if (engine_.sleep().is_asleep() && qp_.anything_arrived()) return engine_.wakers().ring();
  engine_.on_posted();
}

void RcVerbsQp::on_lane(std::unique_ptr<link::Lane> lane) noexcept {
  assert(lane != nullptr && early_ == nullptr);
  if (qp_.state() < QpState::rtr) {
    early_ = std::move(lane);
    return;
  }
  qp_.attach(std::move(lane));
}

void RcVerbsQp::on_no_lane(Errc why) noexcept {
  qp_.lane_failed(why);
}

void RcVerbsQp::on_lane_down(Errc why) noexcept {
  if (early_ != nullptr) {
    endpoint_.give_back(std::move(early_));
    return;
  }
  if (why == Errc::canceled) return qp_.break_down();
  qp_.lose();
}

}  // namespace aperture::nic
