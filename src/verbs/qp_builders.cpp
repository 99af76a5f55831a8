// The extended face of a queue pair: wr_start, what builds work requests, wr_complete and wr_abort.
// ibv_wr_post(3). Gathered in the batch, posted together or not at all.
#include <cstdio>

#include <new>

#include "verbs/errors.hpp"
#include "verbs/mw.hpp"
#include "verbs/post_fault.hpp"
#include "verbs/qp.hpp"
#include "verbs/receives.hpp"
#include "verbs/wr_parts.hpp"

namespace aperture::verbs {

namespace {

using Entry = Batch::Entry;

DeviceQp& ours(ibv_qp_ex* qp) noexcept {
  return object_of<DeviceQp>(qp);
}

// Runs fn on the batch; what is thrown is its error.
template <typename Fn>
void build(ibv_qp_ex* qp, Fn&& fn) noexcept {
  Batch& batch = ours(qp).batch;
  try {
    if (batch.error == 0) batch.error = fn(batch);
  } catch (...) {
    batch.error = refuse(ENOMEM, "ibv_wr_*: out of memory");
  }
}

// Inline data of the work request.
void take_inline(Batch& batch, Entry& entry, const void* from, size_t n) {
  const auto* bytes = static_cast<const std::byte*>(from);
  batch.bytes.insert(batch.bytes.end(), bytes, bytes + n);
  entry.inline_bytes += n;
}
void begin_inline(Batch& batch, Entry& entry) noexcept {
  entry.is_inline = true;
  entry.first_byte = batch.bytes.size();
  entry.inline_bytes = 0;
}

// Begins a work request; fn(entry, batch) fills in what this operation has.
template <typename Fn>
void begin(ibv_qp_ex* qp, ib::SendOp op, Fn&& fn) noexcept {
  build(qp, [&](Batch& batch) {
    Entry entry;
    entry.wr.id = qp->wr_id;
    entry.wr.flags = qp->wr_flags & ~uint32_t{IBV_SEND_INLINE};
    entry.wr.op = op;
    const int error = fn(entry, batch);
    if (error == 0) batch.entries.push_back(entry);
    return error;
  });
}

// What is set belongs to the work request that was begun last.
template <typename Fn>
void set(ibv_qp_ex* qp, Fn&& fn) noexcept {
  build(qp, [&](Batch& batch) {
    if (batch.entries.empty())
      return refuse(EINVAL, "ibv_wr_set_*: it belongs behind the call that begins a work request");
    return fn(batch, batch.entries.back());
  });
}

void begin_remote(ibv_qp_ex* qp, ib::SendOp op, uint32_t rkey, uint64_t addr,
                  uint32_t imm) noexcept {
  begin(qp, op, [&](Entry& entry, Batch&) {
    fill_remote(entry.wr, addr, rkey);
    entry.wr.imm = imm;
    return 0;
  });
}

void wr_rdma_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) noexcept {
  begin_remote(qp, ib::SendOp::write, rkey, addr, 0);
}
void wr_rdma_write_imm(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, __be32 imm) noexcept {
  begin_remote(qp, ib::SendOp::write_with_imm, rkey, addr, imm);
}
void wr_rdma_read(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) noexcept {
  begin_remote(qp, ib::SendOp::read, rkey, addr, 0);
}
void wr_send(ibv_qp_ex* qp) noexcept {
  begin_remote(qp, ib::SendOp::send, 0, 0, 0);
}
void wr_send_imm(ibv_qp_ex* qp, __be32 imm) noexcept {
  begin_remote(qp, ib::SendOp::send_with_imm, 0, 0, imm);
}
void wr_send_inv(ibv_qp_ex* qp, uint32_t rkey) noexcept {
  begin_remote(qp, ib::SendOp::send_with_inv, 0, 0, rkey);
}
void wr_local_inv(ibv_qp_ex* qp, uint32_t rkey) noexcept {
  begin_remote(qp, ib::SendOp::local_inv, 0, 0, rkey);
}

void wr_atomic_cmp_swp(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, uint64_t compare,
                       uint64_t swap) noexcept {
  begin(qp, ib::SendOp::cmp_swap, [&](Entry& entry, Batch&) {
    fill_atomic(entry.wr, addr, rkey, compare, swap);
    return 0;
  });
}
void wr_atomic_fetch_add(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, uint64_t add) noexcept {
  begin(qp, ib::SendOp::fetch_add, [&](Entry& entry, Batch&) {
    fill_atomic(entry.wr, addr, rkey, add, 0);
    return 0;
  });
}

// Its 8 bytes are taken now.
void wr_atomic_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, const void* value) noexcept {
  begin(qp, ib::SendOp::atomic_write, [&](Entry& entry, Batch& batch) {
    fill_remote(entry.wr, addr, rkey);
    begin_inline(batch, entry);
    take_inline(batch, entry, value, sizeof(uint64_t));
    return 0;
  });
}

