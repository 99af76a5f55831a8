// Matching: see matcher.hpp.
#include "msg/matcher.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>

#include "base/copy.hpp"
#include "base/iov.hpp"

namespace aperture::msg {

using qp::Arrival;
using qp::Qp;
using qp::RecvWr;

namespace {
constexpr size_t kMostReceives = 1u << 20;
constexpr size_t kMostUnexpected = 1u << 24;
}  // namespace

Matcher::Matcher(qp::Port& port, Host& host, size_t planned_receives, bool directed,
                 bool report_source, bool shared) noexcept
    : port_(port),
      host_(host),
      directed_(directed),
      report_source_(report_source),
      shared_(shared),
      receives_(planned_receives, kMostReceives),
      messages_(64, kMostUnexpected) {}

Matcher::~Matcher() {
  for (List<Unexpected>* list : {&plain_.unexpected, &tagged_.unexpected, &claimed_}) {
    while (list->pop_front() != nullptr) {
    }
  }
}

void Matcher::fill(Recv& r, const RecvWr& wr) noexcept {
  assert(wr.iov_count <= qp::kIovLimit);
  *static_cast<ListHook*>(&r) = {};
  r.tag = wr.tag;
  r.ignore = wr.ignore;
  r.source = wr.source;
  r.len = wr.len;
  r.context = wr.context;
  r.flags = wr.flags;
  r.completion = wr.completion;
  r.tagged = wr.tagged;
  r.multi = false;
  r.iov_count = static_cast<uint8_t>(wr.iov_count);
  r.plain = wr.iov_count == 1 && wr.completion;
  if (r.plain) [[likely]] {
    r.iov[0] = wr.iov[0];
  } else {
    std::copy_n(wr.iov, wr.iov_count, r.iov);
  }
}

[[gnu::always_inline]] inline void Matcher::deliver(Recv& r) noexcept {
  const uint64_t flags = r.flags | port_.flag_of(r.msg_beside);
  void* buf = r.iov_count > 0 ? r.iov[0].iov_base : nullptr;
  if (r.msg_len > r.len) [[unlikely]] {
    qp::CompletionError e;
    e.entry = {r.context, flags, r.len, buf, r.msg_imm, r.msg_tag, r.msg_source};
    e.err = Errc::truncated;
    e.overflow = r.msg_len - r.len;
    if (port_.rx_cq != nullptr) port_.rx_cq->push_error(std::move(e));
    if (port_.recv_counter != nullptr) port_.recv_counter->add_error(1);
  } else {
    if (r.completion) {
      port_.rx_cq->push({r.context, flags, r.msg_len, buf, r.msg_imm, r.msg_tag, r.msg_source});
    }
    if (port_.recv_counter != nullptr) port_.recv_counter->add(1);
  }
  receives_.give(&r);
}

Status Matcher::recv(const RecvWr& wr) noexcept {
  Book& b = book(wr.tagged);
  if (!b.unexpected.empty()) {
    if (Unexpected* u = find_unexpected(b, wr)) return take(*u, wr);
  }
  Recv* r = receives_.take();
  if (r == nullptr) return Errc::again;
  fill(*r, wr);
  b.posted.push_back(r);
  return {};
}

// False: out of memory.
bool Matcher::list_by_source(Book& b, Unexpected& u) noexcept {
  if (!directed_ || u.source == qp::kNoSource) return true;
  try {
    if (u.source >= b.by_source.size()) b.by_source.resize(u.source + 1);
    if (b.by_source[u.source] == nullptr) b.by_source[u.source] = std::make_unique<SourceList>();
  } catch (const std::bad_alloc&) {
    return false;
  }
  b.by_source[u.source]->push_back(&u);
  return true;
}

bool Matcher::list(Book& b, Unexpected& u) noexcept {
  if (!list_by_source(b, u)) return false;
  b.unexpected.push_back(&u);
  return true;
}

void Matcher::unlist(Book& b, Unexpected& u) noexcept {
  b.unexpected.remove(&u);
  if (static_cast<BasicListHook<BySource>&>(u).linked()) b.by_source[u.source]->remove(&u);
}

void Matcher::forget_source(uint64_t source, uint64_t now) noexcept {
  assert(source != qp::kNoSource && source != now);
  for (Book* b : {&tagged_, &plain_}) {
    for (Unexpected* u = b->unexpected.front(); u != nullptr; u = b->unexpected.after(u)) {
      if (u->source != source) continue;
      if (static_cast<BasicListHook<BySource>&>(*u).linked()) b->by_source[source]->remove(u);
      u->source = now;
      // without memory it is nobody's
      if (!list_by_source(*b, *u)) u->source = qp::kNoSource;
    }
  }
  for (Unexpected* u = claimed_.front(); u != nullptr; u = claimed_.after(u)) {
    if (u->source == source) u->source = now;
  }
}

Matcher::Unexpected* Matcher::find_unexpected(Book& b, const RecvWr& wr) noexcept {
  if (directed_ && wr.source != qp::kAnySource) {
    if (wr.source >= b.by_source.size() || b.by_source[wr.source] == nullptr) return nullptr;
    SourceList& from = *b.by_source[wr.source];
    Unexpected* found = from.front();
    while (found != nullptr && wr.tagged && !tags_match(found->tag, wr.tag, wr.ignore)) {
      found = from.after(found);
    }
    return found;
  }
  for (Unexpected* u = b.unexpected.front(); u != nullptr; u = b.unexpected.after(u)) {
    if (wr.tagged && !tags_match(u->tag, wr.tag, wr.ignore)) continue;
    return u;
  }
  return nullptr;
}

Matcher::Recv* Matcher::find_posted(Book& b, const Arrival& a, Qp& qp) noexcept {
  const uint64_t source = directed_ ? host_.source_of(qp) : qp::kNoSource;
  for (Recv* r = b.posted.front(); r != nullptr; r = b.posted.after(r)) {
    if (a.tagged && !tags_match(a.tag, r->tag, r->ignore)) continue;
    if (source_matches(r->source, source)) return r;
  }
  return nullptr;
}

bool Matcher::on_message(Qp& qp, const Arrival& a) noexcept {
  Book& b = book(a.tagged);
  Recv* r = find_posted(b, a, qp);
  if (r == nullptr) return keep(b, qp, a);
  if (r->multi) [[unlikely]]
    return on_multi_message(qp, a, *r);
  if (r->completion && !port_.rx_cq->has_room()) return false;
  b.posted.remove(r);
  r->msg_len = a.len;
  r->msg_tag = a.tag;
  r->msg_imm = a.imm;
  r->msg_beside = a.beside;
  r->msg_source = report_source_ ? host_.source_of(qp) : qp::kNoSource;
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
bool Matcher::on_line(Qp& qp, wire::Head head, const std::byte* body) noexcept {
  const bool tagged = (head.flags & wire::kTagged) != 0;
  const uint64_t tag = head.word().unchecked();  // matched
  Book& b = book(tagged);
  Recv* r = b.posted.front();
  if (r == nullptr || !r->plain || head.len > r->len ||
      (tagged && !tags_match(tag, r->tag, r->ignore)) ||
      (directed_ && r->source != qp::kAnySource) || !port_.rx_cq->has_room()) [[unlikely]] {
    return on_message(qp, qp::arrival_of_line(head, body));
  }
  b.posted.remove(r);
  uint64_t imm = 0;
  uint64_t flags = r->flags;
  body += wire::kHeadBytes;
  if ((head.flags & wire::kImm) != 0) {
    std::memcpy(&imm, body, sizeof imm);
    body += sizeof imm;
    flags |= port_.imm_flag();
  }
  copy_short(r->iov[0].iov_base, body, head.len);
  const uint64_t source = report_source_ ? host_.source_of(qp) : qp::kNoSource;
  port_.rx_cq->push({r->context, flags, head.len, r->iov[0].iov_base, imm, tag, source});
  if (port_.recv_counter != nullptr) port_.recv_counter->add(1);
  receives_.give(r);
  return true;
}

// An offered message has found its receive: the bytes come now.
void Matcher::begin(Qp& qp, const Arrival& offer, Recv& r) noexcept {
  if (r.completion) port_.rx_cq->reserve();
  receiving_.push_back(&r);
  const Status s = qp.begin_receive(offer, {r.iov, r.iov_count, std::min(r.msg_len, r.len), &r});
  if (!s) on_received(qp, &r, s.error());
}

void Matcher::on_received(Qp&, void* cookie, Errc err) noexcept {
  Recv& r = *static_cast<Recv*>(cookie);
  assert(static_cast<ListHook&>(r).linked());
  receiving_.remove(&r);
  if (r.completion) port_.rx_cq->unreserve();
  if (r.multi) {
    end_multi_message(r, err);
    receives_.give(&r);
    return;
  }
  if (err == Errc::ok) {
    deliver(r);
  } else {
    fail(r, err);
  }
}

void Matcher::fail(Recv& r, Errc why) noexcept {
  if (r.multi) return close_multi(r, why);
  qp::CompletionError e;
  e.entry = {r.context, r.flags,      0, r.iov_count > 0 ? r.iov[0].iov_base : nullptr, 0,
             r.tag,     qp::kNoSource};
  e.err = why;
  if (port_.rx_cq != nullptr) port_.rx_cq->push_error(std::move(e));
  if (port_.recv_counter != nullptr) port_.recv_counter->add_error(1);
  receives_.give(&r);
}

// False: no memory for it now; it stays in the ring.
bool Matcher::keep(Book& b, Qp& qp, const Arrival& a) noexcept {
  Unexpected* u = messages_.take();
  if (u == nullptr) return false;
  *static_cast<ListHook*>(u) = {};
  *static_cast<BasicListHook<BySource>*>(u) = {};
  u->tag = a.tag;
  u->imm = a.imm;
  u->len = a.len;
  u->beside = a.beside;
  u->claimed = false;
  u->claimed_by = nullptr;
  u->source = directed_ || report_source_ ? host_.source_of(qp) : qp::kNoSource;
  u->qp = nullptr;
  u->port = &qp.port();
  u->counted = false;
  u->payload.reset();
  if (a.where == Arrival::Where::offered) {
    u->qp = &qp;
    u->offer = a;
  } else if (a.len > 0) {
    u->payload.reset(new (std::nothrow) std::byte[a.len]);
    if (u->payload == nullptr) {
      messages_.give(u);
      return false;
    }
    a.copy_to(u->payload.get(), a.len);
    u->counted = a.len > wire::kMaxInline;
    if (u->counted) payload_bytes_ += a.len;
  }
  if (!list(b, *u)) {
    forget(*u);
    return false;
  }
  assert(u->qp == nullptr || u->payload == nullptr);  // on offer, or here
  if (!pressure_ && payload_bytes_ > kPayloadLimit) {
    pressure_ = true;
    host_.set_pressure(true);
  }
  return true;
}

// Takes an unexpected message out of its list for good.
void Matcher::forget(Unexpected& u) noexcept {
  assert(!u.counted || payload_bytes_ >= u.len);
  assert(!static_cast<ListHook&>(u).linked());
  if (u.counted) payload_bytes_ -= u.len;
  u.payload.reset();
  messages_.give(&u);
  if (pressure_ && payload_bytes_ <= kPayloadLimit / 2) {
    pressure_ = false;
    host_.set_pressure(false);
  }
}

// A receive meets a message that was there before.
Status Matcher::take(Unexpected& u, const RecvWr& wr) noexcept {
  if (shared_) [[unlikely]]
    host_.completes_at(*u.port);
  if (wr.completion && !port_.rx_cq->has_room()) return Errc::again;
  Recv* r = receives_.take();
  if (r == nullptr) return Errc::again;
  fill(*r, wr);
  r->msg_len = u.len;
  r->msg_tag = u.tag;
  r->msg_imm = u.imm;
  r->msg_beside = u.beside;
  r->msg_source = report_source_ ? u.source : qp::kNoSource;
  if (u.claimed) {
    claimed_.remove(&u);
  } else {
    unlist(book(wr.tagged), u);
  }
  if (u.qp != nullptr) {
    Qp& qp = *u.qp;
    const Arrival offer = u.offer;
    forget(u);
    begin(qp, offer, *r);
    return {};
  }
  scatter(r->iov, r->iov_count, 0, u.payload.get(), std::min(u.len, r->len));
  forget(u);
  deliver(*r);
  return {};
}

// --- probes ---

void Matcher::complete_probe(const Unexpected& u, const RecvWr& wr) noexcept {
  port_.rx_cq->push({wr.context, wr.flags | port_.flag_of(u.beside), u.len, nullptr, u.imm, u.tag,
                     report_source_ ? u.source : qp::kNoSource});
}

Status Matcher::probe(const Probe& probe) noexcept {
  using Action = Probe::Action;
  if (port_.rx_cq == nullptr) return Errc::bad_state;
  if (!port_.rx_cq->has_room()) return Errc::again;
  if (probe.action == Action::claim || probe.action == Action::claim_discard) {
    return probe_claimed(probe);
  }
  Book& b = book(probe.match.tagged);
  Unexpected* u = find_unexpected(b, probe.match);
  if (u == nullptr) {
    qp::CompletionError e;
    e.entry.context = probe.match.context;
    e.entry.flags = probe.match.flags;
    e.entry.tag = probe.match.tag;
    e.err = Errc::no_message;
    port_.rx_cq->push_error(std::move(e));
    return {};
  }
  complete_probe(*u, probe.match);
  if (probe.action == Action::peek_claim) {
    unlist(b, *u);
    u->claimed = true;
    u->claimed_by = probe.match.context;
    claimed_.push_back(u);
  } else if (probe.action == Action::peek_discard) {
    unlist(b, *u);
    if (u->qp != nullptr) u->qp->drop_offer(u->offer.offer_id);
    forget(*u);
  }
  return {};
}

Matcher::Unexpected* Matcher::find_claimed(const RecvWr& wr) noexcept {
  for (Unexpected* u = claimed_.front(); u != nullptr; u = claimed_.after(u)) {
    if (u->claimed_by == wr.context) return u;
  }
  return nullptr;
}

Status Matcher::probe_claimed(const Probe& probe) noexcept {
  Unexpected* u = find_claimed(probe.match);
  if (u == nullptr) return Errc::invalid;
  if (probe.action == Probe::Action::claim) return take(*u, probe.match);
  claimed_.remove(u);
  complete_probe(*u, probe.match);
  if (u->qp != nullptr) u->qp->drop_offer(u->offer.offer_id);
  forget(*u);
  return {};
}

// --- ends ---

Status Matcher::cancel(void* context) noexcept {
  for (Book* b : {&tagged_, &plain_}) {
    for (Recv* r = b->posted.front(); r != nullptr; r = b->posted.after(r)) {
      if (r->context != context) continue;
      b->posted.remove(r);
      fail(*r, Errc::canceled);
      return {};
    }
  }
  return Errc::no_entry;
}

void Matcher::cancel_all(Errc why) noexcept {
  for (Book* b : {&tagged_, &plain_}) {
    while (Recv* r = b->posted.pop_front()) fail(*r, why);
  }
}

void Matcher::forget_port(const qp::Port& port) noexcept {
  for (Book* b : {&tagged_, &plain_}) {
    for (Unexpected *u = b->unexpected.front(), *next = nullptr; u != nullptr; u = next) {
      next = b->unexpected.after(u);
      if (u->port != &port) continue;
      unlist(*b, *u);
      forget(*u);
    }
  }
  for (Unexpected *u = claimed_.front(), *next = nullptr; u != nullptr; u = next) {
    next = claimed_.after(u);
    if (u->port != &port) continue;
    claimed_.remove(u);
    forget(*u);
  }
}

void Matcher::on_lost(Qp& qp, Errc why) noexcept {
  const uint64_t source = directed_ ? host_.source_of(qp) : qp::kNoSource;
  for (Book* b : {&tagged_, &plain_}) {
    for (Unexpected *u = b->unexpected.front(), *next = nullptr; u != nullptr; u = next) {
      next = b->unexpected.after(u);
      if (u->qp != &qp) continue;
      unlist(*b, *u);
      forget(*u);
    }
    if (source == qp::kNoSource) continue;
    for (Recv *r = b->posted.front(), *next = nullptr; r != nullptr; r = next) {
      next = b->posted.after(r);
      if (r->source != source) continue;
      b->posted.remove(r);
      fail(*r, why);
    }
  }
  for (Unexpected *u = claimed_.front(), *next = nullptr; u != nullptr; u = next) {
    next = claimed_.after(u);
    if (u->qp != &qp) continue;
    claimed_.remove(u);
    forget(*u);
  }
}

}  // namespace aperture::msg
