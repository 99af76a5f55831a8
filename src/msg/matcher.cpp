// Matching: see matcher.hpp.
#include "msg/matcher.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/copy.hpp"
#include "base/invariant.hpp"

namespace aperture::msg {

using qp::Arrival;
using qp::Qp;
using qp::RecvWr;

Matcher::Matcher(qp::Port& port, Host& host, size_t planned_receives, bool directed,
                 bool report_source, bool shared) noexcept
    : core_(port, host, planned_receives, directed, report_source, shared) {}

Status Matcher::recv(const RecvWr& wr) noexcept {
  if (!core_.early.empty(wr.tagged)) {
    if (Unexpected* u = core_.early.find(wr)) return core_.take(*u, wr);
  }
  return core_.receives.post(wr) != nullptr ? Status{} : Status{Errc::again};
}

// ---- messages that come -------------------------------------------------------------------------

bool Matcher::on_message(Qp& qp, const Arrival& a) noexcept {
  Receives& receives = core_.receives;
  Receive* r = receives.find(a, core_.source_of(qp), core_.key_of(qp));
  if (r == nullptr) return keep(qp, a);
  if (r->kind != Receive::Kind::single) [[unlikely]]
    return r->kind == Receive::Kind::multi ? multi_.on_message(qp, a, *r)
                                           : shown_.on_message(qp, a, *r);
  if ((r->completion & qp::kEntry) != 0 && !core_.port.rx_cq->has_room()) return false;
  receives.unpost(*r);
  r->meet(a, core_.source_to_report(qp));
  if (a.where == Arrival::Where::offered) {
    core_.begin(qp, a, *r);
    return true;
  }
  const uint64_t n = std::min(a.len, r->len);
  if (n > 0) a.scatter_to(r->iov, r->iov_count, n);
  receives.deliver(*r);
  return true;
}

bool Matcher::keep(Qp& qp, const Arrival& a) noexcept {
  const bool kept = core_.early.keep(qp, a, core_.source_to_keep(qp));
  core_.weigh_pressure();
  return kept;
}

// The oldest receive of the book matches and is a plain one: everything in one go.
bool Matcher::on_line(Qp& qp, wire::SoundHead head, const std::byte* body) noexcept {
  const bool tagged = head.has(wire::kTagged);
  const uint64_t tag = head.word().unchecked();  // matched
  Receive* r = core_.receives.oldest(tagged);
  if (r == nullptr || !r->plain || head.len() > r->len ||
      (tagged && !tags_match(tag, r->tag, r->ignore)) ||
      (core_.directed && r->source != qp::kAnySource) || !core_.port.rx_cq->has_room())
      [[unlikely]] {
    return on_message(qp, qp::arrival_of_line(head, body));
  }
  APERTURE_DEBUG_ASSERT(r->kind == Receive::Kind::single && r->iov_count == 1);
  core_.receives.unpost(*r);
  uint64_t imm = 0;
  uint64_t flags = r->flags;
  body += wire::kHeadBytes;
  if (head.has(wire::kImm)) {
    std::memcpy(&imm, body, sizeof imm);
    body += sizeof imm;
    flags |= core_.port.imm_flag();
  }
  copy_short(r->iov[0].iov_base, body, head.len());
  const uint64_t source = core_.source_to_report(qp);
  core_.port.rx_cq->push({r->context, flags, head.len(), r->iov[0].iov_base, imm, tag, source});
  if (core_.port.recv_counter != nullptr) core_.port.recv_counter->add(1);
  core_.receives.give(*r);
  return true;
}

void Matcher::on_received(Qp&, void* cookie, Errc err) noexcept {
  Receive& r = *static_cast<Receive*>(cookie);
  assert(r.kind != Receive::Kind::standing);
  core_.receives.arrive(r);
  if (r.kind == Receive::Kind::single) return core_.receives.end(r, err);
  if (r.kind == Receive::Kind::multi) return multi_.on_received(r, err);
  shown_.on_received(r, err);
}

// ---- looks at what is there ---------------------------------------------------------------------

Status Matcher::probe(const Probe& probe) noexcept {
  using Action = Probe::Action;
  qp::Port& port = core_.port;
  if (probe.action == Action::show) {  // of an endpoint's own matching
    if (port.rx_cq == nullptr) return Errc::bad_state;
    return port.rx_cq->has_room() ? shown_.show_next(probe.match) : Status(Errc::again);
  }
  const bool claims = probe.action == Action::claim || probe.action == Action::claim_discard;
  UnexpectedMessages& early = core_.early;
  Unexpected* u = claims ? early.find_claimed(probe.match.context) : early.find(probe.match);
  if (core_.shared && u != nullptr) core_.host.completes_at(*u->port);  // which changes `port`
  if (port.rx_cq == nullptr) return Errc::bad_state;
  if (!port.rx_cq->has_room()) return Errc::again;
  if (u == nullptr && claims) return Errc::invalid;
  if (claims && u->shown != nullptr) return shown_.end(*u, probe);
  if (u == nullptr) {
    qp::CompletionError e;
    e.entry.context = probe.match.context;
    e.entry.flags = probe.match.flags;
    e.entry.tag = probe.match.tag;
    e.err = Errc::no_message;
    port.rx_cq->push_error(std::move(e));
    return {};
  }
  if (u->lost && probe.action == Action::claim) {
    core_.fail_claim(*u, probe.match);
    return {};
  }
  if (probe.action == Action::claim) return core_.take(*u, probe.match);
  core_.complete_look(*u, probe.match);
  if (probe.action == Action::peek_claim) {
    early.claim(*u, probe.match.context);
  } else if (probe.action != Action::peek) {
    core_.discard(*u);
  }
  return {};
}

// ---- ends ---------------------------------------------------------------------------------------

void Matcher::forget_source(uint64_t source, uint64_t now) noexcept {
  core_.early.rename_source(source, now);
  if (now != qp::kNoSource) core_.receives.rename_source(source, now);
}

void Matcher::name_source(const Address& remote, uint64_t before, uint64_t source) noexcept {
  core_.early.name_source(remote, source);
  if (before != qp::kNoSource) core_.receives.rename_source(before, source);
}

void Matcher::forget_port(const qp::Port& port) noexcept {
  core_.early.drop_all_to(port);
  core_.weigh_pressure();
}

void Matcher::drop_offers_of(Qp& qp) noexcept {
  core_.early.drop_offers_of(qp);
  core_.early.lose_shown(qp);
  core_.weigh_pressure();
}

void Matcher::on_lost(Qp& qp, Errc why) noexcept {
  drop_offers_of(qp);
  const uint64_t source = core_.source_of(qp);
  if (source != qp::kNoSource) core_.receives.fail_all_from(source, why);
}

}  // namespace aperture::msg
