// Posting into the send queue: see send_queue.hpp.
#include "ib/send_queue.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace aperture::ib {

SendQueue::SendQueue(QueuePair& qp, const QpSpec& spec)
    : qp_(qp),
      cq_(spec.send_cq),
      qpn_(spec.qpn),
      max_wr_(spec.max_send_wr),
      max_sge_(std::max(spec.max_send_sge, 1u)),
      max_inline_bytes_(spec.max_inline_bytes),
      mask_(std::bit_ceil(std::max(max_wr_, 1u)) - 1),
      signal_all_(spec.sq_sig_all),
      wqes_(size_t{mask_} + 1, spec.memory),
      sges_((size_t{mask_} + 1) * max_sge_, spec.memory),
      inline_((size_t{mask_} + 1) * max_inline_bytes_, spec.memory) {}

void SendQueue::post(const SendWr& wr) noexcept {
  assert(!is_full());
  Wqe& w = fill(wr, wr.flags);
  w.compare_add = wr.compare_add;
  w.swap = wr.swap;
  w.srq_number = wr.srq_number;
  if (wr.bind != nullptr) w.bind = *wr.bind;
  if (wr.route != nullptr) {
    w.route = *wr.route;
    w.remote_qpn = wr.remote_qpn;
    w.remote_qkey = wr.remote_qkey;
  }
  w.is_inline = wr.inline_parts != nullptr || (wr.flags & kInline) != 0;
  std::byte* bytes = inline_of(tail);
  const auto take = [&](const void* from, uint64_t n) {
    if (n != 0) std::memcpy(bytes + w.len, from, n);
    w.len += n;
  };
  if (wr.inline_parts != nullptr) {
    for (uint32_t i = 0; i < wr.inline_count; ++i) {
      take(wr.inline_parts[i].bytes, wr.inline_parts[i].len);
    }
  } else if (w.is_inline) {
    for (uint32_t i = 0; i < wr.sge_count; ++i) {
      take(reinterpret_cast<const void*>(wr.sge[i].addr), wr.sge[i].length);
    }
  } else {
    w.sge_count = static_cast<uint8_t>(wr.sge_count);
    Sge* to = sges_of(tail);
    for (uint32_t i = 0; i < wr.sge_count; ++i) {
      to[i] = wr.sge[i];
      // there is no memory that a direct copy could be made from or to
      if (to[i].lkey == kNullLkey) [[unlikely]]
        w.owner_only = true;
      w.len += wr.sge[i].length;
    }
  }
  if (is_atomic(w.op)) w.len = sizeof(uint64_t);  // of the room that there may be
  assert(!w.is_inline || w.len <= max_inline_bytes_);
  ++tail;
}

WcStatus SendQueue::gather(LocalMemory& memory, uint32_t at, uint64_t offset, std::byte* to,
                           uint64_t n) noexcept {
  const Wqe& w = wqe(at);
  assert(offset + n <= w.len);
  if (!w.is_inline) return memory.gather(sges_of(at), w.sge_count, offset, to, n);
  std::memcpy(to, inline_of(at) + offset, n);
  return WcStatus::success;
}

WcStatus SendQueue::put_piece(LocalMemory& memory, uint32_t at, uint64_t offset, uint64_t n,
                              transport::PieceOut& out) noexcept {
  const Wqe& w = wqe(at);
  if (w.is_inline || w.sge_count != 1) return gather(memory, at, offset, out.at(), n);
  assert(offset + n <= w.len);
  return memory.put_piece(*sges_of(at), offset, n, out);
}

}  // namespace aperture::ib
