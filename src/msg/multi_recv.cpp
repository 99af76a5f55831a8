// Multi-receive buffers: one posted buffer that takes many messages. man 3 fi_msg,
// fi_endpoint and fi_cq, on multi-receive buffers.
//
// Guarded by the engine's lock, as all of the matcher. A buffer stands among the posted receives
// until less than its least room is left of it (or it is canceled). Each message gets the place
// behind the one before it, without gaps; offered messages keep their place while their bytes come,
// several at once. Invariants:
//   - every message gives one entry (unless successes are suppressed), with its own place;
//   - the last entry of a buffer, success or error, carries the release flag; when that one is a
//     suppressed success, an entry of the release flag alone stands for it. So there is exactly one
//     release, and after it nobody writes to the buffer any more;
//   - a message larger than what is left is truncated: it was matched, and a buffer is used up only
//     by the rule above.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/iov.hpp"
#include "msg/matcher.hpp"

namespace aperture::msg {

using qp::Arrival;
using qp::Qp;
using qp::RecvWr;

// ---- the buffer ---------------------------------------------------------------------------------

void Receive::make_multi(uint64_t least_room) noexcept {
  kind = Kind::multi;
  plain = false;
  owner = nullptr;
  buffer = {std::max<uint64_t>(least_room, 1),       0, false, false, Errc::ok,
            static_cast<std::byte*>(iov[0].iov_base)};
}

bool Receive::cut(Receive& part, qp::Port& port) noexcept {
  assert(kind == Kind::multi && !buffer.closed && iov_count == 1);
  part.owner = this;
  part.kind = Kind::multi;
  part.context = context;
  part.flags = flags;
  part.completion = completion;
  part.tagged = tagged;
  part.tag = tag;
  part.len = len;
  part.iov_count = 1;
  part.iov[0] = iov[0];
  const uint64_t n = std::min(part.msg_len, len);
  iov[0].iov_base = static_cast<std::byte*>(iov[0].iov_base) + n;
  len -= n;
  iov[0].iov_len = len;
  ++buffer.under_way;
  if (len >= buffer.least_room) return false;
  buffer.closed = true;
  assert(buffer.under_way != 0 && !buffer.has_entry);
  if (!completion && port.rx_cq != nullptr) {
    port.rx_cq->reserve();
    buffer.has_entry = true;
  }
  return true;
}

bool Receive::end_part(const Receive& part, Errc err, qp::Port& port) noexcept {
  assert(kind == Kind::multi && buffer.under_way != 0);
  --buffer.under_way;
  const bool last = buffer.closed && buffer.under_way == 0;
  const bool full = last && buffer.why == Errc::ok;  // else the release has an entry of its own
  if (err == Errc::ok && part.msg_len > part.len) err = Errc::truncated;
  const uint64_t release_flag = full ? port.release_flag : 0;
  qp::Completion entry{part.context,   part.flags | release_flag | port.flag_of(part.msg_beside),
                       part.msg_len,   part.iov[0].iov_base,
                       part.msg_imm,   part.msg_tag,
                       part.msg_source};
  bool released = full;
  if (err != Errc::ok) {
    qp::CompletionError e;
    entry.len = err == Errc::truncated ? part.len : 0;
    e.entry = entry;
    e.err = err;
    if (err == Errc::truncated) e.overflow = part.msg_len - part.len;
    port.fail_receive(std::move(e));
  } else {
    if (part.completion) port.rx_cq->push(entry);
    released = full && part.completion;
    if (port.recv_counter != nullptr) port.recv_counter->add(1);
  }
  if (!last) return false;
  if (buffer.has_entry) port.rx_cq->unreserve();
  if (!released) release(port);
  return true;
}

// An entry for the release alone.
void Receive::release(qp::Port& port) const noexcept {
  if (port.rx_cq == nullptr) return;
  if (buffer.why == Errc::ok) {
    port.rx_cq->push({.context = context, .flags = port.release_flag, .buf = buffer.begin});
    return;
  }
  qp::CompletionError e;
  e.entry = {
      .context = context, .flags = flags | port.release_flag, .buf = buffer.begin, .tag = tag};
  e.err = buffer.why;
  port.fail_receive(std::move(e));
}

bool Receive::close(Errc why, qp::Port& port) noexcept {
  assert(!buffer.closed && why != Errc::ok);
  buffer.closed = true;
  buffer.why = why;
  if (buffer.under_way > 0) return false;
  release(port);
  return true;
}

// ---- its messages -------------------------------------------------------------------------------

Status Matcher::recv_multi(const RecvWr& wr, uint64_t least_room) noexcept {
  if (wr.iov_count != 1) return Errc::invalid;
  // All or nothing: a message that arrived earlier must not be overtaken by a later one because the
  // queue was full in between.
  if (!early_.empty(wr.tagged) && !prepare_unexpected(wr, least_room)) return Errc::again;
  Receive* r = receives_.take();
  if (r == nullptr) return Errc::again;
  r->fill(wr);
  r->make_multi(least_room);
  posted(wr.tagged).push_back(r);
  for (bool open = true; open && !early_.empty(wr.tagged);) {
    Unexpected* u = early_.find(wr);
    if (u == nullptr) break;
    open = u->len < r->len && r->len - u->len >= r->buffer.least_room;
    take_multi(*u, *r);  // the last one may release the buffer: r is gone then
  }
  return {};
}

// Makes room in the queue for every unexpected message that will go into the buffer. False: no
// memory, nothing has been done.
bool Matcher::prepare_unexpected(const RecvWr& wr, uint64_t least_room) noexcept {
  size_t entries = 1;  // of the release
  uint64_t room = wr.len;
  least_room = std::max<uint64_t>(least_room, 1);
  for (Unexpected* u = early_.front(wr.tagged); u != nullptr; u = early_.after(*u)) {
    if (wr.tagged && !tags_match(u->tag, wr.tag, wr.ignore)) continue;
    if (!source_matches(wr.source, u->source)) continue;
    ++entries;
    if (u->len >= room || room - u->len < least_room) break;
    room -= u->len;
  }
  return entries == 1 || port_.rx_cq == nullptr || port_.rx_cq->make_room(entries);
}

void Matcher::cut(Receive& buffer, Receive& part) noexcept {
  if (buffer.cut(part, port_)) posted(buffer.tagged).remove(&buffer);
}

void Matcher::end_part(const Receive& part, Errc err) noexcept {
  if (Receive& buffer = *part.owner; buffer.end_part(part, err, port_)) receives_.give(&buffer);
}

bool Matcher::on_multi_message(Qp& qp, const Arrival& a, Receive& buffer) noexcept {
  // one entry: of the message, or of the release that it may bring
  if (port_.rx_cq != nullptr && !port_.rx_cq->has_room()) return false;
  Receive here;
  const bool offered = a.where == Arrival::Where::offered;
  Receive* part = offered ? receives_.take() : &here;
  if (part == nullptr) return false;
  *static_cast<ListHook*>(part) = {};
  part->meet(a, source_to_report(qp));
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
void Matcher::take_multi(Unexpected& u, Receive& buffer) noexcept {
  Receive here;
  Receive* part = u.qp != nullptr ? receives_.take() : &here;
  const bool no_memory = part == nullptr;
  if (no_memory) part = &here;
  *static_cast<ListHook*>(part) = {};
  part->meet(u, source_to_report(u));
  early_.remove(u);
  cut(buffer, *part);
  if (u.qp != nullptr) {
    Qp& qp = *u.qp;
    const Arrival offer = u.offer;
    drop(u);
    if (!no_memory) return begin(qp, offer, *part);
    qp.drop_offer(offer.offer_id);
    end_part(*part, Errc::no_memory);
    return;
  }
  if (const uint64_t n = std::min(u.len, part->len); n > 0) {
    std::memcpy(part->iov[0].iov_base, u.payload.get(), n);
  }
  drop(u);
  end_part(*part, Errc::ok);
}

}  // namespace aperture::msg
