// Showing, claiming and discarding: see shown_messages.hpp.
#include "msg/shown_messages.hpp"

#include <algorithm>
#include <cassert>

namespace aperture::msg {

using qp::Arrival;
using qp::Qp;
using qp::RecvWr;

Status ShownMessages::start(const BufferedRule& rule) noexcept {
  assert(rule_ == nullptr && rule.least <= rule.limit);
  Receive* r = core_.receives.post({});
  if (r == nullptr) return Errc::no_memory;
  r->kind = Receive::Kind::standing;
  rule_ = &rule;
  assert(!r->tagged && !r->plain);
  return {};
}

// ---- showing ------------------------------------------------------------------------------------

bool ShownMessages::on_message(Qp& qp, const Arrival& a, Receive& receive) noexcept {
  assert(rule_ != nullptr && static_cast<ListHook&>(receive).linked());
  if (!core_.port.rx_cq->has_room()) return false;
  Shown* s = core_.early.keep_to_show(qp, a, core_.source_to_keep(qp));
  if (s == nullptr) return false;
  if (receive.kind == Receive::Kind::standing) {
    s->recv_context = {rule_->receiver, nullptr};
  } else {
    s->recv_context = {nullptr, receive.context};
    core_.receives.unpost(receive);
    core_.receives.give(receive);
  }
  begin_to_show(*s);
  core_.weigh_pressure();
  return true;
}

// A receive of a tag, which a message may have come before.
Status ShownMessages::show_next(const RecvWr& wr) noexcept {
  assert(rule_ != nullptr && wr.tagged && wr.iov_count == 0);
  if (Unexpected* u = core_.early.find(wr)) {
    Shown* s = core_.early.keep_to_show(*u);
    if (s == nullptr) return Errc::again;
    s->recv_context = {nullptr, wr.context};
    begin_to_show(*s);
    core_.weigh_pressure();
    return {};
  }
  Receive* r = core_.receives.post(wr);
  if (r == nullptr) return Errc::again;
  r->kind = Receive::Kind::buffered;
  assert(!r->plain);
  return {};
}

void ShownMessages::begin_to_show(Shown& s) noexcept {
  assert(!s.ready && !s.visible && s.message->claimed);
  const Address from = s.message->remote;
  core_.port.rx_cq->reserve();
  coming_.push_back(&s);
  if (fetch(s)) return;
  s.ready = true;
  show_in_turn(from);
}

// Fetches what is to be shown of a message on offer. False: there is nothing to wait for; else
// on_received() follows, or has been here.
bool ShownMessages::fetch(Shown& s) noexcept {
  Unexpected& u = *s.message;
  if (u.qp == nullptr) return false;
  const bool whole = u.len <= rule_->limit && !core_.pressure;
  uint64_t n = whole ? u.len : std::min(rule_->least, u.len);
  std::byte* const to = core_.early.room_in(u, n);
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
  Qp& qp = *u.qp;
  const Arrival offer = u.offer;
  if (!stays) u.qp = nullptr;
  const Status begun = core_.receives.begin(qp, offer, s.fetch, n, stays);
  if (begun) return true;
  qp.drop_offer(offer.offer_id);
  u.qp = nullptr;
  on_received(s.fetch, begun.error());
  return true;
}

void ShownMessages::on_received(Receive& fetch, Errc err) noexcept {
  Shown& s = *static_cast<Shown*>(fetch.context);
  assert(&s.fetch == &fetch && !s.ready && !s.visible);
  const Address from = s.message->remote;
  if (err == Errc::ok) {
    s.have = fetch.len;
    s.ready = true;
  } else {
    lose(s, err);
  }
  show_in_turn(from);
}

// There is nothing to show of it.
void ShownMessages::lose(Shown& s, Errc why) noexcept {
  assert(!s.visible && static_cast<ListHook&>(s).linked());
  Unexpected& u = *s.message;
  qp::CompletionError e;
  e.entry = {s.recv_context.context,
             u.tagged ? rule_->tagged_flags : rule_->plain_flags,
             0,
             nullptr,
             u.imm,
             u.tag,
             core_.source_to_report(u)};
  e.err = why;
  coming_.remove(&s);
  core_.port.rx_cq->unreserve();
  core_.port.fail_receive(std::move(e));
  core_.early.remove(u);
  core_.drop(u);
}

// What is ready of that peer's messages, up to the first that is not.
void ShownMessages::show_in_turn(const Address& from) noexcept {
  for (Shown *s = coming_.front(), *next = nullptr; s != nullptr; s = next) {
    next = coming_.after(s);
    if (s->message->remote != from) continue;
    if (!s->ready) return;
    coming_.remove(s);
    show(*s);
  }
}

void ShownMessages::show(Shown& s) noexcept {
  const Unexpected& u = *s.message;
  assert(s.have <= u.len && !s.visible);
  qp::Port& port = core_.port;
  uint64_t flags = (u.tagged ? rule_->tagged_flags : rule_->plain_flags) | port.flag_of(u.beside);
  if (s.have < u.len || u.len > rule_->limit) flags |= rule_->more_flag;
  s.visible = true;
  port.rx_cq->unreserve();
  port.rx_cq->push(
      {&s.recv_context, flags, u.len, u.bytes, u.imm, u.tag, core_.source_to_report(u)});
}

// ---- claiming and discarding --------------------------------------------------------------------

Status ShownMessages::end(Unexpected& u, const Probe& probe) noexcept {
  assert(u.shown != nullptr && u.claimed);
  Shown& s = *u.shown;
  if (!s.visible) return Errc::invalid;
  RecvWr wr = probe.match;
  wr.context = s.recv_context.context;
  const bool claims = probe.action == Probe::Action::claim;
  if (claims) wr.flags |= rule_->claim_flag;
  if (claims && !s.lost) return core_.take(u, wr);
  if (claims) {
    qp::CompletionError e;
    e.entry = {wr.context, wr.flags, 0, nullptr, u.imm, u.tag, core_.source_to_report(u)};
    e.err = Errc::peer_lost;
    core_.port.fail_receive(std::move(e));
  } else {
    if ((wr.completion & qp::kEntry) != 0) core_.complete_look(u, wr);
    if (core_.port.recv_counter != nullptr) core_.port.recv_counter->add(1);
  }
  core_.discard(u);
  return {};
}

}  // namespace aperture::msg
