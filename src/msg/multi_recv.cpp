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

Status Matcher::recv_multi(const RecvWr& wr, uint64_t least_room) noexcept {
  if (wr.iov_count != 1) return Errc::invalid;
  Book& b = book(wr.tagged);
  // All or nothing: a message that arrived earlier must not be overtaken by a later one because the
  // queue was full in between.
  if (!b.unexpected.empty() && !prepare_unexpected(b, wr, least_room)) return Errc::again;
  Recv* r = receives_.take();
  if (r == nullptr) return Errc::again;
  fill(*r, wr);
  r->multi = true;
  r->plain = false;
  r->owner = nullptr;
  r->buffer = {std::max<uint64_t>(least_room, 1),        0, false, false, Errc::ok,
               static_cast<std::byte*>(wr.iov->iov_base)};
  b.posted.push_back(r);
  for (bool open = true; open && !b.unexpected.empty();) {
    Unexpected* u = find_unexpected(b, wr);
    if (u == nullptr) break;
    open = u->len < r->len && r->len - u->len >= r->buffer.least_room;
    take_multi(*u, *r);  // the last one may release the buffer: r is gone then
  }
  return {};
}

// Makes room in the queue for every unexpected message that will go into the buffer. False: no
// memory, nothing has been done.
bool Matcher::prepare_unexpected(Book& b, const RecvWr& wr, uint64_t least_room) noexcept {
  size_t entries = 1;  // of the release
  uint64_t room = wr.len;
  least_room = std::max<uint64_t>(least_room, 1);
  for (Unexpected* u = b.unexpected.front(); u != nullptr; u = b.unexpected.after(u)) {
    if (wr.tagged && !tags_match(u->tag, wr.tag, wr.ignore)) continue;
    if (!source_matches(wr.source, u->source)) continue;
    ++entries;
    if (u->len >= room || room - u->len < least_room) break;
    room -= u->len;
  }
  return entries == 1 || port_.rx_cq == nullptr || port_.rx_cq->make_room(entries);
}

// The part of the buffer that the next message gets: part.msg_* are set, part.iov and len become
// its place. Takes the buffer off the posted ones when too little is left.
void Matcher::cut(Recv& buffer, Recv& part) noexcept {
  assert(buffer.multi && !buffer.buffer.closed && buffer.iov_count == 1);
  part.owner = &buffer;
  part.multi = true;
  part.context = buffer.context;
  part.flags = buffer.flags;
  part.completion = buffer.completion;
  part.tagged = buffer.tagged;
  part.tag = buffer.tag;
  part.len = buffer.len;
  part.iov_count = 1;
  part.iov[0] = buffer.iov[0];
  const uint64_t n = std::min(part.msg_len, buffer.len);
  buffer.iov[0].iov_base = static_cast<std::byte*>(buffer.iov[0].iov_base) + n;
  buffer.len -= n;
  buffer.iov[0].iov_len = buffer.len;
  ++buffer.buffer.under_way;
  if (buffer.len >= buffer.buffer.least_room) return;
  book(buffer.tagged).posted.remove(&buffer);
  buffer.buffer.closed = true;
  assert(buffer.buffer.under_way != 0 && !buffer.buffer.has_entry);
  if (!buffer.completion && port_.rx_cq != nullptr) {
    port_.rx_cq->reserve();
    buffer.buffer.has_entry = true;
  }
}

bool Matcher::on_multi_message(Qp& qp, const Arrival& a, Recv& buffer) noexcept {
  // one entry: of the message, or of the release that it may bring
  if (port_.rx_cq != nullptr && !port_.rx_cq->has_room()) return false;
  Recv here;
  const bool offered = a.where == Arrival::Where::offered;
  Recv* part = offered ? receives_.take() : &here;
  if (part == nullptr) return false;
  *static_cast<ListHook*>(part) = {};
  part->msg_len = a.len;
  part->msg_tag = a.tag;
  part->msg_imm = a.imm;
  part->msg_beside = a.beside;
  part->msg_source = report_source_ ? host_.source_of(qp) : qp::kNoSource;
  cut(buffer, *part);
  if (offered) {
    begin(qp, a, *part);
    return true;
  }
  if (const uint64_t n = std::min(a.len, part->len); n > 0) a.scatter_to(part->iov, 1, n);
  end_multi_message(*part, Errc::ok);
  return true;
}

