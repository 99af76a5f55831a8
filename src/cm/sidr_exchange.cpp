// Questions and their answers: see sidr_exchange.hpp.
#include "cm/sidr_exchange.hpp"

#include <cassert>
#include <cerrno>

#include "base/random.hpp"
#include "cm/params_on_wire.hpp"

namespace aperture::cm {

// ---- what we say --------------------------------------------------------------------------------

Result<wire::CmPacket> SidrExchange::request(const Params& params) noexcept {
  assert(core_.life.allows(Input::ask));
  wire::SidrReq req;
  if (!copy_data(params.private_data(), req.data)) return Errc::too_big;
  request_id_ = random_u64();
  req.request_id = Wild(request_id_);
  return wire::encode(req);
}

Status SidrExchange::accept(const Params& params) noexcept {
  assert(state() == State::sidr_received);
  if (params.data_bytes > wire::kSidrRepPrivateBytes) return Errc::too_big;
  answer(kSidrOk, params);
  core_.life.step(Input::accept);
  assert(state() == State::sidr_done);
  return {};
}

Status SidrExchange::reject(uint32_t, std::span<const uint8_t> data) noexcept {
  assert(state() == State::sidr_received);
  if (data.size() > wire::kSidrRepPrivateBytes) return Errc::too_big;
  Params params;
  params.data_bytes = static_cast<uint8_t>(data.size());
  std::copy(data.begin(), data.end(), params.data.begin());
  answer(kSidrReject, params);
  core_.life.step(Input::reject);
  assert(state() == State::over);
  return {};
}

void SidrExchange::end() noexcept {
  if (state() == State::sidr_received) answer(kSidrReject, {});
}

// Who asked may have gone.
void SidrExchange::answer(uint32_t status, const Params& params) noexcept {
  assert(state() == State::sidr_received && params.data_bytes <= wire::kSidrRepPrivateBytes);
  wire::SidrRep rep;
  rep.request_id = Wild(request_id_);
  rep.status = Wild(status);
  if (status == kSidrOk) {
    rep.qpn = Wild(params.qpn);
    rep.qkey = Wild(params.qkey);
    rep.ece = on_wire(params.ece);
  }
  copy_data(params.private_data(), rep.data);
  core_.talk.say_last(wire::encode(rep));
  assert(!core_.talk.is_open());
}

// ---- what the peer says, or does not ------------------------------------------------------------

void SidrExchange::become_asked(std::shared_ptr<Connection> connection,
                                uint64_t request_id) noexcept {
  assert(core_.binding.remote() && !core_.talk.is_open());
  request_id_ = request_id;
  core_.life.begin_at(State::sidr_received);
  core_.talk.adopt(std::move(connection));
}

void SidrExchange::on_message(wire::CmKind kind, Connection::Bytes bytes) noexcept {
  if (kind == wire::CmKind::sidr_rep && state() == State::sidr_sent) {
    auto rep = wire::decode_sidr_rep(bytes);
    if (rep.ok() && rep->request_id.unchecked() == request_id_) return on_rep(*rep);
  }
  break_off();
}

void SidrExchange::on_rep(const wire::SidrRep& rep) noexcept {
  core_.talk.close();
  const uint32_t status = rep.status.unchecked();  // 8 bits, for the application to see
  if (status != kSidrOk) {
    core_.life.step(Input::rej);
    assert(state() == State::over);
    return core_.life.emit(EventKind::unreachable, static_cast<int>(status));
  }
  core_.life.step(Input::rep);
  assert(state() == State::sidr_done);
  const Params params = params_of(rep);
  core_.agreed.remote_qpn = params.qpn;
  core_.life.emit(EventKind::established, 0, &params);
}

void SidrExchange::on_lost() noexcept {
  assert(!core_.talk.is_open());
  if (state() == State::sidr_sent) core_.talk.ask_again_in(core_.timeouts.ask_again_ns);
}

void SidrExchange::on_no_peer(Errc why) noexcept {
  assert(state() == State::sidr_sent && !core_.talk.is_open());
  const bool refused = why == Errc::refused || why == Errc::access_denied;
  core_.life.step(refused ? Input::rej : Input::expired);
  assert(state() == State::over);
  core_.life.emit(EventKind::unreachable,
                  refused ? static_cast<int>(kSidrUnsupported) : -ETIMEDOUT);
}

void SidrExchange::on_expired([[maybe_unused]] State before) noexcept {
  assert(before == State::sidr_sent && state() == State::over);
  core_.talk.close();
  core_.life.emit(EventKind::unreachable, -ETIMEDOUT);
}

}  // namespace aperture::cm