static_assert(kPlaceGlobal == ib::kFlushGlobal && kPlacePersistent == ib::kFlushPersistent);

void wr_flush(ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, size_t len, uint8_t type,
              uint8_t level) noexcept {
  begin(qp, ib::SendOp::flush, [&](Entry& entry, Batch&) {
    constexpr unsigned kTypes = kPlaceGlobal | kPlacePersistent;
    if ((type & kTypes) == 0 || (type & ~kTypes) != 0 || level > kLevelMr)
      return refuse(EINVAL,
                    "ibv_wr_flush: placement type %u, selectivity level %u; the type is "
                    "IBV_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT or both, the level IBV_FLUSH_RANGE or "
                    "IBV_FLUSH_MR",
                    type, level);
    fill_remote(entry.wr, addr, rkey);
    entry.wr.compare_add = len;
    entry.wr.swap = type | (level == kLevelMr ? ib::kFlushWhole : 0);
    return 0;
  });
}

void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* mw, uint32_t rkey, const ibv_mw_bind_info* info) noexcept {
  const void* caller = __builtin_return_address(0);
  begin(qp, ib::SendOp::bind_mw, [&](Entry& entry, Batch&) {
    const int error =
        validate_bind("ibv_wr_bind_mw", BindBy::work_request, mw, qp->qp_base.context, *info);
    if (error != 0) return error;
    entry.bind = {};
    fill_bind(entry.bind, mw, *info, rkey, caller);
    entry.has_bind = true;
    return 0;
  });
}

// What this device has not: the batch is refused.
void refuse_operation(ibv_qp_ex* qp, const char* what) noexcept {
  build(qp, [&](Batch&) { return refuse(EOPNOTSUPP, "%s is not to be had", what); });
}
void wr_send_tso(ibv_qp_ex* qp, void*, uint16_t, uint16_t) noexcept {
  refuse_operation(qp, "ibv_wr_send_tso");
}

void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* ah, uint32_t qpn, uint32_t qkey) noexcept {
  set(qp, [&](Batch&, Entry& entry) {
    return fill_datagram("ibv_wr_set_ud_addr", entry.wr, ah, qpn, qkey);
  });
}

void wr_set_xrc_srqn(ibv_qp_ex* qp, uint32_t number) noexcept {
  set(qp, [&](Batch&, Entry& entry) {
    entry.wr.srq_number = number;
    return 0;
  });
}

void wr_set_sge_list(ibv_qp_ex* qp, size_t count, const ibv_sge* list) noexcept {
  set(qp, [&](Batch& batch, Entry& entry) {
    if (count > ib::kMaxSge)
      return refuse(EINVAL, "ibv_wr_set_sge_list: %zu pieces; at most %u", count, ib::kMaxSge);
    if (entry.wr.op == ib::SendOp::flush) return 0;  // which may have data, and moves none
    entry.first_sge = batch.sges.size();
    entry.wr.sge_count = static_cast<uint32_t>(count);
    batch.sges.insert(batch.sges.end(), sges_of(list), sges_of(list) + count);
    return 0;
  });
}
void wr_set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t addr, uint32_t length) noexcept {
  const ibv_sge one{addr, length, lkey};
  wr_set_sge_list(qp, length != 0 ? 1 : 0, &one);
}

