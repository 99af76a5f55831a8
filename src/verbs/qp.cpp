// Making and destroying queue pairs: see qp.hpp.
#include "verbs/qp.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "verbs/errors.hpp"
#include "verbs/real.hpp"
#include "verbs/wording.hpp"

namespace aperture::verbs {

static_assert(static_cast<int>(ib::QpType::rc) == IBV_QPT_RC);
static_assert(static_cast<int>(ib::QpType::uc) == IBV_QPT_UC);
static_assert(static_cast<int>(ib::QpType::ud) == IBV_QPT_UD);
static_assert(static_cast<int>(ib::QpType::xrc_send) == IBV_QPT_XRC_SEND);
static_assert(static_cast<int>(ib::QpType::xrc_recv) == IBV_QPT_XRC_RECV);
static_assert(static_cast<int>(ib::AsyncEvent::qp_fatal) == IBV_EVENT_QP_FATAL);
static_assert(static_cast<int>(ib::AsyncEvent::qp_req_err) == IBV_EVENT_QP_REQ_ERR);
static_assert(static_cast<int>(ib::AsyncEvent::qp_access_err) == IBV_EVENT_QP_ACCESS_ERR);
static_assert(static_cast<int>(ib::AsyncEvent::comm_est) == IBV_EVENT_COMM_EST);
static_assert(static_cast<int>(ib::AsyncEvent::sq_drained) == IBV_EVENT_SQ_DRAINED);
static_assert(static_cast<int>(ib::AsyncEvent::qp_last_wqe_reached) ==
              IBV_EVENT_QP_LAST_WQE_REACHED);

void QpCore::on_async_event(ib::AsyncEvent event) noexcept {
  for (DeviceQp* face : faces) {
    ibv_async_event told{};
    told.element.qp = face->base();
    told.event_type = static_cast<ibv_event_type>(event);
    face->context->async.push(told);
  }
}

namespace {

constexpr uint64_t kServedSendOps =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
    IBV_QP_EX_WITH_SEND_WITH_INV | kWithFlush | kWithAtomicWrite;

// Which of them each type has.
uint64_t send_ops_of(ib::QpType type) noexcept {
  constexpr uint64_t kReliable = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                                 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_RDMA_READ |
                                 kWithFlush | kWithAtomicWrite;
  switch (type) {
    case ib::QpType::rc:
    case ib::QpType::xrc_send: return kServedSendOps;
    case ib::QpType::uc: return kServedSendOps & ~kReliable;
    case ib::QpType::ud: return IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    case ib::QpType::xrc_recv: return 0;
  }
  return 0;
}

// What ibv_create_qp and ibv_create_qp_ex have in common.
struct Wish {
  const char* call;
  ibv_context* context;
  ibv_pd* pd;              // null: XRC receive
  ibv_qp_init_attr* attr;  // both structs begin with it
  const void* caller;
  bool extended = false;
  uint64_t send_ops = 0;
  ibv_xrcd* xrcd = nullptr;  // XRC receive
  uint32_t create_flags = 0;
};

// libfabric's own verbs provider finds the limits of every device by asking for too much, in every
// process that uses libfabric: nobody is to be told about that.
bool asked_by_libfabric(const void* caller) noexcept {
  Dl_info where{};
  return ::dladdr(caller, &where) != 0 && where.dli_fname != nullptr &&
         std::strstr(where.dli_fname, "libfabric") != nullptr;
}

#define REFUSE_WISH(wish, error, ...)                                                     \
  ([&]() noexcept -> int {                                                                \
    APERTURE_LOG_AT(asked_by_libfabric((wish).caller) ? LogLevel::debug : LogLevel::warn, \
                    __VA_ARGS__);                                                         \
    return (error);                                                                       \
  }())

bool is_served(ibv_qp_type type) noexcept {
  return type == IBV_QPT_RC || type == IBV_QPT_UC || type == IBV_QPT_UD ||
         type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV;
}

// Which of them it has none of is none of its caps either.
bool has_sends(const Wish& wish) noexcept {
  return wish.attr->qp_type != IBV_QPT_XRC_RECV;
}
bool has_receives(const Wish& wish) noexcept {
  return has_sends(wish) && wish.attr->qp_type != IBV_QPT_XRC_SEND;
}
bool has_own_receives(const Wish& wish) noexcept {
  return has_receives(wish) && wish.attr->srq == nullptr;
}

// The other half of an XRC connection has none, whatever is named: the kernel does not look.
ibv_srq* srq_of(const Wish& wish) noexcept {
  return has_receives(wish) ? wish.attr->srq : nullptr;
}

int validate_caps(const Wish& wish) noexcept {
  const ibv_qp_cap& cap = wish.attr->cap;
  if (!has_sends(wish)) return 0;
  const bool own_receives = has_own_receives(wish);
  if (cap.max_send_wr > ib::kMaxQueueWrs || (own_receives && cap.max_recv_wr > ib::kMaxQueueWrs)) {
    return REFUSE_WISH(wish, EINVAL, "%s: %u sends and %u receives; a queue has at most %u",
                       wish.call, cap.max_send_wr, cap.max_recv_wr, ib::kMaxQueueWrs);
  }
  if (cap.max_send_sge > ib::kMaxSge || (own_receives && cap.max_recv_sge > ib::kMaxSge)) {
    return REFUSE_WISH(wish, EINVAL,
                       "%s: %u and %u scatter/gather entries; a work request has at most %u",
                       wish.call, cap.max_send_sge, cap.max_recv_sge, ib::kMaxSge);
  }
  if (cap.max_inline_data > ib::kMaxInlineBytes) {
    return REFUSE_WISH(wish, EINVAL, "%s: %u bytes inline; at most %u are taken", wish.call,
                       cap.max_inline_data, ib::kMaxInlineBytes);
  }
  return 0;
}

// What it works with: completion queues, SRQ, PD, XRC domain.
int validate_parts(const Wish& wish) noexcept {
  const ibv_qp_init_attr& attr = *wish.attr;
  if (!has_sends(wish)) {
    if (wish.xrcd != nullptr && wish.xrcd->context == wish.context) return 0;
    return REFUSE_WISH(wish, EINVAL,
                       "%s: IBV_QPT_XRC_RECV needs an XRC domain of the context, by "
                       "ibv_create_qp_ex() with IBV_QP_INIT_ATTR_XRCD",
                       wish.call);
  }
  if (wish.pd == nullptr || wish.pd->context != wish.context) {
    return REFUSE_WISH(wish, EINVAL, "%s: it needs a PD of the same context", wish.call);
  }
  const auto is_here = [&](const ibv_cq* cq) noexcept {
    return cq != nullptr && cq->context == wish.context;
  };
  if (!is_here(attr.send_cq) || (has_receives(wish) && !is_here(attr.recv_cq))) {
    return REFUSE_WISH(wish, EINVAL,
                       "%s: it needs completion queues (send_cq and recv_cq, which may be one; "
                       "IBV_QPT_XRC_SEND send_cq alone) of the PD's context",
                       wish.call);
  }
  if (srq_of(wish) == nullptr) return 0;
  if (attr.srq->context != wish.context || object_of<Srq>(attr.srq).xrcd != nullptr) {
    return REFUSE_WISH(wish, EINVAL, "%s: the SRQ is of another context, or of type XRC",
                       wish.call);
  }
  return 0;
}

int validate(const Wish& wish) noexcept {
  const ibv_qp_init_attr& attr = *wish.attr;
  if (!is_served(attr.qp_type)) {
    return REFUSE_WISH(wish, EOPNOTSUPP, "%s: queue pairs of type %d are not to be had", wish.call,
                       static_cast<int>(attr.qp_type));
  }
  if (const int error = validate_parts(wish); error != 0) return error;
  const uint64_t offered = send_ops_of(static_cast<ib::QpType>(attr.qp_type));
  if (wish.extended && (wish.send_ops & ~offered) != 0) {
    return REFUSE_WISH(wish, EOPNOTSUPP,
                       "%s: send_ops_flags 0x%llx ask for operations that this type has not",
                       wish.call, static_cast<unsigned long long>(wish.send_ops & ~offered));
  }
  return validate_caps(wish);
}

ib::QpSpec spec_of(const Wish& wish, DeviceQp& qp) noexcept {
  const ibv_qp_init_attr& attr = *wish.attr;
  ib::QpSpec spec;
  spec.type = qp.type;
  spec.events = qp.shared.get();
  spec.wording = &kVerbsWording;
  if (qp.xrcd != nullptr) {
    spec.xrc_domain = qp.xrcd->domain->number;
    return spec;
  }
  spec.pd = qp.pd->id;
  spec.memory = memory_of(qp.pd, Resource::qp);
  spec.send_cq = cq_of(attr.send_cq).queue.get();
  if (has_receives(wish)) spec.recv_cq = cq_of(attr.recv_cq).queue.get();
  if (ibv_srq* const srq = srq_of(wish)) spec.srq = object_of<Srq>(srq).queue.get();
  spec.max_send_wr = attr.cap.max_send_wr;
  spec.max_recv_wr = attr.cap.max_recv_wr;
  spec.max_send_sge = attr.cap.max_send_sge;
  spec.max_recv_sge = attr.cap.max_recv_sge;
  spec.max_inline_bytes = attr.cap.max_inline_data;
  spec.sq_sig_all = attr.sq_sig_all != 0;
  spec.block_self_multicast = (wish.create_flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB) != 0;
  return spec;
}

void fill_base(DeviceQp& qp, const Wish& wish) noexcept {
  ibv_qp& base = *qp.base();
  base.context = wish.context;
  base.qp_context = wish.attr->qp_context;
  base.pd = wish.pd;
  base.send_cq = wish.attr->send_cq;
  base.recv_cq = wish.attr->recv_cq;
  base.srq = srq_of(wish);
  base.handle = qp.context->next_handle();
  base.state = IBV_QPS_RESET;
  base.qp_type = wish.attr->qp_type;
  ::pthread_mutex_init(&base.mutex, nullptr);
  ::pthread_cond_init(&base.cond, nullptr);
}

// Granted whatever is asked for, as devices round up: programs ask for none and send a few bytes
// inline all the same (rdma_xclient: 16).
constexpr uint32_t kLeastInlineBytes = 64;

// What it has none of is not counted, and ibv_query_qp tells so.
void adjust_caps(const Wish& wish) noexcept {
  ibv_qp_cap& cap = wish.attr->cap;
  cap.max_inline_data = std::max(cap.max_inline_data, kLeastInlineBytes);
  if (!has_own_receives(wish)) cap.max_recv_wr = cap.max_recv_sge = 0;
  if (!has_sends(wish)) cap = {};
}

// It keeps what it works with.
void hold_parts(DeviceQp& qp, const Wish& wish) noexcept {
  const ibv_qp_init_attr& attr = *wish.attr;
  qp.use_context = ContextUse(*qp.context);
  if (qp.xrcd != nullptr) {
    qp.use_xrcd = Use(qp.xrcd->uses);
    return;
  }
  qp.use_pd = Use(qp.pd->uses);
  qp.use_send_cq = Use(cq_of(attr.send_cq).uses);
  if (has_receives(wish)) qp.use_recv_cq = Use(cq_of(attr.recv_cq).uses);
  if (ibv_srq* const srq = srq_of(wish)) qp.use_srq = Use(object_of<Srq>(srq).uses);
}

// Programs see it from here on.
void enter(std::unique_ptr<DeviceQp> qp, DeviceQp*& made) {
  std::lock_guard members(qp->context->members_mutex);
  nic::EngineGuard guard(qp->engine());
  auto& faces = qp->shared->faces;
  faces.reserve(faces.size() + 1);  // before anything is changed
  qp->context->qps.insert(qp.get());
  faces.push_back(qp.get());
  made = qp.release();
}

int make_qp(const Wish& wish, DeviceQp*& made) {
  if (const int error = validate(wish); error != 0) return error;
  auto qp = std::make_unique<DeviceQp>();
  qp->shared = std::make_shared<QpCore>();
  // validate() has seen to it that the one that it needs is there
  if (has_sends(wish) && wish.pd != nullptr) {
    qp->pd = &pd_of(wish.pd);
  } else if (wish.xrcd != nullptr) {
    qp->xrcd = &object_of<Xrcd>(wish.xrcd);
  }
  qp->context = &context_of(wish.context);
  qp->type = static_cast<ib::QpType>(wish.attr->qp_type);
  qp->extended = wish.extended;
  fill_base(*qp, wish);
  fill_builders(qp->ex);
  adjust_caps(wish);
  auto nic_qp = qp->context->nic->make_qp(spec_of(wish, *qp));
  if (!nic_qp.ok())
    return refuse(errno_of(nic_qp.error()), "%s: the software NIC: %s", wish.call,
                  describe(nic_qp.error()));
  qp->shared->nic_qp = std::move(nic_qp).value();
  qp->queue = &qp->shared->nic_qp->qp();
  qp->base()->qp_num = qp->queue->qpn();
  qp->init = *wish.attr;
  hold_parts(*qp, wish);
  enter(std::move(qp), made);
  return 0;
}

int validate_extended(const ibv_qp_init_attr_ex& attr) noexcept {
  constexpr const char* kCall = "ibv_create_qp_ex";
  constexpr uint32_t kTaken = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD |
                              IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if ((attr.comp_mask & ~kTaken) != 0)
    return refuse(
        EOPNOTSUPP,
        "%s: comp_mask 0x%x asks for what this device has not (TSO, indirection tables, RX "
        "hashing)",
        kCall, attr.comp_mask);
  constexpr uint32_t kFlags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
  if ((attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && (attr.create_flags & ~kFlags) != 0)
    return refuse(EOPNOTSUPP, "%s: create_flags 0x%x are of raw packet queue pairs", kCall,
                  attr.create_flags);
  return 0;
}

uint32_t windows_bound(DeviceQp& qp) noexcept {
  nic::EngineGuard guard(qp.engine());
  return qp.core().windows_bound().bound;
}

int destroy(DeviceQp& qp) {
  if (!qp.groups.empty())
    return refuse(EBUSY, "ibv_destroy_qp: it is still attached to %zu multicast groups",
                  qp.groups.size());
  Context& context = *qp.context;
  if (const uint32_t bound = windows_bound(qp); bound != 0)
    return refuse(EBUSY,
                  "ibv_destroy_qp: %u memory windows of type 2A are still bound to it; invalidate "
                  "or deallocate them first",
                  bound);
  {
    std::lock_guard guard(context.members_mutex);
    [[maybe_unused]] const size_t gone = context.qps.erase(&qp);
    assert(gone == 1);
  }
  {
    nic::EngineGuard guard(qp.engine());
    auto& faces = qp.shared->faces;
    const auto face = std::find(faces.begin(), faces.end(), &qp);
    assert(face != faces.end());
    faces.erase(face);  // no events from here on
  }
  qp.shared.reset();
  context.async.forget(qp.base());
  wait_for_acknowledgements(qp.base()->mutex, qp.base()->cond, qp.base()->events_completed,
                            qp.handed_async);
  delete &qp;
  return 0;
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* attr) noexcept {
  const void* caller = __builtin_return_address(0);
  return guarded_new_base<DeviceQp>("ibv_create_qp_ex", life_of(context), [&](DeviceQp*& out) {
    if (const int error = validate_extended(*attr); error != 0) return error;
    const auto has = [&](uint32_t bit) noexcept { return (attr->comp_mask & bit) != 0; };
    return make_qp(
        {"ibv_create_qp_ex", context, has(IBV_QP_INIT_ATTR_PD) ? attr->pd : nullptr,
         reinterpret_cast<ibv_qp_init_attr*>(attr), caller, has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS),
         attr->send_ops_flags, has(IBV_QP_INIT_ATTR_XRCD) ? attr->xrcd : nullptr,
         has(IBV_QP_INIT_ATTR_CREATE_FLAGS) ? attr->create_flags : 0},
        out);
  });
}

namespace {

// The queue pair of that number in that domain; members_mutex held.
DeviceQp* find_shared(const Context& context, const ibv_qp_open_attr& attr) noexcept {
  const XrcDomain* domain = object_of<Xrcd>(attr.xrcd).domain.get();
  const auto at = std::find_if(context.qps.begin(), context.qps.end(), [&](DeviceQp* qp) noexcept {
    return qp->xrcd != nullptr && qp->xrcd->domain.get() == domain &&
           qp->base()->qp_num == attr.qp_num;
  });
  return at != context.qps.end() ? *at : nullptr;
}

int validate_open(const ibv_context* context, const ibv_qp_open_attr& attr) noexcept {
  constexpr const char* kCall = "ibv_open_qp";
  constexpr uint32_t kNeeded = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  if ((attr.comp_mask & ~uint32_t{IBV_QP_OPEN_ATTR_CONTEXT}) != kNeeded ||
      attr.qp_type != IBV_QPT_XRC_RECV || attr.xrcd == nullptr || attr.xrcd->context != context) {
    return refuse(EINVAL,
                  "%s: it needs the number of a queue pair, an XRC domain of this context and the "
                  "type IBV_QPT_XRC_RECV (comp_mask 0x%x, type %d)",
                  kCall, attr.comp_mask, static_cast<int>(attr.qp_type));
  }
  return 0;
}

int open_shared(Context& context, const ibv_qp_open_attr& attr, DeviceQp*& made) {
  if (const int error = validate_open(context.base(), attr); error != 0) return error;
  auto qp = std::make_unique<DeviceQp>();
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_XRC_RECV;
  init.qp_context = (attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) != 0 ? attr.qp_context : nullptr;
  const Wish wish{"ibv_open_qp", context.base(), nullptr, &init, nullptr, false, 0, attr.xrcd};
  qp->context = &context;
  qp->xrcd = &object_of<Xrcd>(attr.xrcd);
  qp->type = ib::QpType::xrc_recv;
  fill_base(*qp, wish);
  fill_builders(qp->ex);
  qp->init = init;
  {
    std::lock_guard guard(context.members_mutex);
    DeviceQp* const of = find_shared(context, attr);
    if (of == nullptr)
      return refuse(ENOENT,
                    "ibv_open_qp: this context has no XRC receive queue pair 0x%x in that domain; "
                    "queue pairs are not shared with other processes",
                    attr.qp_num);
    qp->shared = of->shared;
  }
  qp->queue = &qp->shared->nic_qp->qp();
  qp->base()->qp_num = qp->queue->qpn();
  hold_parts(*qp, wish);
  enter(std::move(qp), made);
  return 0;
}

}  // namespace

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr) noexcept {
  return guarded_new_base<DeviceQp>("ibv_open_qp", life_of(context), [&](DeviceQp*& out) {
    return open_shared(context_of(context), *attr, out);
  });
}

void stop(DeviceQp& qp) noexcept {
  nic::until(qp.engine(), [&] {
    if (!qp.core().end_access()) return false;
    qp.core().fail();
    return true;
  });
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_create_qp, "IBVERBS_1.1", pd, attr);
  const void* caller = __builtin_return_address(0);
  return guarded_new_base<DeviceQp>("ibv_create_qp", life_of(pd), [&](DeviceQp*& out) {
    return make_qp({"ibv_create_qp", pd->context, pd, attr, caller}, out);
  });
}

