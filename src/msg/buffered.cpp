// Messages that are shown, claimed and discarded: see buffered.hpp.
#include "msg/buffered.hpp"

#include <algorithm>
#include <cassert>

#include "msg/matcher.hpp"

namespace aperture::msg {

using qp::Arrival;
using qp::Qp;
using qp::RecvWr;

Status Matcher::show_messages(const BufferedRule& rule) noexcept {
  assert(rule_ == nullptr && rule.least <= rule.limit);
  any_plain_ = receives_.take();
  if (any_plain_ == nullptr) return Errc::no_memory;
  any_plain_->fill({});
  any_plain_->kind = Receive::Kind::buffered;
  any_plain_->context = any_plain_;  // which nobody can cancel
  plain_.push_back(any_plain_);
  rule_ = &rule;
  return {};
}

// ---- showing ------------------------------------------------------------------------------------

bool Matcher::show_arrival(Qp& qp, const Arrival& a, Receive& receive) noexcept {
  if (!port_.rx_cq->has_room()) return false;
  const bool named = directed_ || report_source_;
  Shown* s = early_.keep_to_show(qp, a, named ? host_.source_of(qp) : qp::kNoSource);
  if (s == nullptr) return false;
  if (&receive == any_plain_) {
    s->recv_context = {rule_->receiver, nullptr};
  } else {
    s->recv_context = {nullptr, receive.context};
    posted(a.tagged).remove(&receive);
    receives_.give(&receive);
  }
  begin_to_show(*s);
  weigh_pressure();
  return true;
}

// A receive of a tag, which a message may have come before.
Status Matcher::show_next(const RecvWr& wr) noexcept {
  assert(rule_ != nullptr && wr.tagged && wr.iov_count == 0);
  if (Unexpected* u = early_.find(wr)) {
    Shown* s = early_.keep_to_show(*u);
    if (s == nullptr) return Errc::again;
    s->recv_context = {nullptr, wr.context};
    begin_to_show(*s);
    weigh_pressure();
    return {};
  }
  Receive* r = receives_.take();
  if (r == nullptr) return Errc::again;
  r->fill(wr);
  r->kind = Receive::Kind::buffered;
  posted(true).push_back(r);
  return {};
}

void Matcher::begin_to_show(Shown& s) noexcept {
  const Address from = s.message->remote;
  port_.rx_cq->reserve();
  coming_.push_back(&s);
  if (fetch(s)) return;
  s.ready = true;
  show_in_turn(from);
}

// Fetches what is to be shown of a message on offer. False: there is nothing to wait for; else
// on_fetched() follows, or has been here.
bool Matcher::fetch(Shown& s) noexcept {
  Unexpected& u = *s.message;
  if (u.qp == nullptr) return false;
  const bool whole = u.len <= rule_->limit && !pressure_;
  uint64_t n = whole ? u.len : std::min(rule_->least, u.len);
  std::byte* const to = early_.room_in(u, n);
  // A sender of a tagged message may wait until it is claimed or discarded (FI_MATCH_COMPLETE).
  const bool stays = n < u.len || (u.tagged && u.offer.delivery);
  if (n == 0 && stays) return false;
  s.fetch.fill({});
  s.fetch.kind = Receive::Kind::buffered;
  s.fetch.completion = qp::kCounted;  // the entry is the message's own
  s.fetch.context = &s;
  s.fetch.len = n;
  s.fetch.iov[0] = {to, n};
  s.fetch.iov_count = 1;
  receiving_.push_back(&s.fetch);
  Qp& qp = *u.qp;
  const Arrival offer = u.offer;
  if (!stays) u.qp = nullptr;
  const Status begun = qp.begin_receive(offer, {s.fetch.iov, 1, n, &s.fetch, stays});
  if (begun) return true;
  qp.drop_offer(offer.offer_id);
  u.qp = nullptr;
  on_received(qp, &s.fetch, begun.error());
  return true;
}

void Matcher::on_fetched(Receive& fetch, Errc err) noexcept {
  Shown& s = *static_cast<Shown*>(fetch.context);
  assert(&s.fetch == &fetch && !s.ready && !s.visible);
  const Address from = s.message->remote;
  if (err == Errc::ok) {
    s.have = fetch.len;
    s.ready = true;
  } else {
    Unexpected& u = *s.message;
    qp::CompletionError e;
    e.entry = {s.recv_context.context,
               u.tagged ? rule_->tagged_flags : rule_->plain_flags,
               0,
               nullptr,
               u.imm,
               u.tag,
               source_to_report(u)};
    e.err = err;
    coming_.remove(&s);
    port_.rx_cq->unreserve();
    port_.fail_receive(std::move(e));
    early_.remove(u);
    drop(u);
  }
  show_in_turn(from);
}

// What is ready of that peer's messages, up to the first that is not.
void Matcher::show_in_turn(const Address& from) noexcept {
  for (Shown *s = coming_.front(), *next = nullptr; s != nullptr; s = next) {
    next = coming_.after(s);
    if (s->message->remote != from) continue;
    if (!s->ready) return;
    coming_.remove(s);
    show(*s);
  }
}

void Matcher::show(Shown& s) noexcept {
  const Unexpected& u = *s.message;
  assert(s.have <= u.len && !s.visible);
  uint64_t flags = (u.tagged ? rule_->tagged_flags : rule_->plain_flags) | port_.flag_of(u.beside);
  if (s.have < u.len || u.len > rule_->limit) flags |= rule_->more_flag;
  s.visible = true;
  port_.rx_cq->unreserve();
  port_.rx_cq->push({&s.recv_context, flags, u.len, u.bytes(), u.imm, u.tag, source_to_report(u)});
}

// ---- claiming and discarding --------------------------------------------------------------------

Status Matcher::end_shown(Unexpected& u, const Probe& probe) noexcept {
  Shown& s = *u.shown;
  if (!s.visible) return Errc::invalid;
  RecvWr wr = probe.match;
  wr.context = s.recv_context.context;
  const bool claims = probe.action == Probe::Action::claim;
  if (claims) wr.flags |= rule_->claim_flag;
  if (claims && !s.lost) return take(u, wr);
  if (claims) {
    qp::CompletionError e;
    e.entry = {wr.context, wr.flags, 0, nullptr, u.imm, u.tag, source_to_report(u)};
    e.err = Errc::peer_lost;
    port_.fail_receive(std::move(e));
  } else {
    if ((wr.completion & qp::kEntry) != 0) complete_probe(u, wr);
    if (port_.recv_counter != nullptr) port_.recv_counter->add(1);
  }
  early_.remove(u);
  if (u.qp != nullptr) u.qp->drop_offer(u.offer.offer_id);
  drop(u);
  return {};
}

}  // namespace aperture::msg