void wr_set_inline_data_list(ibv_qp_ex* qp, size_t count, const ibv_data_buf* list) noexcept {
  set(qp, [&](Batch& batch, Entry& entry) {
    if (entry.wr.op == ib::SendOp::flush) return 0;
    begin_inline(batch, entry);
    const uint32_t room = ours(qp).init.cap.max_inline_data;
    for (size_t i = 0; i < count; ++i) {
      if (list[i].length > room - entry.inline_bytes)
        return refuse(EINVAL, "ibv_wr_set_inline_data: more than max_inline_data, %u", room);
      take_inline(batch, entry, list[i].addr, list[i].length);
    }
    return 0;
  });
}
void wr_set_inline_data(ibv_qp_ex* qp, void* addr, size_t length) noexcept {
  const ibv_data_buf one{addr, length};
  wr_set_inline_data_list(qp, 1, &one);
}

void wr_start(ibv_qp_ex* qp) noexcept {
  DeviceQp& queue = ours(qp);
  Batch& batch = queue.batch;
  if (queue.engine().life().is_over()) [[unlikely]] {
    new (&batch) Batch;  // a thread of the parent's may have been in the middle of it
    batch.mutex.lock();
    batch.error = EOPNOTSUPP;
    return;
  }
  batch.mutex.lock();
  batch.clear();
}

void wr_abort(ibv_qp_ex* qp) noexcept {
  Batch& batch = ours(qp).batch;
  batch.clear();
  batch.mutex.unlock();
}

// Points the entry at its pieces, which have their final place now. `part` is the caller's room.
void settle(const Batch& batch, Entry& entry, ib::InlinePart& part) noexcept {
  entry.wr.bind = entry.has_bind ? &entry.bind : nullptr;
  if (entry.is_inline) {
    part = {batch.bytes.data() + entry.first_byte, entry.inline_bytes};
    entry.wr.inline_parts = &part;
    entry.wr.inline_count = 1;
  } else {
    entry.wr.sge = batch.sges.data() + entry.first_sge;
  }
}

// The call, and which of the batch; none was posted.
int refuse_one(const DeviceQp& qp, size_t at, const ib::SendWr& wr, ib::PostFault fault) noexcept {
  char call[80];
  std::snprintf(call, sizeof call, "ibv_wr_complete: work request %zu, and so none of the batch",
                at);
  return refuse_post(call, qp, wr, fault);
}

int post_all(DeviceQp& qp) noexcept {
  Batch& batch = qp.batch;
  if (batch.error != 0) return batch.error;
  nic::EngineGuard guard(qp.engine());
  ib::InlinePart part{};
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    settle(batch, batch.entries[i], part);
    const ib::SendWr& wr = batch.entries[i].wr;
    const ib::PostFault fault = qp.core().fault_of(wr, static_cast<uint32_t>(i));
    if (fault != ib::PostFault::none) return refuse_one(qp, i, wr, fault);
  }
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    settle(batch, batch.entries[i], part);
    const ib::SendWr& wr = batch.entries[i].wr;
    if (!qp.core().post_send(wr).ok()) return refuse_one(qp, i, wr, qp.core().fault_of(wr, 0));
  }
  qp.engine().on_posted();
  return 0;
}

int wr_complete(ibv_qp_ex* qp) noexcept {
  DeviceQp& queue = ours(qp);
  const int error = post_all(queue);
  queue.batch.clear();
  queue.batch.mutex.unlock();
  return error;
}

}  // namespace

void fill_builders(NewestQpEx& ex) noexcept {
  ex.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  ex.wr_atomic_fetch_add = wr_atomic_fetch_add;
  ex.wr_bind_mw = wr_bind_mw;
  ex.wr_local_inv = wr_local_inv;
  ex.wr_rdma_read = wr_rdma_read;
  ex.wr_rdma_write = wr_rdma_write;
  ex.wr_rdma_write_imm = wr_rdma_write_imm;
  ex.wr_send = wr_send;
  ex.wr_send_imm = wr_send_imm;
  ex.wr_send_inv = wr_send_inv;
  ex.wr_send_tso = wr_send_tso;
  ex.wr_set_ud_addr = wr_set_ud_addr;
  ex.wr_set_xrc_srqn = wr_set_xrc_srqn;
  ex.wr_set_inline_data = wr_set_inline_data;
  ex.wr_set_inline_data_list = wr_set_inline_data_list;
  ex.wr_set_sge = wr_set_sge;
  ex.wr_set_sge_list = wr_set_sge_list;
  ex.wr_start = wr_start;
  ex.wr_complete = wr_complete;
  ex.wr_abort = wr_abort;
  ex.set(wr_atomic_write, wr_flush);
}

}  // namespace aperture::verbs
