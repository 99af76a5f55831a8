// Invalidations by the peer: see invalidation_responder.hpp.
#include "qp/invalidation_responder.hpp"

#include "base/log.hpp"
#include "protect/wording.hpp"

namespace aperture::qp {

using protect::Denial;

bool InvalidationResponder::on_invalidate(const wire::SoundHead& head) noexcept {
  if (!core_.lane->response_tx.room(1)) return execution_.wait_for_peer();
  if (core_.lane.may_execute() == transport::ClaimVerdict::wait) return execution_.wait_for_peer();
  const protect::AccessAsk ask = execution_.ask(head.word(), {}, {}, protect::Rights::none, {});
  const Denial denial = core_.port.keys.revocation().invalidate(ask);
  last_key_ = head.word().unchecked();  // compared
  last_ = denial == Denial::none ? Last::done : Last::refused;
  if (denial == Denial::none) return true;
  execution_.answer_nak(denial);
  if (log_level() < LogLevel::warn) return true;
  const protect::Wording& wording = *core_.port.wording;
  try {
    APERTURE_WARN(
        "from %s: %s", core_.remote.print().c_str(),
        protect::explain_invalidation(core_.port.keys.access(), ask, denial, wording).c_str());
  } catch (...) {
    APERTURE_WARN("a peer's invalidation was refused: %s", protect::rule(wording, denial));
  }
  return true;
}

bool InvalidationResponder::precedes(uint64_t key, bool& is_dropped) noexcept {
  assert(core_.lane);
  if (last_ == Last::none || key != last_key_) {
    core_.break_protocol("a message after an invalidation that was not asked for");
    return false;
  }
  is_dropped = last_ == Last::refused;
  assert(is_dropped || last_ == Last::done);
  return true;
}

}  // namespace aperture::qp
