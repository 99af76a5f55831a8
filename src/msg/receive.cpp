// A multi-receive buffer and its messages: see receive.hpp.
#include "msg/receive.hpp"

#include <algorithm>
#include <cassert>

namespace aperture::msg {

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

}  // namespace aperture::msg
