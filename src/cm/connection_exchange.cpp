// What each side of a connection says, and what it makes of what the other one says or does not:
// see connection_exchange.hpp.
#include "cm/connection_exchange.hpp"

#include <cassert>
#include <cerrno>

#include "base/random.hpp"
#include "cm/params_on_wire.hpp"

namespace aperture::cm {

namespace {

constexpr uint32_t kRejTimeout = 4;

uint32_t random_psn() noexcept {
  return static_cast<uint32_t>(random_u64()) & wire::kMax24Bits;
}

}  // namespace

// ---- what we say --------------------------------------------------------------------------------

Result<wire::CmPacket> ConnectionExchange::request(const Params& params) noexcept {
  assert(core_.life.allows(Input::connect));
  if (params.qpn > wire::kMax24Bits || params.ece.vendor > wire::kMax24Bits) return Errc::invalid;
  wire::Req req;
  if (!copy_data(params.private_data(), req.data)) return Errc::too_big;
  put(params, req);
  req.source = *core_.binding.local();
  req.destination = *core_.binding.remote();
  Agreed& agreed = core_.agreed;
  agreed.rq_psn = random_psn();
  req.psn = Wild(agreed.rq_psn);
  agreed.responder_resources = params.responder_resources;
  agreed.initiator_depth = params.initiator_depth;
  agreed.retry_count = std::min(params.retry_count, wire::kMaxRetries);
  agreed.rnr_retry_count = std::min(params.rnr_retry_count, wire::kMaxRetries);
  return wire::encode(req);
}

Status ConnectionExchange::accept(const Params& params) noexcept {
  assert(core_.life.allows(Input::accept));
  wire::Rep rep;
  if (!copy_data(params.private_data(), rep.data)) return Errc::too_big;
  if (state() == State::abandoned) {
    core_.life.step(Input::accept);
    core_.life.emit(EventKind::unreachable, -ETIMEDOUT);
    return {};
  }
  assert(state() == State::req_received && core_.talk.is_open());
  put(params, rep);
  rep.psn = Wild(core_.agreed.rq_psn);
  core_.agreed.responder_resources = params.responder_resources;
  core_.agreed.initiator_depth = params.initiator_depth;
  core_.life.step(Input::accept);
  core_.life.wait_at_most(core_.timeouts.answer_ns);
  core_.talk.say(wire::encode(rep));
  return {};
}

void ConnectionExchange::establish() noexcept {
  assert(state() == State::rep_received);
  core_.life.step(Input::establish);
  assert(core_.talk.is_open());
  core_.talk.say(wire::encode_bare(wire::CmKind::rtu));
}

Status ConnectionExchange::reject(uint32_t reason, std::span<const uint8_t> data) noexcept {
  assert(core_.life.allows(Input::reject));
  if (data.size() > wire::kRejPrivateBytes) return Errc::too_big;
  say_rej(reason, data);
  core_.life.step(Input::reject);
  assert(state() == State::over && !core_.talk.is_open());
  return {};
}

void ConnectionExchange::say_rej(uint32_t reason, std::span<const uint8_t> data) noexcept {
  wire::Rej rej;
  rej.reason = Wild(reason);
  copy_data(data, rej.data);
  core_.talk.say_last(wire::encode(rej));
}

void ConnectionExchange::disconnect(State before) noexcept {
  assert(core_.life.allows(Input::disconnect));
  if (before == State::dreq_received) enter_timewait();
  if (before == State::established) {
    assert(state() == State::dreq_sent && core_.talk.is_open());
    core_.life.wait_at_most(core_.timeouts.disconnect_ns);
    core_.talk.say(wire::encode_bare(wire::CmKind::dreq));
  }
}

void ConnectionExchange::enter_timewait() noexcept {
  assert(state() == State::timewait && !core_.talk.is_open());
  core_.life.wait_at_most(core_.timeouts.timewait_ns);
}

void ConnectionExchange::end() noexcept {
  switch (state()) {
    case State::req_sent:
    case State::req_received:
    case State::rep_sent:
    case State::rep_received: return say_rej(kRejConsumer, {});
    case State::established: return core_.talk.say_last(wire::encode_bare(wire::CmKind::dreq));
    case State::dreq_sent: return core_.talk.part();
    default: return;
  }
}

// ---- what the peer says -------------------------------------------------------------------------

void ConnectionExchange::become_requested(std::shared_ptr<Connection> connection,
                                          const Params& params, Wild<uint32_t> psn) noexcept {
  assert(core_.binding.remote() && !core_.talk.is_open());
  core_.binding.add_route();
  core_.agreed.rq_psn = random_psn();
  agree(params, psn);
  core_.agreed.retry_count = params.retry_count;
  core_.life.begin_at(State::req_received);
  core_.talk.adopt(std::move(connection));
  core_.talk.say(wire::encode_bare(wire::CmKind::mra));
}

// What the peer has said of its queue pair.
void ConnectionExchange::agree(const Params& peers, Wild<uint32_t> psn) noexcept {
  Agreed& agreed = core_.agreed;
  agreed.remote_qpn = peers.qpn;
  agreed.sq_psn = psn.unchecked();  // 24 bits, for the application to see
  agreed.responder_resources = peers.responder_resources;
  agreed.initiator_depth = peers.initiator_depth;
  agreed.rnr_retry_count = peers.rnr_retry_count;
  assert(agreed.remote_qpn <= wire::kMax24Bits && agreed.sq_psn <= wire::kMax24Bits);
}

void ConnectionExchange::on_message(wire::CmKind kind, Connection::Bytes bytes) noexcept {
  switch (kind) {
    case wire::CmKind::mra:
      if (state() != State::req_sent) break;
      answered_by_cm_ = true;
      return core_.life.wait_at_most(core_.timeouts.answer_ns);
    case wire::CmKind::rep:
      if (state() != State::req_sent) break;
      if (auto rep = wire::decode_rep(bytes)) return on_rep(*rep);
      break;
    case wire::CmKind::rej:
      if (!core_.life.allows(Input::rej)) break;
      if (auto rej = wire::decode_rej(bytes)) return on_rej(*rej);
      break;
    case wire::CmKind::rtu: {
      const bool news = state() == State::rep_sent;
      if (!core_.life.step(Input::rtu)) break;
      if (news) core_.life.emit(EventKind::established);
      return;
    }
    case wire::CmKind::dreq:
      if (core_.life.allows(Input::dreq)) return on_dreq();
      break;
    case wire::CmKind::drep:
      if (!core_.life.step(Input::drep)) break;
      core_.talk.close();
      core_.life.emit(EventKind::disconnected);
      return enter_timewait();
    case wire::CmKind::req:
    case wire::CmKind::sidr_req:
    case wire::CmKind::sidr_rep: break;
  }
  break_off();
}

void ConnectionExchange::on_rep(const wire::Rep& rep) noexcept {
  core_.life.step(Input::rep);
  assert(state() == State::rep_received && core_.talk.is_open());
  const Params params = params_of(rep);
  agree(params, rep.psn);
  core_.life.emit(EventKind::connect_response, 0, &params);
}

void ConnectionExchange::on_rej(const wire::Rej& rej) noexcept {
  core_.talk.close();
  core_.life.step(Input::rej);
  assert(state() == State::over || state() == State::abandoned);
  if (state() != State::over) return;  // abandoned: accept will tell
  const Params params = params_of(rej);
  core_.life.emit(EventKind::rejected, static_cast<int>(rej.reason.unchecked()), &params);
}

void ConnectionExchange::on_dreq() noexcept {
  const bool crossing = state() == State::dreq_sent;
  core_.life.step(Input::dreq);
  assert(state() == (crossing ? State::timewait : State::dreq_received));
  // answered at once, not when the application gets round to it: the other side waits
  core_.talk.say_last(wire::encode_bare(wire::CmKind::drep));
  core_.life.emit(EventKind::disconnected);
  if (crossing) enter_timewait();
}

// ---- what does not come -------------------------------------------------------------------------

void ConnectionExchange::on_lost() noexcept {
  assert(!core_.talk.is_open());
  Life& life = core_.life;
  const State before = state();
  if (!life.step(Input::lost)) return;
  switch (before) {
    case State::req_sent:
      // closed without a word: whatever listens there is no connection manager
      return life.emit(EventKind::rejected,
                       static_cast<int>(answered_by_cm_ ? kRejConsumer : kRejInvalidServiceId));
    case State::rep_sent:
    case State::rep_received: return life.emit(EventKind::rejected, static_cast<int>(kRejConsumer));
    case State::established: return life.emit(EventKind::disconnected);
    case State::dreq_sent: life.emit(EventKind::disconnected); return enter_timewait();
    default: return;
  }
}

void ConnectionExchange::on_no_peer(Errc why) noexcept {
  assert(state() == State::req_sent && !core_.talk.is_open());
  const bool refused = why == Errc::refused || why == Errc::access_denied;
  core_.life.step(refused ? Input::rej : Input::expired);
  assert(state() == State::over);
  if (!refused) return core_.life.emit(EventKind::unreachable, -ETIMEDOUT);
  core_.life.emit(EventKind::rejected, static_cast<int>(kRejInvalidServiceId));
}

void ConnectionExchange::on_expired(State before) noexcept {
  switch (before) {
    case State::req_sent:
    case State::rep_sent:
      say_rej(kRejTimeout, {});
      return core_.life.emit(EventKind::unreachable, -ETIMEDOUT);
    case State::dreq_sent:
      core_.talk.close();
      core_.life.emit(EventKind::disconnected, -ETIMEDOUT);
      return enter_timewait();
    case State::timewait: return core_.life.emit(EventKind::timewait_exit);
    default: return;
  }
}

}  // namespace aperture::cm
