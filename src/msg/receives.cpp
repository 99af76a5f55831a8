// Receives on their way, and their ends: see receives.hpp.
#include "msg/receives.hpp"

#include <cassert>

namespace aperture::msg {

Receives::Receives(qp::Port& port, size_t planned, bool directed) noexcept
    : port_(port), directed_(directed), pool_(planned, kMostReceives) {}

Receive* Receives::post(const qp::RecvWr& wr) noexcept {
  Receive* r = pool_.take();
  if (r == nullptr) return nullptr;
  r->fill(wr);
  posted(wr.tagged).push_back(r);
  return r;
}

void Receives::rename_source(uint64_t before, uint64_t now) noexcept {
  assert(before != qp::kNoSource && before != now);
  for (List<Receive>* list : {&tagged_, &plain_}) {
    for (Receive* r = list->front(); r != nullptr; r = list->after(r)) {
      if (r->source == before) r->source = now;
    }
  }
}

// ---- on their way -------------------------------------------------------------------------------

Status Receives::begin(qp::Qp& qp, const qp::Arrival& offer, Receive& r, uint64_t want,
                       bool preview) noexcept {
  assert(offer.where == qp::Arrival::Where::offered && want <= r.len);
  if ((r.completion & qp::kEntry) != 0) port_.rx_cq->reserve();
  on_their_way_.push_back(&r);
  qp::Told* const told = r.completion == qp::kTold && !preview ? &qp::told_of(r) : nullptr;
  const Status s = qp.begin_receive(offer, {r.iov, r.iov_count, want, &r, preview, told});
  if (!s) arrive(r);
  return s;
}

void Receives::arrive(Receive& r) noexcept {
  assert(static_cast<ListHook&>(r).linked());
  on_their_way_.remove(&r);
  if ((r.completion & qp::kEntry) != 0) port_.rx_cq->unreserve();
}

// ---- ends ---------------------------------------------------------------------------------------

void Receives::end(Receive& r, Errc err) noexcept {
  if (err == Errc::ok) {
    deliver(r);
  } else {
    fail(r, err);
  }
}

void Receives::fail(Receive& r, Errc why) noexcept {
  assert(why != Errc::ok && !static_cast<ListHook&>(r).linked());
  if (r.kind == Receive::Kind::multi) {
    if (r.close(why, port_)) give(r);
    return;
  }
  qp::CompletionError e;
  e.entry = {r.context, r.flags,      0, r.iov_count > 0 ? r.iov[0].iov_base : nullptr, 0,
             r.tag,     qp::kNoSource};
  e.err = why;
  end_in_error(r, std::move(e));
  give(r);
}

void Receives::end_in_error(const Receive& r, qp::CompletionError&& e) noexcept {
  if (r.completion == qp::kTold) {
    qp::told_of(r).on_failed(std::move(e));
  } else {
    port_.fail_receive(std::move(e));
  }
}

Status Receives::cancel(void* context) noexcept {
  for (List<Receive>* list : {&tagged_, &plain_}) {
    for (Receive* r = list->front(); r != nullptr; r = list->after(r)) {
      if (r->context != context || r->kind == Receive::Kind::standing) continue;
      list->remove(r);
      fail(*r, Errc::canceled);
      return {};
    }
  }
  return Errc::no_entry;
}

void Receives::cancel_all(Errc why) noexcept {
  for (List<Receive>* list : {&tagged_, &plain_}) {
    while (Receive* r = list->pop_front()) {
      if (r->kind != Receive::Kind::standing) fail(*r, why);  // that one is nobody's
    }
  }
}

void Receives::fail_all_from(uint64_t source, Errc why) noexcept {
  assert(directed_ && source != qp::kNoSource);
  for (List<Receive>* list : {&tagged_, &plain_}) {
    for (Receive *r = list->front(), *next = nullptr; r != nullptr; r = next) {
      next = list->after(r);
      if (r->source != source) continue;
      list->remove(r);
      fail(*r, why);
    }
  }
}

}  // namespace aperture::msg
