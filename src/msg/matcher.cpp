// Matching: see matcher.hpp.
#include "msg/matcher.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/copy.hpp"
#include "base/iov.hpp"

namespace aperture::msg {

using qp::Arrival;
using qp::Qp;
using qp::RecvWr;

namespace {
constexpr size_t kMostReceives = 1u << 20;
}  // namespace

Matcher::Matcher(qp::Port& port, Host& host, size_t planned_receives, bool directed,
                 bool report_source, bool shared) noexcept
    : port_(port),
      host_(host),
      directed_(directed),
      report_source_(report_source),
      shared_(shared),
      early_(directed),
      receives_(planned_receives, kMostReceives) {}

void Receive::fill(const RecvWr& wr) noexcept {
  assert(wr.iov_count <= qp::kIovLimit);
  *static_cast<ListHook*>(this) = {};
  tag = wr.tag;
  ignore = wr.ignore;
  source = wr.source;
  len = wr.len;
  context = wr.context;
  flags = wr.flags;
  completion = wr.completion;
  tagged = wr.tagged;
  kind = Kind::single;
  iov_count = static_cast<uint8_t>(wr.iov_count);
  plain = wr.iov_count == 1 && wr.completion == qp::kEntry;
  if (plain) [[likely]] {
    iov[0] = wr.iov[0];
  } else {
    std::copy_n(wr.iov, wr.iov_count, iov);
  }
}

[[gnu::always_inline]] inline void Matcher::deliver(Receive& r) noexcept {
  const uint64_t flags = r.flags | port_.flag_of(r.msg_beside);
  void* buf = r.iov_count > 0 ? r.iov[0].iov_base : nullptr;
  if (r.msg_len > r.len) [[unlikely]] {
    qp::CompletionError e;
    e.entry = {r.context, flags, r.len, buf, r.msg_imm, r.msg_tag, r.msg_source};
    e.err = Errc::truncated;
    e.overflow = r.msg_len - r.len;
    end_in_error(r, std::move(e));
  } else {
    const qp::Completion entry{r.context, flags,     r.msg_len,   buf,
                               r.msg_imm, r.msg_tag, r.msg_source};
    if (r.completion == qp::kEntry) {
      port_.rx_cq->push(entry);
    } else if (r.completion > qp::kEntry) [[unlikely]] {
      qp::Told& told = qp::told_of(r);
      receives_.give(&r);
      return told.on_done(entry);
    }
    if (port_.recv_counter != nullptr) port_.recv_counter->add(1);
  }
  receives_.give(&r);
}

Status Matcher::recv(const RecvWr& wr) noexcept {
  if (!early_.empty(wr.tagged)) {
    if (Unexpected* u = early_.find(wr)) return take(*u, wr);
  }
  Receive* r = receives_.take();
  if (r == nullptr) return Errc::again;
  r->fill(wr);
  posted(wr.tagged).push_back(r);
  return {};
}

Receive* Matcher::find_posted(const Arrival& a, Qp& qp) noexcept {
  const uint64_t source = directed_ ? host_.source_of(qp) : qp::kNoSource;
  List<Receive>& list = posted(a.tagged);
  for (Receive* r = list.front(); r != nullptr; r = list.after(r)) {
    if (a.tagged && !tags_match(a.tag, r->tag, r->ignore)) continue;
    if (source_matches(r->source, source)) return r;
  }
  return nullptr;
}

bool Matcher::on_message(Qp& qp, const Arrival& a) noexcept {
  Receive* r = find_posted(a, qp);
  if (r == nullptr) {
    const bool named = directed_ || report_source_;
    const bool kept = early_.keep(qp, a, named ? host_.source_of(qp) : qp::kNoSource);
    weigh_pressure();
    return kept;
  }
  if (r->kind != Receive::Kind::single) [[unlikely]]
    return r->kind == Receive::Kind::multi ? on_multi_message(qp, a, *r) : show_arrival(qp, a, *r);
  if ((r->completion & qp::kEntry) != 0 && !port_.rx_cq->has_room()) return false;
  posted(a.tagged).remove(r);
  r->meet(a, source_to_report(qp));
  if (a.where == Arrival::Where::offered) {
    begin(qp, a, *r);
    return true;
  }
  const uint64_t n = std::min(a.len, r->len);
  if (n > 0) a.scatter_to(r->iov, r->iov_count, n);
  deliver(*r);
  return true;
}

// The oldest receive of the book matches and is a plain one: everything in one go.
bool Matcher::on_line(Qp& qp, wire::SoundHead head, const std::byte* body) noexcept {
  const bool tagged = head.has(wire::kTagged);
  const uint64_t tag = head.word().unchecked();  // matched
  Receive* r = posted(tagged).front();
  if (r == nullptr || !r->plain || head.len() > r->len ||
      (tagged && !tags_match(tag, r->tag, r->ignore)) ||
      (directed_ && r->source != qp::kAnySource) || !port_.rx_cq->has_room()) [[unlikely]] {
    return on_message(qp, qp::arrival_of_line(head, body));
  }
  posted(tagged).remove(r);
  uint64_t imm = 0;
  uint64_t flags = r->flags;
  body += wire::kHeadBytes;
  if (head.has(wire::kImm)) {
    std::memcpy(&imm, body, sizeof imm);
    body += sizeof imm;
    flags |= port_.imm_flag();
  }
  copy_short(r->iov[0].iov_base, body, head.len());
  const uint64_t source = source_to_report(qp);
  port_.rx_cq->push({r->context, flags, head.len(), r->iov[0].iov_base, imm, tag, source});
  if (port_.recv_counter != nullptr) port_.recv_counter->add(1);
  receives_.give(r);
  return true;
}

// An offered message has found its receive: the bytes come now.
void Matcher::begin(Qp& qp, const Arrival& offer, Receive& r) noexcept {
  if ((r.completion & qp::kEntry) != 0) port_.rx_cq->reserve();
  receiving_.push_back(&r);
  const Status s = qp.begin_receive(offer, {r.iov, r.iov_count, std::min(r.msg_len, r.len), &r});
  if (!s) on_received(qp, &r, s.error());
}

void Matcher::on_received(Qp&, void* cookie, Errc err) noexcept {
  Receive& r = *static_cast<Receive*>(cookie);
  assert(static_cast<ListHook&>(r).linked());
  receiving_.remove(&r);
  if ((r.completion & qp::kEntry) != 0) port_.rx_cq->unreserve();
  if (r.kind != Receive::Kind::single) {
    if (r.kind == Receive::Kind::buffered) return on_fetched(r, err);
    end_part(r, err);
    receives_.give(&r);
    return;
  }
  if (err == Errc::ok) {
    deliver(r);
  } else {
    fail(r, err);
  }
}

void Matcher::fail(Receive& r, Errc why) noexcept {
  if (r.kind == Receive::Kind::multi) {
    if (r.close(why, port_)) receives_.give(&r);
    return;
  }
  qp::CompletionError e;
  e.entry = {r.context, r.flags,      0, r.iov_count > 0 ? r.iov[0].iov_base : nullptr, 0,
             r.tag,     qp::kNoSource};
  e.err = why;
  end_in_error(r, std::move(e));
  receives_.give(&r);
}

void Matcher::end_in_error(const Receive& r, qp::CompletionError&& e) noexcept {
  if (r.completion == qp::kTold) {
    qp::told_of(r).on_failed(std::move(e));
  } else {
    port_.fail_receive(std::move(e));
  }
}

void Matcher::drop(Unexpected& u) noexcept {
  early_.drop(u);
  weigh_pressure();
}

void Matcher::weigh_pressure() noexcept {
  const size_t limit = pressure_ ? kPayloadLimit / 2 : kPayloadLimit;
  if (pressure_ == (early_.payload_bytes() > limit)) return;
  pressure_ = !pressure_;
  host_.set_pressure(pressure_);
}

// A receive meets a message that was there before.
Status Matcher::take(Unexpected& u, const RecvWr& wr) noexcept {
  if (shared_) [[unlikely]]
    host_.completes_at(*u.port);
  if ((wr.completion & qp::kEntry) != 0 && !port_.rx_cq->has_room()) return Errc::again;
  Receive* r = receives_.take();
  if (r == nullptr) return Errc::again;
  r->fill(wr);
  r->meet(u, source_to_report(u));
  early_.remove(u);
  if (u.qp != nullptr) {
    Qp& qp = *u.qp;
    const Arrival offer = u.offer;
    drop(u);
    begin(qp, offer, *r);
    return {};
  }
  scatter(r->iov, r->iov_count, 0, u.bytes(), std::min(u.len, r->len));
  drop(u);
  deliver(*r);
  return {};
}

// --- probes ---

void Matcher::complete_probe(const Unexpected& u, const RecvWr& wr) noexcept {
  port_.rx_cq->push({wr.context, wr.flags | port_.flag_of(u.beside), u.len, nullptr, u.imm, u.tag,
                     source_to_report(u)});
}

Status Matcher::probe(const Probe& probe) noexcept {
  using Action = Probe::Action;
  if (probe.action == Action::show) {  // of an endpoint's own matching
    if (port_.rx_cq == nullptr) return Errc::bad_state;
    return port_.rx_cq->has_room() ? show_next(probe.match) : Status(Errc::again);
  }
  const bool claims = probe.action == Action::claim || probe.action == Action::claim_discard;
  Unexpected* u = claims ? early_.find_claimed(probe.match.context) : early_.find(probe.match);
  if (shared_ && u != nullptr) host_.completes_at(*u->port);
  if (port_.rx_cq == nullptr) return Errc::bad_state;
  if (!port_.rx_cq->has_room()) return Errc::again;
  if (u == nullptr && claims) return Errc::invalid;
  if (claims && u->shown != nullptr) return end_shown(*u, probe);
  if (u == nullptr) {
    qp::CompletionError e;
    e.entry.context = probe.match.context;
    e.entry.flags = probe.match.flags;
    e.entry.tag = probe.match.tag;
    e.err = Errc::no_message;
    port_.rx_cq->push_error(std::move(e));
    return {};
  }
  if (probe.action == Action::claim) return take(*u, probe.match);
  complete_probe(*u, probe.match);
  if (probe.action == Action::peek_claim) {
    early_.claim(*u, probe.match.context);
  } else if (probe.action != Action::peek) {  // discarded
    early_.remove(*u);
    if (u->qp != nullptr) u->qp->drop_offer(u->offer.offer_id);
    drop(*u);
  }
  return {};
}

// --- ends ---

Status Matcher::cancel(void* context) noexcept {
  for (List<Receive>* list : {&posted(true), &posted(false)}) {
    for (Receive* r = list->front(); r != nullptr; r = list->after(r)) {
      if (r->context != context) continue;
      list->remove(r);
      fail(*r, Errc::canceled);
      return {};
    }
  }
  return Errc::no_entry;
}

void Matcher::cancel_all(Errc why) noexcept {
  for (List<Receive>* list : {&posted(true), &posted(false)}) {
    while (Receive* r = list->pop_front()) {
      if (r != any_plain_) fail(*r, why);
    }
  }
}

void Matcher::name_source(const Address& remote, uint64_t before, uint64_t source) noexcept {
  early_.name_source(remote, source);
  if (before == qp::kNoSource) return;
  for (List<Receive>* list : {&posted(true), &posted(false)}) {
    for (Receive* r = list->front(); r != nullptr; r = list->after(r)) {
      if (r->source == before) r->source = source;
    }
  }
}

void Matcher::forget_port(const qp::Port& port) noexcept {
  early_.drop_all_to(port);
  weigh_pressure();
}

void Matcher::drop_offers_of(Qp& qp) noexcept {
  early_.drop_offers_of(qp);
  early_.lose_shown(qp);
  weigh_pressure();
}

void Matcher::on_lost(Qp& qp, Errc why) noexcept {
  drop_offers_of(qp);
  const uint64_t source = directed_ ? host_.source_of(qp) : qp::kNoSource;
  if (source == qp::kNoSource) return;
  for (List<Receive>* list : {&posted(true), &posted(false)}) {
    for (Receive *r = list->front(), *next = nullptr; r != nullptr; r = next) {
      next = list->after(r);
      if (r->source != source) continue;
      list->remove(r);
      fail(*r, why);
    }
  }
}

}  // namespace aperture::msg
