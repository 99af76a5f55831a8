// Messages that were there before their receives: see core.hpp.
#include "msg/core.hpp"

#include <algorithm>
#include <cassert>

#include "base/iov.hpp"

namespace aperture::msg {

void MatchCore::begin(qp::Qp& qp, const qp::Arrival& offer, Receive& r) noexcept {
  assert(r.kind == Receive::Kind::single);
  const Status s = receives.begin(qp, offer, r, std::min(r.msg_len, r.len));
  if (!s) receives.end(r, s.error());
}

Status MatchCore::take(Unexpected& u, const qp::RecvWr& wr) noexcept {
  if (shared) [[unlikely]]
    host.completes_at(*u.port);
  if ((wr.completion & qp::kEntry) != 0 && !port.rx_cq->has_room()) return Errc::again;
  Receive* r = receives.take();
  if (r == nullptr) return Errc::again;
  r->fill(wr);
  r->meet(u, source_to_report(u));
  early.remove(u);
  if (u.qp != nullptr) {
    qp::Qp& qp = *u.qp;
    const qp::Arrival offer = u.offer;
    drop(u);
    begin(qp, offer, *r);
    return {};
  }
  scatter(r->iov, r->iov_count, 0, u.bytes, std::min(u.len, r->len));
  drop(u);
  receives.deliver(*r);
  return {};
}

void MatchCore::fail_claim(Unexpected& u, const qp::RecvWr& wr) noexcept {
  assert(u.claimed && u.lost && u.qp == nullptr);
  qp::CompletionError e;
  e.entry = {.context = wr.context,
             .flags = wr.flags,
             .buf = wr.iov_count > 0 ? wr.iov[0].iov_base : nullptr,
             .tag = u.tag,
             .source = source_to_report(u)};
  e.err = Errc::peer_lost;
  early.remove(u);
  drop(u);
  port.fail_receive(std::move(e));
}

void MatchCore::complete_look(const Unexpected& u, const qp::RecvWr& wr) noexcept {
  port.rx_cq->push({wr.context, wr.flags | port.flag_of(u.beside), u.len, nullptr, u.imm, u.tag,
                    source_to_report(u)});
}

void MatchCore::drop(Unexpected& u) noexcept {
  early.drop(u);
  weigh_pressure();
}

void MatchCore::discard(Unexpected& u) noexcept {
  early.remove(u);
  if (u.qp != nullptr) u.qp->drop_offer(u.offer.offer_id);
  drop(u);
}

void MatchCore::weigh_pressure() noexcept {
  const size_t limit = pressure ? kPressureBytes / 2 : kPressureBytes;
  if (pressure == (early.bytes() > limit)) return;
  pressure = !pressure;
  host.set_pressure(pressure);
}

}  // namespace aperture::msg
