// The extended face of a completion queue: ibv_create_cq_ex(3), "Polling an extended CQ".
//
// start_poll takes the first completion, next_poll the following ones; what is read is read from
// the one that was taken last. The engine lock is held only while one is taken, so an application
// may post between start_poll and end_poll.
#include <ctime>

#include "base/clock.hpp"
#include "base/ticks_in.hpp"
#include "verbs/cq.hpp"

namespace aperture::verbs {

namespace {

DeviceCq& ours(ibv_cq_ex* cq) noexcept {
  return object_of<DeviceCq>(cq);
}

// 0, ENOENT when there is no completion, or another errno. idle: share_core() is due.
int take_next(DeviceCq& cq, bool& idle) noexcept {
  nic::Engine& engine = cq.context->engine();
  nic::EngineGuard guard(engine);
  if (!take_one(cq, cq.current)) {
    if (!engine.is_look_due()) return ENOENT;
    idle = engine.look([&cq] { return !cq.queue->empty(); });
    // not asked again where it is empty: that would be another of the rests of its arming
    if (cq.queue->empty() || !take_one(cq, cq.current)) return ENOENT;
  }
  cq.ex.wr_id = cq.current.id;
  cq.ex.status = static_cast<ibv_wc_status>(cq.current.status);
  return 0;
}

int start_poll(ibv_cq_ex* cq, ibv_poll_cq_attr* attr) noexcept {
  if (attr != nullptr && attr->comp_mask != 0) return EINVAL;
  DeviceCq& queue = ours(cq);
  if (queue.context->engine().life().is_over()) [[unlikely]]
    return EOPNOTSUPP;
  if (!queue.single_threaded) queue.poll_mutex.lock();
  bool idle = false;
  const int error = take_next(queue, idle);
  if (error != 0) {
    if (!queue.single_threaded) queue.poll_mutex.unlock();
    if (idle) [[unlikely]]
      queue.context->engine().share_core();
  }
  return error;
}

int next_poll(ibv_cq_ex* cq) noexcept {
  DeviceCq& queue = ours(cq);
  if (queue.context->engine().life().is_over()) [[unlikely]]
    return EOPNOTSUPP;
  bool idle = false;  // who asks for the next one has had one
  return take_next(queue, idle);
}

void end_poll(ibv_cq_ex* cq) noexcept {
  DeviceCq& queue = ours(cq);
  if (!queue.single_threaded) queue.poll_mutex.unlock();
}

// Nanoseconds of the wall clock at which the completion was written.
uint64_t read_wallclock(ibv_cq_ex* cq) noexcept {
  const uint64_t ticks_per_ms = ticks_in<kNsPerMs>();
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  const uint64_t now_wall_ns =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  const uint64_t age = ticks() - ours(cq).current.timestamp;
  return now_wall_ns -
         static_cast<uint64_t>(static_cast<double>(age) * 1e6 / static_cast<double>(ticks_per_ms));
}

ibv_wc_opcode read_opcode(ibv_cq_ex* cq) noexcept {
  return static_cast<ibv_wc_opcode>(ours(cq).current.opcode);
}
uint32_t read_vendor_err(ibv_cq_ex* cq) noexcept {
  return ours(cq).current.vendor_err;
}
uint32_t read_byte_len(ibv_cq_ex* cq) noexcept {
  return ours(cq).current.byte_len;
}
__be32 read_imm_data(ibv_cq_ex* cq) noexcept {
  return ours(cq).current.imm;
}
uint32_t read_qp_num(ibv_cq_ex* cq) noexcept {
  return ours(cq).current.qpn;
}
uint32_t read_src_qp(ibv_cq_ex* cq) noexcept {
  return ours(cq).current.src_qpn;
}
unsigned int read_wc_flags(ibv_cq_ex* cq) noexcept {
  return ours(cq).current.flags;
}
uint32_t read_slid(ibv_cq_ex*) noexcept {
  return 0;
}
uint8_t read_sl(ibv_cq_ex*) noexcept {
  return 0;
}
uint8_t read_dlid_path_bits(ibv_cq_ex*) noexcept {
  return 0;
}
uint64_t read_completion_ts(ibv_cq_ex* cq) noexcept {
  return ours(cq).current.timestamp;
}

}  // namespace

void fill_extended(ibv_cq_ex& ex, uint64_t wc_flags) noexcept {
  ex.start_poll = start_poll;
  ex.next_poll = next_poll;
  ex.end_poll = end_poll;
  ex.read_opcode = read_opcode;
  ex.read_vendor_err = read_vendor_err;
  ex.read_wc_flags = read_wc_flags;
  // asked for or not: an application that reads what it did not ask for gets it
  ex.read_byte_len = read_byte_len;
  ex.read_imm_data = read_imm_data;
  ex.read_qp_num = read_qp_num;
  ex.read_src_qp = read_src_qp;
  ex.read_slid = read_slid;
  ex.read_sl = read_sl;
  ex.read_dlid_path_bits = read_dlid_path_bits;
  if ((wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) != 0) {
    ex.read_completion_ts = read_completion_ts;
  }
  if ((wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) != 0) {
    ex.read_completion_wallclock_ns = read_wallclock;
  }
}

}  // namespace aperture::verbs
