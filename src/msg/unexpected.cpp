// Keeping and finding messages that came early: see unexpected.hpp.
#include "msg/unexpected.hpp"

#include <cassert>
#include <new>

namespace aperture::msg {

namespace {
constexpr size_t kPlanned = 64;
constexpr size_t kMost = 1u << 24;
}  // namespace

UnexpectedMessages::UnexpectedMessages(bool directed) noexcept
    : directed_(directed), pool_(kPlanned, kMost) {}

UnexpectedMessages::~UnexpectedMessages() {
  for (List<Unexpected>* list : {&plain_.all, &tagged_.all, &claimed_}) {
    while (list->pop_front() != nullptr) {
    }
  }
}

Unexpected* UnexpectedMessages::find(const qp::RecvWr& wr) noexcept {
  Book& b = book(wr.tagged);
  const auto first_of = [&wr](auto& list) {
    Unexpected* u = list.front();
    while (u != nullptr && wr.tagged && !tags_match(u->tag, wr.tag, wr.ignore)) u = list.after(u);
    return u;
  };
  if (!directed_ || wr.source == qp::kAnySource) return first_of(b.all);
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

bool UnexpectedMessages::keep(qp::Qp& qp, const qp::Arrival& a, uint64_t source) noexcept {
  Unexpected* u = pool_.take();
  if (u == nullptr) return false;
  *static_cast<ListHook*>(u) = {};
  *static_cast<BasicListHook<BySource>*>(u) = {};
  u->tag = a.tag;
  u->imm = a.imm;
  u->len = a.len;
  u->beside = a.beside;
  u->tagged = a.tagged;
  u->claimed = false;
  u->claimed_by = nullptr;
  u->source = source;
  u->remote = qp.remote();
  u->qp = nullptr;
  u->port = &qp.port();
  u->counted = false;
  u->payload.reset();
  if (a.where == qp::Arrival::Where::offered) {
    u->qp = &qp;
    u->offer = a;
  } else if (a.len > 0) {
    u->payload.reset(new (std::nothrow) std::byte[a.len]);
    if (u->payload == nullptr) {
      pool_.give(u);
      return false;
    }
    a.copy_to(u->payload.get(), a.len);
    u->counted = a.len > wire::kMaxInline;
    if (u->counted) payload_bytes_ += a.len;
  }
  if (!list_by_source(*u)) {
    drop(*u);
    return false;
  }
  Book& b = book(u->tagged);
  b.all.push_back(u);
  ++b.count;
  assert(u->qp == nullptr || u->payload == nullptr);  // on offer, or here
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
  assert(!u.counted || payload_bytes_ >= u.len);
  assert(!static_cast<ListHook&>(u).linked());
  if (u.counted) payload_bytes_ -= u.len;
  u.payload.reset();
  pool_.give(&u);
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
  drop_if([&qp](const Unexpected& u) { return u.qp == &qp; });
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
