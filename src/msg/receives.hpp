// The receives of one matching, from their posting to their end.
//
// Guarded by the engine's lock. Tagged and untagged receives stand in lists of their own, oldest
// first. A receive is in one place at a time: in the pool, posted, on its way (it has met an offer,
// whose bytes are coming; its CQ entry is promised), or in a caller's hands. Whoever takes one out
// of its place puts it into another, or ends it: exactly once, by deliver() or fail(), after which
// it is in the pool.
#pragma once

#include <cstdint>

#include "base/invariant.hpp"
#include "base/list.hpp"
#include "base/pool.hpp"
#include "msg/receive.hpp"
#include "msg/unexpected.hpp"
#include "qp/qp.hpp"

namespace aperture::msg {

// A receive of one buffer.
struct FlatRecv {
  void* buf;
  size_t len;
  uint64_t source;
  uint64_t tag;
  uint64_t ignore;
  void* context;
  uint64_t flags;
  bool tagged;
  bool completion;
};

class Receives {
 public:
  // directed: receives may name a source.
  Receives(qp::Port& port, size_t planned, bool directed) noexcept;

  // ---- posted ----

  // Behind all others. Null: there is no memory.
  Receive* post(const qp::RecvWr& wr) noexcept;
  // The hot path of posting; false: there is no memory.
  bool post_flat(const FlatRecv& wr) noexcept;
  Receive* oldest(bool tagged) noexcept { return posted(tagged).front(); }
  // The oldest that this message from `source`, by that key of ours, would go to; null: none.
  Receive* find(const qp::Arrival& a, uint64_t source, uint8_t key) noexcept;
  bool source_matches(uint64_t want, uint64_t source, uint8_t key) const noexcept {
    return !directed_ || want == qp::kAnySource || want == source ||
           want == qp::sources_by_key(key);
  }
  // From here on it is the caller's.
  void unpost(Receive& r) noexcept { posted(r.tagged).remove(&r); }
  // Those that name `before` name `now` from here on.
  void rename_source(uint64_t before, uint64_t now) noexcept;
  // The first of that context ends with Errc::canceled. Errors: no_entry.
  Status cancel(void* context) noexcept;
  void cancel_all(Errc why) noexcept;
  void fail_all_from(uint64_t source, Errc why) noexcept;

  // ---- in a caller's hands ----

  Receive* take() noexcept { return pool_.take(); }
  void give(Receive& r) noexcept {
    APERTURE_DEBUG_ASSERT(!static_cast<ListHook&>(r).linked());
    pool_.give(&r);
  }
  // The first `want` bytes of an offered message come into it now; preview: and it stays on offer.
  // An error: it has not begun, and is the caller's as before.
  Status begin(qp::Qp& qp, const qp::Arrival& offer, Receive& r, uint64_t want,
               bool preview = false) noexcept;
  // Its bytes are all there, or will not come: it is the caller's again.
  void arrive(Receive& r) noexcept;
  // Ends a receive of one message that it has met.
  void deliver(Receive& r) noexcept;
  // Ends one without a message; of a multi-receive buffer, once those on their way into it have
  // come.
  void fail(Receive& r, Errc why) noexcept;
  void end(Receive& r, Errc err) noexcept;

 private:
  List<Receive>& posted(bool tagged) noexcept { return tagged ? tagged_ : plain_; }
  void end_in_error(const Receive& r, qp::CompletionError&& e) noexcept;

  qp::Port& port_;
  const bool directed_;
  List<Receive> plain_;
  List<Receive> tagged_;
  List<Receive> on_their_way_;
  Pool<Receive> pool_;
};

inline bool Receives::post_flat(const FlatRecv& wr) noexcept {
  Receive* r = pool_.take();
  if (r == nullptr) [[unlikely]]
    return false;
  *static_cast<ListHook*>(r) = {};
  r->tag = wr.tag;
  r->ignore = wr.ignore;
  r->source = wr.source;
  r->len = wr.len;
  r->context = wr.context;
  r->flags = wr.flags;
  r->completion = wr.completion;
  r->tagged = wr.tagged;
  r->plain = wr.completion;
  r->kind = Receive::Kind::single;
  r->iov_count = 1;
  r->iov[0] = {wr.buf, wr.len};
  posted(wr.tagged).push_back(r);
  return true;
}

inline Receive* Receives::find(const qp::Arrival& a, uint64_t source, uint8_t key) noexcept {
  List<Receive>& list = posted(a.tagged);
  for (Receive* r = list.front(); r != nullptr; r = list.after(r)) {
    if (a.tagged && !tags_match(a.tag, r->tag, r->ignore)) continue;
    if (source_matches(r->source, source, key)) return r;
  }
  return nullptr;
}

[[gnu::always_inline]] inline void Receives::deliver(Receive& r) noexcept {
  APERTURE_DEBUG_ASSERT(r.kind == Receive::Kind::single);
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
      give(r);
      return told.on_done(entry);
    }
    if (port_.recv_counter != nullptr) port_.recv_counter->add(1);
  }
  give(r);
}

}  // namespace aperture::msg
