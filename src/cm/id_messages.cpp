// What an id makes of its peer's messages, of their absence, and of the connection's end: see
// id.hpp. The statuses are those that a kernel reports.
#include <cassert>
#include <cerrno>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "cm/farewell.hpp"
#include "cm/id.hpp"
#include "cm/listener.hpp"
#include "cm/params_on_wire.hpp"

namespace aperture::cm {

namespace {

constexpr uint32_t kRejTimeout = 4;
constexpr uint64_t kPauseNs = 10'000'000;  // before a port that did not take us is tried again

}  // namespace

void Id::become_requested(std::shared_ptr<Connection> connection, const Params& params,
                          Wild<uint32_t> psn, const Address& local,
                          const Address& remote) noexcept {
  local_ = local;
  remote_ = remote;
  has_route_ = true;
  agreed_.rq_psn = static_cast<uint32_t>(random_u64()) & wire::kMax24Bits;
  agree(params, psn);
  agreed_.retry_count = params.retry_count;
  state_ = State::req_received;
  adopt(std::move(connection));
  if (!connection_->send(wire::encode_bare(wire::CmKind::mra))) on_lost(Errc::peer_lost);
}

void Id::become_asked(std::shared_ptr<Connection> connection, uint64_t request_id,
                      const Address& local, const Address& remote) noexcept {
  local_ = local;
  remote_ = remote;
  request_id_ = request_id;
  state_ = State::sidr_received;
  adopt(std::move(connection));
}

void Id::adopt(std::shared_ptr<Connection> connection) noexcept {
  assert(connection_ == nullptr && connection != nullptr);
  connection_ = std::move(connection);
  connection_->on_message = [this](wire::CmKind kind, Connection::Bytes bytes) {
    on_message(kind, bytes);
  };
  connection_->on_lost = [this](Errc why) { on_lost(why); };
}

void Id::part() noexcept {
  if (connection_ != nullptr) farewell_.keep(std::move(connection_));
  connection_.reset();
}

void Id::wait_at_most(uint64_t ns) noexcept {
  control_.cancel_timer(timer_);
  timer_ = control_.add_timer(now_ns() + ns, [this] {
    timer_ = 0;
    on_expired();
  });
}

void Id::enter_timewait() noexcept {
  wait_at_most(timeouts_.timewait_ns);
}

void Id::on_not_connected(Errc why) noexcept {
  assert(connection_ == nullptr);
  const bool in_time = now_ns() + kPauseNs <= refused_until_ns_;
  // `again`: it is there, and busy; the time that this state may last ends it
  if (why == Errc::again || (why == Errc::refused && in_time)) return try_again_in(kPauseNs);
  control_.cancel_timer(timer_);
  const bool refused = why == Errc::refused || why == Errc::access_denied;
  step(refused ? Input::rej : Input::expired);
  if (!refused) return emit(EventKind::unreachable, -ETIMEDOUT);
  if (is_datagram()) return emit(EventKind::unreachable, static_cast<int>(kSidrUnsupported));
  emit(EventKind::rejected, static_cast<int>(kRejInvalidServiceId));
}

void Id::on_message(wire::CmKind kind, Connection::Bytes bytes) noexcept {
  switch (kind) {
    case wire::CmKind::mra:
      if (state_ != State::req_sent) break;
      answered_by_cm_ = true;
      return wait_at_most(timeouts_.answer_ns);
    case wire::CmKind::rep:
      if (state_ != State::req_sent) break;
      if (auto rep = wire::decode_rep(bytes)) return on_rep(*rep);
      break;
    case wire::CmKind::rej:
      if (is_datagram() || !after(state_, Input::rej)) break;
      if (auto rej = wire::decode_rej(bytes)) return on_rej(*rej);
      break;
    case wire::CmKind::rtu: {
      const bool news = state_ == State::rep_sent;
      if (!step(Input::rtu)) break;
      if (news) {
        control_.cancel_timer(timer_);
        emit(EventKind::established);
      }
      return;
    }
    case wire::CmKind::dreq:
      if (after(state_, Input::dreq)) return on_dreq();
      break;
    case wire::CmKind::drep:
      if (!step(Input::drep)) break;
      connection_.reset();
      emit(EventKind::disconnected);
      return enter_timewait();
    case wire::CmKind::sidr_rep:
      if (state_ != State::sidr_sent) break;
      if (auto rep = wire::decode_sidr_rep(bytes);
          rep.ok() && rep->request_id.unchecked() == request_id_) {
        return on_sidr_rep(*rep);
      }
      break;
    case wire::CmKind::req:
    case wire::CmKind::sidr_req: break;
  }
  APERTURE_WARN("rdma_cm: %s says what makes no sense now: the connection ends",
                remote_->print().c_str());
  on_lost(Errc::protocol);
}

// What the peer has said of its queue pair.
void Id::agree(const Params& peers, Wild<uint32_t> psn) noexcept {
  agreed_.remote_qpn = peers.qpn;
  agreed_.sq_psn = psn.unchecked();  // 24 bits, for the application to see
  agreed_.responder_resources = peers.responder_resources;
  agreed_.initiator_depth = peers.initiator_depth;
  agreed_.rnr_retry_count = peers.rnr_retry_count;
}

void Id::on_rep(const wire::Rep& rep) noexcept {
  control_.cancel_timer(timer_);
  step(Input::rep);
  assert(state_ == State::rep_received && connection_ != nullptr);
  const Params params = params_of(rep);
  agree(params, rep.psn);
  emit(EventKind::connect_response, 0, &params);
}

void Id::on_rej(const wire::Rej& rej) noexcept {
  control_.cancel_timer(timer_);
  connection_.reset();
  step(Input::rej);
  if (state_ != State::over) return;  // abandoned: accept will tell
  const Params params = params_of(rej);
  emit(EventKind::rejected, static_cast<int>(rej.reason.unchecked()), &params);
}

void Id::on_dreq() noexcept {
  const bool crossing = state_ == State::dreq_sent;
  control_.cancel_timer(timer_);
  step(Input::dreq);
  // answered at once, not when the application gets round to it: the other side waits
  if (connection_->send(wire::encode_bare(wire::CmKind::drep)).ok()) part();
  connection_.reset();
  emit(EventKind::disconnected);
  if (crossing) enter_timewait();
}

void Id::on_lost(Errc) noexcept {
  const State before = state_;
  if (connection_ != nullptr) connection_->close();
  connection_.reset();
  if (before == State::sidr_sent) return try_again_in(timeouts_.ask_again_ns);
  if (!step(Input::lost)) return;
  control_.cancel_timer(timer_);
  switch (before) {
    case State::req_sent:
      // closed without a word: whatever listens there is no connection manager
      return emit(EventKind::rejected,
                  static_cast<int>(answered_by_cm_ ? kRejConsumer : kRejInvalidServiceId));
    case State::rep_sent:
    case State::rep_received: return emit(EventKind::rejected, static_cast<int>(kRejConsumer));
    case State::established: return emit(EventKind::disconnected);
    case State::dreq_sent: emit(EventKind::disconnected); return enter_timewait();
    default: return;
  }
}

void Id::on_expired() noexcept {
  const State before = state_;
  if (!step(Input::expired)) return;
  switch (before) {
    case State::req_sent:
    case State::rep_sent:
      reject_with(kRejTimeout, {});
      return emit(EventKind::unreachable, -ETIMEDOUT);
    case State::sidr_sent: connection_.reset(); return emit(EventKind::unreachable, -ETIMEDOUT);
    case State::dreq_sent:
      connection_.reset();
      emit(EventKind::disconnected, -ETIMEDOUT);
      return enter_timewait();
    case State::timewait: return emit(EventKind::timewait_exit);
    default: return;
  }
}

void Id::on_sidr_rep(const wire::SidrRep& rep) noexcept {
  control_.cancel_timer(timer_);
  connection_->close();
  connection_.reset();
  const uint32_t status = rep.status.unchecked();  // 8 bits, for the application to see
  if (status != kSidrOk) {
    step(Input::rej);
    return emit(EventKind::unreachable, static_cast<int>(status));
  }
  step(Input::rep);
  const Params params = params_of(rep);
  agreed_.remote_qpn = params.qpn;
  emit(EventKind::established, 0, &params);
}

}  // namespace aperture::cm
