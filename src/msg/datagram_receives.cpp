// Datagrams and the receives that they find: see datagram_receives.hpp.
#include "msg/datagram_receives.hpp"

#include <algorithm>
#include <cassert>

#include "base/iov.hpp"
#include "wire/datagram.hpp"

namespace aperture::msg {

DatagramReceives::DatagramReceives(qp::Port& port, size_t planned, const Rules& rules) noexcept
    : port_(port), rules_(rules), pool_(planned, kMostReceives) {}

Status DatagramReceives::post(const qp::RecvWr& wr, Receive*& made) noexcept {
  assert(wr.len >= rules_.prefix_bytes && !wr.tagged);
  made = pool_.take();
  if (made == nullptr) return Errc::again;
  made->fill(wr);
  posted_.push_back(made);
  ++count_;
  return {};
}

Status DatagramReceives::recv(const qp::RecvWr& wr) noexcept {
  Receive* made = nullptr;
  return post(wr, made);
}

Status DatagramReceives::recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept {
  if (wr.iov_count != 1 || rules_.prefix_bytes != 0) return Errc::invalid;
  Receive* made = nullptr;
  if (Status s = post(wr, made); !s) return s;
  made->make_multi(least_room);
  return {};
}

size_t DatagramReceives::room() const noexcept {
  if (count_ == 0) return 0;
  size_t places = count_;
  if (const Receive& first = *posted_.front();
      first.kind == Receive::Kind::multi && first.len > first.buffer.least_room) {
    places += (first.len - first.buffer.least_room) / wire::kDatagramMtu;
  }
  return port_.rx_cq != nullptr ? std::min(places, port_.rx_cq->room()) : places;
}

Receive* DatagramReceives::find(uint64_t source) noexcept {
  for (Receive* r = posted_.front(); r != nullptr; r = posted_.after(r)) {
    if (!rules_.directed || r->source == qp::kAnySource || r->source == source) return r;
  }
  return nullptr;
}

bool DatagramReceives::take(const DatagramMessage& message) noexcept {
  if (port_.rx_cq != nullptr && !port_.rx_cq->has_room()) return false;
  Receive* r = find(message.source);
  if (r == nullptr) return false;
  if (r->kind == Receive::Kind::multi) {
    take_multi(message, *r);
    return true;
  }
  posted_.remove(r);
  --count_;
  r->flags |= message.flags;
  r->msg_len = message.payload.size() + rules_.prefix_bytes;
  r->msg_imm = message.imm;
  r->msg_beside = message.beside;
  r->msg_source = rules_.report_source ? message.reported : qp::kNoSource;
  scatter(r->iov, r->iov_count, rules_.prefix_bytes, message.payload.data(),
          std::min<uint64_t>(message.payload.size(), r->len - rules_.prefix_bytes));
  deliver(*r);
  return true;
}

void DatagramReceives::deliver(Receive& r) noexcept {
  const bool whole = r.msg_len <= r.len;
  const qp::Completion entry{r.context,
                             r.flags | port_.flag_of(r.msg_beside),
                             whole ? r.msg_len : r.len,
                             r.iov_count > 0 ? r.iov[0].iov_base : nullptr,
                             r.msg_imm,
                             0,
                             r.msg_source};
  if (!whole) {
    qp::CompletionError e;
    e.entry = entry;
    e.err = Errc::truncated;
    e.overflow = r.msg_len - r.len;
    port_.fail_receive(std::move(e));
  } else {
    if (r.completion == qp::kEntry) port_.rx_cq->push(entry);
    if (port_.recv_counter != nullptr) port_.recv_counter->add(1);
  }
  pool_.give(&r);
}

void DatagramReceives::take_multi(const DatagramMessage& message, Receive& buffer) noexcept {
  Receive part;
  *static_cast<ListHook*>(&part) = {};
  part.msg_len = message.payload.size();
  part.msg_tag = 0;
  part.msg_imm = message.imm;
  part.msg_beside = message.beside;
  part.msg_source = rules_.report_source ? message.reported : qp::kNoSource;
  if (buffer.cut(part, port_)) {
    posted_.remove(&buffer);
    --count_;
  }
  part.flags |= message.flags;
  scatter(part.iov, 1, 0, message.payload.data(), std::min(part.msg_len, part.len));
  if (buffer.end_part(part, Errc::ok, port_)) pool_.give(&buffer);
}

void DatagramReceives::fail(Receive& r, Errc why) noexcept {
  if (r.kind == Receive::Kind::multi) {
    [[maybe_unused]] const bool over = r.close(why, port_);
    assert(over);  // no message is under way in it
  } else {
    qp::CompletionError e;
    e.entry.context = r.context;
    e.entry.flags = r.flags;
    e.entry.buf = r.iov_count > 0 ? r.iov[0].iov_base : nullptr;
    e.err = why;
    port_.fail_receive(std::move(e));
  }
  pool_.give(&r);
}

Status DatagramReceives::cancel(void* context) noexcept {
  for (Receive* r = posted_.front(); r != nullptr; r = posted_.after(r)) {
    if (r->context != context) continue;
    posted_.remove(r);
    --count_;
    fail(*r, Errc::canceled);
    return {};
  }
  return Errc::no_entry;
}

void DatagramReceives::cancel_all(Errc why) noexcept {
  while (Receive* r = posted_.pop_front()) fail(*r, why);
  count_ = 0;
}

void DatagramReceives::rename_source(uint64_t before, uint64_t now) noexcept {
  for (Receive* r = posted_.front(); r != nullptr; r = posted_.after(r)) {
    if (r->source == before) r->source = now;
  }
}

}  // namespace aperture::msg