APERTURE_VERB int ibv_destroy_qp(ibv_qp* qp) {
  APERTURE_FORWARD(is_ours(qp->context), EOPNOTSUPP, ibv_destroy_qp, "IBVERBS_1.1", qp);
  return guarded_release("ibv_destroy_qp", life_of(qp), [&] { return destroy(qp_of(qp)); });
}

APERTURE_VERB ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  APERTURE_FORWARD(is_ours(qp->context), nullptr, ibv_qp_to_qp_ex, "IBVERBS_1.6", qp);
  return qp_of(qp).extended ? &qp_of(qp).ex : nullptr;
}

APERTURE_VERB int ibv_query_qp_data_in_order(ibv_qp* qp, ibv_wr_opcode op, uint32_t flags) {
  APERTURE_FORWARD(is_ours(qp->context), 0, ibv_query_qp_data_in_order, "IBVERBS_1.14", qp, op,
                   flags);
  return 0;  // memory is written in whatever order copying takes
}

APERTURE_VERB int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  APERTURE_FORWARD(is_ours(qp->context), EOPNOTSUPP, ibv_set_ece, "IBVERBS_1.10", qp, ece);
  return EOPNOTSUPP;  // librdmacm asks each device: no sentence
}

APERTURE_VERB int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  APERTURE_FORWARD(is_ours(qp->context), EOPNOTSUPP, ibv_query_ece, "IBVERBS_1.10", qp, ece);
  return EOPNOTSUPP;
}
