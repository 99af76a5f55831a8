// Posting: ibv_post_send(3), ibv_post_recv(3). The data path: no allocation, the engine lock once
// for a whole list, sentences only for what is refused.
#include "verbs/mw.hpp"
#include "verbs/post_fault.hpp"
#include "verbs/qp.hpp"
#include "verbs/receives.hpp"
#include "verbs/wr_parts.hpp"

namespace aperture::verbs {

static_assert(ib::kFence == IBV_SEND_FENCE && ib::kSignaled == IBV_SEND_SIGNALED);
static_assert(ib::kSolicited == IBV_SEND_SOLICITED && ib::kInline == IBV_SEND_INLINE);
static_assert(static_cast<int>(ib::SendOp::write) == IBV_WR_RDMA_WRITE);
static_assert(static_cast<int>(ib::SendOp::write_with_imm) == IBV_WR_RDMA_WRITE_WITH_IMM);
static_assert(static_cast<int>(ib::SendOp::send) == IBV_WR_SEND);
static_assert(static_cast<int>(ib::SendOp::send_with_imm) == IBV_WR_SEND_WITH_IMM);
static_assert(static_cast<int>(ib::SendOp::read) == IBV_WR_RDMA_READ);
static_assert(static_cast<int>(ib::SendOp::cmp_swap) == IBV_WR_ATOMIC_CMP_AND_SWP);
static_assert(static_cast<int>(ib::SendOp::fetch_add) == IBV_WR_ATOMIC_FETCH_AND_ADD);
static_assert(static_cast<int>(ib::SendOp::local_inv) == IBV_WR_LOCAL_INV);
static_assert(static_cast<int>(ib::SendOp::bind_mw) == IBV_WR_BIND_MW);
static_assert(static_cast<int>(ib::SendOp::send_with_inv) == IBV_WR_SEND_WITH_INV);
static_assert(static_cast<int>(ib::SendOp::flush) == kWrFlush);
static_assert(static_cast<int>(ib::SendOp::atomic_write) == kWrAtomicWrite);

namespace {

constexpr const char* kPostCall = "ibv_post_send";
// IBV_SEND_IP_CSUM is about packets of IP that a program makes itself: queue pairs that carry none
// do not look at it, of devices' either.
constexpr uint32_t kKnownFlags =
    IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE | IBV_SEND_IP_CSUM;

// What cannot be said in the core's words. 0 or an errno.
int validate(const ibv_send_wr& wr) noexcept {
  if (static_cast<uint32_t>(wr.opcode) >= ib::kSendOps)
    return refuse(EINVAL, "ibv_post_send: opcode %d is unknown", static_cast<int>(wr.opcode));
  if (wr.opcode == static_cast<ibv_wr_opcode>(kWrFlush))
    return refuse(
        EINVAL,
        "ibv_post_send: IBV_WR_FLUSH is posted by ibv_wr_flush(); a struct ibv_send_wr has "
        "no place for what it needs");
  if ((wr.send_flags & ~kKnownFlags) != 0)
    return refuse(EINVAL, "ibv_post_send: send_flags 0x%x have unknown bits", wr.send_flags);
  if (wr.num_sge < 0) return refuse(EINVAL, "ibv_post_send: num_sge is %d", wr.num_sge);
  return 0;
}

// The parts of it that not every operation has. 0 or an errno.
int fill_rest(DeviceQp& qp, const ibv_send_wr& wr, const void* caller, ib::SendWr& out,
              ib::BindWr& bind) noexcept {
  switch (out.op) {
    case ib::SendOp::cmp_swap:
    case ib::SendOp::fetch_add: {
      const auto& atomic = wr.wr.atomic;
      fill_atomic(out, atomic.remote_addr, atomic.rkey, atomic.compare_add, atomic.swap);
      break;
    }
    case ib::SendOp::bind_mw: {
      const auto& asked = wr.bind_mw;
      const int error = validate_bind(kPostCall, BindBy::work_request, asked.mw, qp.base()->context,
                                      asked.bind_info);
      if (error != 0) return error;
      fill_bind(bind, asked.mw, asked.bind_info, asked.rkey, caller);
      out.bind = &bind;
      break;
    }
    default: break;
  }
  if (qp.type == ib::QpType::ud) {
    const auto& ud = wr.wr.ud;
    return fill_datagram(kPostCall, out, ud.ah, ud.remote_qpn, ud.remote_qkey);
  }
  if (qp.type == ib::QpType::xrc_send) out.srq_number = wr.qp_type.xrc.remote_srqn;
  return 0;
}

// A field by itself. Two in one wide load would wait for the two stores with which the program has
// just written them to reach the cache: 13 cycles a post.
template <typename T>
T alone(const T& field) noexcept {
  return const_cast<const volatile T&>(field);
}

// Every member is named: the others would be wiped by `rep stos`, which takes as long as all
// the rest of this.
ib::SendWr plain_part(const ibv_send_wr& wr) noexcept {
  return {.id = wr.wr_id,
          .op = static_cast<ib::SendOp>(alone(wr.opcode)),
          .flags = alone(wr.send_flags),
          .sge = sges_of(wr.sg_list),
          .sge_count = static_cast<uint32_t>(wr.num_sge),
          .inline_parts = nullptr,
          .inline_count = 0,
          .remote_addr = wr.wr.rdma.remote_addr,
          .rkey = alone(wr.wr.rdma.rkey),
          .imm = alone(wr.imm_data),
          .compare_add = 0,
          .swap = 0,
          .srq_number = 0,
          .bind = nullptr,
          .route = nullptr,
          .remote_qpn = 0,
          .remote_qkey = 0};
}

// Out of the way of those that have no more parts.
[[gnu::noinline]] int post_with_rest(DeviceQp& qp, const ibv_send_wr& wr,
                                     const void* caller) noexcept {
  ib::SendWr out = plain_part(wr);
  ib::BindWr bind;
  if (const int error = fill_rest(qp, wr, caller, out, bind); error != 0) return error;
  if (qp.core().post_send(out).ok()) return 0;
  return refuse_post(kPostCall, qp, out, qp.core().fault_of(out, 0));
}
[[gnu::cold, gnu::noinline]] int refuse_plain(DeviceQp& qp, const ibv_send_wr& wr) noexcept {
  const ib::SendWr out = plain_part(wr);
  return refuse_post(kPostCall, qp, out, qp.core().fault_of(out, 0));
}

int post_one(DeviceQp& qp, const ibv_send_wr& wr, const void* caller) noexcept {
  if (const int error = validate(wr); error != 0) [[unlikely]]
    return error;
  const bool plain =
      (wr.opcode <= IBV_WR_RDMA_READ || wr.opcode == IBV_WR_LOCAL_INV) && qp.type <= ib::QpType::uc;
  if (!plain) return post_with_rest(qp, wr, caller);
  if (qp.core().post_send(plain_part(wr)).ok()) [[likely]]
    return 0;
  return refuse_plain(qp, wr);
}

[[gnu::cold, gnu::noinline]] int refuse_receive_of(const DeviceQp& qp, const ibv_recv_wr& wr,
                                                   Status why) noexcept {
  constexpr const char* kRecvCall = "ibv_post_recv";
  const ib::QpSpec& spec = qp.queue->spec();
  const bool receives = qp.type <= ib::QpType::ud;
  if (receives && spec.srq == nullptr)
    return refuse_receive(kRecvCall, why, wr, spec.max_recv_wr, spec.max_recv_sge);
  return refuse(EINVAL, "%s: queue pair 0x%x %s", kRecvCall, qp.ex.qp_base.qp_num,
                receives ? "takes its receives from an SRQ; post them by ibv_post_srq_recv()"
                         : "is of a type of XRC, which has no receives of its own");
}

}  // namespace

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) noexcept {
  const void* caller = __builtin_return_address(0);
  DeviceQp& ours = qp_of(qp);
  if (ours.engine().life().is_over()) [[unlikely]] {
    *bad_wr = wr;
    return EOPNOTSUPP;
  }
  nic::EngineGuard guard(ours.engine());
  for (; wr != nullptr; wr = wr->next) {
    const int error = post_one(ours, *wr, caller);
    if (error == 0) [[likely]]
      continue;
    *bad_wr = wr;
    ours.engine().on_posted();
    return error;
  }
  ours.engine().on_posted();
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
  DeviceQp& ours = qp_of(qp);
  return post_receives(
      ours.engine(), wr, bad_wr,
      [&](const ib::RecvWr& recv) noexcept { return ours.core().post_recv(recv); },
      [&](const ibv_recv_wr& recv, Status why) noexcept {
        return refuse_receive_of(ours, recv, why);
      });
}

}  // namespace aperture::verbs
