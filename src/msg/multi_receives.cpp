// Messages into multi-receive buffers: see multi_receives.hpp.
#include "msg/multi_receives.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace aperture::msg {

using qp::Arrival;
using qp::Qp;
using qp::RecvWr;

Status MultiReceives::recv(const RecvWr& wr, uint64_t least_room) noexcept {
  if (wr.iov_count != 1) return Errc::invalid;
  UnexpectedMessages& early = core_.early;
  // All or nothing: a message that arrived earlier must not be overtaken by a later one because the
  // queue was full in between.
  if (!early.empty(wr.tagged) && !prepare_unexpected(wr, least_room)) return Errc::again;
  Receive* r = core_.receives.post(wr);
  if (r == nullptr) return Errc::again;
  r->make_multi(least_room);
  for (bool open = true; open && !early.empty(wr.tagged);) {
    Unexpected* u = early.find(wr);
    if (u == nullptr) break;
    open = u->len < r->len && r->len - u->len >= r->buffer.least_room;
    take(*u, *r);  // the last one may release the buffer: r is gone then
  }
  return {};
}

// Makes room in the queue for every unexpected message that will go into the buffer. False: no
// memory, nothing has been done.
bool MultiReceives::prepare_unexpected(const RecvWr& wr, uint64_t least_room) noexcept {
  size_t entries = 1;  // of the release
  uint64_t room = wr.len;
  least_room = std::max<uint64_t>(least_room, 1);
  for (Unexpected* u = core_.early.front(wr.tagged); u != nullptr; u = core_.early.after(*u)) {
    if (wr.tagged && !tags_match(u->tag, wr.tag, wr.ignore)) continue;
    if (!core_.receives.source_matches(wr.source, u->source, u->remote.key)) continue;
    ++entries;
    if (u->len >= room || room - u->len < least_room) break;
    room -= u->len;
  }
  qp::Cq* const cq = core_.port.rx_cq;
  return entries == 1 || cq == nullptr || cq->make_room(entries);
}

void MultiReceives::cut(Receive& buffer, Receive& part) noexcept {
  assert(static_cast<ListHook&>(buffer).linked() && !static_cast<ListHook&>(part).linked());
  if (buffer.cut(part, core_.port)) core_.receives.unpost(buffer);
  assert(part.owner == &buffer && static_cast<ListHook&>(buffer).linked() != buffer.buffer.closed);
}

void MultiReceives::end_part(const Receive& part, Errc err) noexcept {
  Receive& buffer = *part.owner;
  if (buffer.end_part(part, err, core_.port)) core_.receives.give(buffer);
}

void MultiReceives::begin(Qp& qp, const Arrival& offer, Receive& part) noexcept {
  assert(part.kind == Receive::Kind::multi && part.owner != nullptr);
  const Status s = core_.receives.begin(qp, offer, part, std::min(part.msg_len, part.len));
  if (!s) on_received(part, s.error());
}

void MultiReceives::on_received(Receive& part, Errc err) noexcept {
  assert(part.owner != nullptr && part.owner != &part);
  end_part(part, err);
  core_.receives.give(part);
}

bool MultiReceives::on_message(Qp& qp, const Arrival& a, Receive& buffer) noexcept {
  // one entry: of the message, or of the release that it may bring
  if (core_.port.rx_cq != nullptr && !core_.port.rx_cq->has_room()) return false;
  Receive here;
  const bool offered = a.where == Arrival::Where::offered;
  Receive* part = offered ? core_.receives.take() : &here;
  if (part == nullptr) return false;
  *static_cast<ListHook*>(part) = {};
  part->meet(a, core_.source_to_report(qp));
  cut(buffer, *part);
  if (offered) {
    begin(qp, a, *part);
    return true;
  }
  if (const uint64_t n = std::min(a.len, part->len); n > 0) a.scatter_to(part->iov, 1, n);
  end_part(*part, Errc::ok);
  return true;
}

// A message that was there before the buffer.
void MultiReceives::take(Unexpected& u, Receive& buffer) noexcept {
  Receive here;
  Receive* part = u.qp != nullptr ? core_.receives.take() : &here;
  const bool no_memory = part == nullptr;
  if (no_memory) part = &here;
  *static_cast<ListHook*>(part) = {};
  part->meet(u, core_.source_to_report(u));
  core_.early.remove(u);
  cut(buffer, *part);
  if (u.qp != nullptr) {
    Qp& qp = *u.qp;
    const Arrival offer = u.offer;
    core_.drop(u);
    if (!no_memory) return begin(qp, offer, *part);
    qp.drop_offer(offer.offer_id);
    end_part(*part, Errc::no_memory);
    return;
  }
  if (const uint64_t n = std::min(u.len, part->len); n > 0) {
    std::memcpy(part->iov[0].iov_base, u.bytes, n);
  }
  core_.drop(u);
  end_part(*part, Errc::ok);
}

}  // namespace aperture::msg