// A message that was there before the buffer.
void Matcher::take_multi(Unexpected& u, Recv& buffer) noexcept {
  Recv here;
  Recv* part = u.qp != nullptr ? receives_.take() : &here;
  const bool no_memory = part == nullptr;
  if (no_memory) part = &here;
  *static_cast<ListHook*>(part) = {};
  part->msg_len = u.len;
  part->msg_tag = u.tag;
  part->msg_imm = u.imm;
  part->msg_beside = u.beside;
  part->msg_source = report_source_ ? u.source : qp::kNoSource;
  unlist(book(buffer.tagged), u);
  cut(buffer, *part);
  if (u.qp != nullptr) {
    Qp& qp = *u.qp;
    const Arrival offer = u.offer;
    forget(u);
    if (!no_memory) return begin(qp, offer, *part);
    qp.drop_offer(offer.offer_id);
    end_multi_message(*part, Errc::no_memory);
    return;
  }
  if (const uint64_t n = std::min(u.len, part->len); n > 0) {
    std::memcpy(part->iov[0].iov_base, u.payload.get(), n);
  }
  forget(u);
  end_multi_message(*part, Errc::ok);
}

// The bytes of a message are in their place, or will not come. Its entry; with it the release of a
// closed buffer that waited for this message alone.
void Matcher::end_multi_message(const Recv& part, Errc err) noexcept {
  Recv& buffer = *part.owner;
  MultiRecv& m = buffer.buffer;
  assert(buffer.multi && m.under_way != 0);
  --m.under_way;
  const bool last = m.closed && m.under_way == 0;
  const bool full = last && m.why == Errc::ok;  // else the release has an entry of its own
  if (err == Errc::ok && part.msg_len > part.len) err = Errc::truncated;
  const uint64_t release = full ? port_.release_flag : 0;
  qp::Completion entry{part.context,   part.flags | release | port_.flag_of(part.msg_beside),
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
    if (port_.rx_cq != nullptr) port_.rx_cq->push_error(std::move(e));
    if (port_.recv_counter != nullptr) port_.recv_counter->add_error(1);
  } else {
    if (part.completion) port_.rx_cq->push(entry);
    released = full && part.completion;
    if (port_.recv_counter != nullptr) port_.recv_counter->add(1);
  }
  if (!last) return;
  if (m.has_entry) port_.rx_cq->unreserve();
  if (!released) release_multi(buffer);
  receives_.give(&buffer);
}

// An entry for the release alone.
void Matcher::release_multi(Recv& buffer) noexcept {
  const MultiRecv& m = buffer.buffer;
  if (port_.rx_cq == nullptr) return;
  if (m.why == Errc::ok) {
    port_.rx_cq->push({.context = buffer.context, .flags = port_.release_flag, .buf = m.begin});
    return;
  }
  qp::CompletionError e;
  e.entry = {.context = buffer.context,
             .flags = buffer.flags | port_.release_flag,
             .buf = m.begin,
             .tag = buffer.tag};
  e.err = m.why;
  port_.rx_cq->push_error(std::move(e));
  if (port_.recv_counter != nullptr) port_.recv_counter->add_error(1);
}

// Ends a buffer that the caller has taken off the posted ones: no more messages, and one error as
// its release once those under way have come.
void Matcher::close_multi(Recv& buffer, Errc why) noexcept {
  MultiRecv& m = buffer.buffer;
  assert(!m.closed && why != Errc::ok);
  m.closed = true;
  m.why = why;
  if (m.under_way > 0) return;
  release_multi(buffer);
  receives_.give(&buffer);
}

}  // namespace aperture::msg
