// Keeping and finding messages that came early: see unexpected.hpp.
#include "msg/unexpected.hpp"

#include <cassert>
#include <new>

namespace aperture::msg {

namespace {
constexpr size_t kPlanned = 64;
constexpr size_t kMost = UnexpectedMessages::kMostBytes / sizeof(Unexpected);
constexpr size_t kMostShown = 1u << 16;
}  // namespace

UnexpectedMessages::UnexpectedMessages(bool directed) noexcept
    : directed_(directed), pool_(kPlanned, kMost), shown_(0, kMostShown) {}

UnexpectedMessages::~UnexpectedMessages() {
  for (List<Unexpected>* list : {&plain_.all, &tagged_.all, &claimed_}) {
    while (list->pop_front() != nullptr) {
    }
  }
}

Unexpected* UnexpectedMessages::find(const qp::RecvWr& wr) noexcept {
  Book& b = book(wr.tagged);
  const bool by_key = directed_ && qp::is_by_key(wr.source);
  const auto matches = [&](const Unexpected& u) {
    return (!wr.tagged || tags_match(u.tag, wr.tag, wr.ignore)) &&
           (!by_key || qp::sources_by_key(u.remote.key) == wr.source);
  };
  const auto first_of = [&](auto& list) {
    Unexpected* u = list.front();
    while (u != nullptr && !matches(*u)) u = list.after(u);
    return u;
  };
  if (!directed_ || by_key || wr.source == qp::kAnySource) return first_of(b.all);
  if (wr.source >= b.by_source.size() || b.by_source[wr.source] == nullptr) return nullptr;
  return first_of(*b.by_source[wr.source]);
}

Unexpected* UnexpectedMessages::find_claimed(const void* context) noexcept {
  Unexpected* u = claimed_.front();
  while (u != nullptr && u->claimed_by != context) u = claimed_.after(u);
  return u;
}

// False: out of memory.
bool UnexpectedMessages::list_by_source(Unexpected& u) noexcept {
  if (!directed_ || u.source == qp::kNoSource) return true;
  auto& lists = book(u.tagged).by_source;
  try {
    if (u.source >= lists.size()) lists.resize(u.source + 1);
    if (lists[u.source] == nullptr) lists[u.source] = std::make_unique<SourceList>();
  } catch (const std::bad_alloc&) {
    return false;
  }
  lists[u.source]->push_back(&u);
  return true;
}

Unexpected* UnexpectedMessages::make(qp::Qp& qp, const qp::Arrival& a, uint64_t source) noexcept {
  if (!has_room_for(sizeof(Unexpected))) return nullptr;
  Unexpected* u = pool_.take();
  if (u == nullptr) return nullptr;
  *static_cast<ListHook*>(u) = {};
  *static_cast<BasicListHook<BySource>*>(u) = {};
  u->tag = a.tag;
  u->imm = a.imm;
  u->len = a.len;
  u->beside = a.beside;
  u->tagged = a.tagged;
  u->claimed = u->lost = false;
  u->claimed_by = nullptr;
  u->source = source;
  u->remote = qp.remote();
  u->qp = nullptr;
  u->port = &qp.port();
  u->counted = 0;
  count(*u, sizeof(Unexpected));
  u->bytes = nullptr;
  u->large.reset();
  u->shown = nullptr;
  if (a.where == qp::Arrival::Where::offered) {
    u->qp = &qp;
    u->offer = a;
  }
  return u;
}

bool UnexpectedMessages::make_large(Unexpected& u, uint64_t n) noexcept {
  if (!has_room_for(n)) return false;
  u.large.reset(new (std::nothrow) std::byte[n]);
  if (u.large == nullptr) return false;
  count(u, n);
  return true;
}

bool UnexpectedMessages::copy_payload(Unexpected& u, const qp::Arrival& a) noexcept {
  assert(u.qp == nullptr && u.bytes == nullptr);
  u.bytes = u.small.data();
  if (a.len > Unexpected::kSmall) {
    if (!make_large(u, a.len)) return false;
    u.bytes = u.large.get();
  }
  a.copy_to(u.bytes, a.len);
  return true;
}

bool UnexpectedMessages::keep(qp::Qp& qp, const qp::Arrival& a, uint64_t source) noexcept {
  Unexpected* u = make(qp, a, source);
  if (u == nullptr) return false;
  const bool is_here = a.where != qp::Arrival::Where::offered && a.len > 0;
  if ((is_here && !copy_payload(*u, a)) || !list_by_source(*u)) {
    drop(*u);
    return false;
  }
  Book& b = book(u->tagged);
  b.all.push_back(u);
  ++b.count;
  assert(u->qp == nullptr || u->bytes == nullptr);  // on offer, or here
  return true;
}

void UnexpectedMessages::claim(Unexpected& u, void* context) noexcept {
  assert(!u.claimed);
  remove(u);
  u.claimed = true;
  u.claimed_by = context;
  claimed_.push_back(&u);
}

void UnexpectedMessages::remove(Unexpected& u) noexcept {
  if (u.claimed) return claimed_.remove(&u);
  Book& b = book(u.tagged);
  assert(b.count != 0);
  b.all.remove(&u);
  --b.count;
  if (in_source_list(u)) b.by_source[u.source]->remove(&u);
}

void UnexpectedMessages::drop(Unexpected& u) noexcept {
  assert(bytes_ >= u.counted && u.counted >= sizeof(Unexpected));
  assert(!static_cast<ListHook&>(u).linked());
  bytes_ -= u.counted;
  u.large.reset();
  if (u.shown != nullptr) {
    assert(!static_cast<ListHook&>(*u.shown).linked());
    shown_.give(u.shown);
  }
  pool_.give(&u);
}

// ---- messages that are shown ----

Shown* UnexpectedMessages::keep_to_show(Unexpected& u) noexcept {
  assert(u.shown == nullptr);
  if (!has_room_for(sizeof(Shown))) return nullptr;
  Shown* s = shown_.take();
  if (s == nullptr) return nullptr;
  count(u, sizeof(Shown));
  *static_cast<ListHook*>(s) = {};
  s->recv_context = {};
  s->message = &u;
  s->have = u.qp == nullptr ? u.len : 0;
  s->ready = s->visible = s->lost = false;
  u.shown = s;
  if (u.bytes == nullptr) u.bytes = s->small.data();
  if (static_cast<ListHook&>(u).linked()) {
    claim(u, &s->recv_context);
  } else {
    u.claimed = true;
    u.claimed_by = &s->recv_context;
    claimed_.push_back(&u);
  }
  return s;
}

Shown* UnexpectedMessages::keep_to_show(qp::Qp& qp, const qp::Arrival& a,
                                        uint64_t source) noexcept {
  Unexpected* u = make(qp, a, source);
  if (u == nullptr) return nullptr;
  const bool is_here = a.where != qp::Arrival::Where::offered;
  if (is_here && a.len > Shown::kSmall && !copy_payload(*u, a)) {
    drop(*u);
    return nullptr;
  }
  Shown* s = keep_to_show(*u);
  if (s == nullptr) {
    drop(*u);
    return nullptr;
  }
  if (is_here && u->large == nullptr) a.copy_to(u->bytes, a.len);
  return s;
}

std::byte* UnexpectedMessages::room_in(Unexpected& u, uint64_t& n) noexcept {
  assert(u.shown != nullptr && u.bytes == u.shown->small.data());
  if (n > Shown::kSmall) {
    if (make_large(u, n)) {
      u.bytes = u.large.get();
    } else {
      n = Shown::kSmall;
    }
  }
  return u.bytes;
}

void UnexpectedMessages::lose_shown(const qp::Qp& qp) noexcept {
  for (Unexpected* u = claimed_.front(); u != nullptr; u = claimed_.after(u)) {
    if (u->shown == nullptr || u->qp != &qp) continue;
    u->qp = nullptr;
    u->shown->lost = true;
  }
}

template <typename Which>
void UnexpectedMessages::drop_if(Which which) noexcept {
  for (List<Unexpected>* list : {&tagged_.all, &plain_.all, &claimed_}) {
    for (Unexpected *u = list->front(), *next = nullptr; u != nullptr; u = next) {
      next = list->after(u);
      if (!which(*u)) continue;
      remove(*u);
      drop(*u);
    }
  }
}

void UnexpectedMessages::drop_all_to(const qp::Port& port) noexcept {
  drop_if([&port](const Unexpected& u) { return u.port == &port; });
}

void UnexpectedMessages::drop_offers_of(const qp::Qp& qp) noexcept {
  drop_if([&qp](const Unexpected& u) { return u.qp == &qp && !u.claimed; });
  for (Unexpected* u = claimed_.front(); u != nullptr; u = claimed_.after(u)) {
    if (u->shown != nullptr || u->qp != &qp) continue;
    u->qp = nullptr;
    u->lost = true;
  }
}

template <typename Which>
void UnexpectedMessages::rename_if(Which which, uint64_t now) noexcept {
  for (List<Unexpected>* list : {&tagged_.all, &plain_.all, &claimed_}) {
    for (Unexpected* u = list->front(); u != nullptr; u = list->after(u)) {
      if (!which(*u)) continue;
      if (in_source_list(*u)) book(u->tagged).by_source[u->source]->remove(u);
      u->source = now;
      // without memory it is nobody's
      if (!u->claimed && !list_by_source(*u)) u->source = qp::kNoSource;
    }
  }
}

void UnexpectedMessages::rename_source(uint64_t source, uint64_t now) noexcept {
  assert(source != qp::kNoSource && source != now);
  rename_if([source](const Unexpected& u) { return u.source == source; }, now);
}

// In the order in which they came, and before any other of that source.
void UnexpectedMessages::name_source(const Address& remote, uint64_t source) noexcept {
  assert(source != qp::kNoSource);
  rename_if([&remote](const Unexpected& u) { return u.remote.of_port() == remote; }, source);
}

}  // namespace aperture::msg
