// Making, polling and destroying completion queues: see cq.hpp.
#include "verbs/cq.hpp"

#include <cassert>

#include "verbs/errors.hpp"
#include "verbs/newer.hpp"
#include "verbs/pd.hpp"
#include "verbs/query.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

static_assert(static_cast<int>(ib::WcStatus::loc_prot_err) == IBV_WC_LOC_PROT_ERR);
static_assert(static_cast<int>(ib::WcStatus::wr_flush_err) == IBV_WC_WR_FLUSH_ERR);
static_assert(static_cast<int>(ib::WcStatus::mw_bind_err) == IBV_WC_MW_BIND_ERR);
static_assert(static_cast<int>(ib::WcStatus::bad_resp_err) == IBV_WC_BAD_RESP_ERR);
static_assert(static_cast<int>(ib::WcStatus::loc_access_err) == IBV_WC_LOC_ACCESS_ERR);
static_assert(static_cast<int>(ib::WcStatus::rem_inv_req_err) == IBV_WC_REM_INV_REQ_ERR);
static_assert(static_cast<int>(ib::WcStatus::rem_access_err) == IBV_WC_REM_ACCESS_ERR);
static_assert(static_cast<int>(ib::WcStatus::rem_op_err) == IBV_WC_REM_OP_ERR);
static_assert(static_cast<int>(ib::WcStatus::retry_exc_err) == IBV_WC_RETRY_EXC_ERR);
static_assert(static_cast<int>(ib::WcStatus::rnr_retry_exc_err) == IBV_WC_RNR_RETRY_EXC_ERR);
static_assert(static_cast<int>(ib::WcStatus::rem_abort_err) == IBV_WC_REM_ABORT_ERR);
static_assert(static_cast<int>(ib::WcStatus::fatal_err) == IBV_WC_FATAL_ERR);
static_assert(static_cast<int>(ib::WcStatus::general_err) == IBV_WC_GENERAL_ERR);
static_assert(static_cast<int>(ib::WcStatus::loc_len_err) == IBV_WC_LOC_LEN_ERR);
static_assert(static_cast<int>(ib::WcStatus::loc_qp_op_err) == IBV_WC_LOC_QP_OP_ERR);
static_assert(static_cast<int>(ib::WcOpcode::send) == IBV_WC_SEND);
static_assert(static_cast<int>(ib::WcOpcode::write) == IBV_WC_RDMA_WRITE);
static_assert(static_cast<int>(ib::WcOpcode::read) == IBV_WC_RDMA_READ);
static_assert(static_cast<int>(ib::WcOpcode::cmp_swap) == IBV_WC_COMP_SWAP);
static_assert(static_cast<int>(ib::WcOpcode::fetch_add) == IBV_WC_FETCH_ADD);
static_assert(static_cast<int>(ib::WcOpcode::bind_mw) == IBV_WC_BIND_MW);
static_assert(static_cast<int>(ib::WcOpcode::local_inv) == IBV_WC_LOCAL_INV);
static_assert(static_cast<int>(ib::WcOpcode::flush) == kWcFlush);
static_assert(static_cast<int>(ib::WcOpcode::atomic_write) == kWcAtomicWrite);
static_assert(static_cast<int>(ib::WcOpcode::recv) == IBV_WC_RECV);
static_assert(static_cast<int>(ib::WcOpcode::recv_write_with_imm) == IBV_WC_RECV_RDMA_WITH_IMM);
static_assert(ib::kWcGrh == IBV_WC_GRH && ib::kWcWithImm == IBV_WC_WITH_IMM);
static_assert(ib::kWcWithInv == IBV_WC_WITH_INV);
// the two faces of a CQ begin alike
static_assert(offsetof(ibv_cq_ex, mutex) == offsetof(ibv_cq, mutex));
static_assert(offsetof(ibv_cq_ex, async_events_completed) ==
              offsetof(ibv_cq, async_events_completed));

void DeviceCq::Events::on_completion_event() noexcept {
  if (cq.channel != nullptr) cq.channel->raise(cq);
}

void DeviceCq::Events::on_overrun() noexcept {
  APERTURE_WARN(
      "a completion queue of %d entries has overrun: completions are lost, and their queue pairs "
      "go to the error state; make it larger, or poll it more often",
      cq.ex.cqe);
  ibv_async_event event{};
  event.element.cq = cq.base();
  event.event_type = IBV_EVENT_CQ_ERR;
  cq.context->async.push(event);
}

namespace {

void fill(ibv_wc& to, const ib::Wc& wc) noexcept {
  to.wr_id = wc.id;
  to.status = static_cast<ibv_wc_status>(wc.status);
  to.opcode = static_cast<ibv_wc_opcode>(wc.opcode);
  to.vendor_err = wc.vendor_err;
  to.byte_len = wc.byte_len;
  to.imm_data = wc.imm;
  to.qp_num = wc.qpn;
  to.src_qp = wc.src_qpn;
  to.wc_flags = wc.flags;
  to.pkey_index = 0;
  to.slid = 0;
  to.sl = 0;
  to.dlid_path_bits = 0;
}

int take_some(ib::CompletionQueue& queue, int count, ibv_wc* wc) noexcept {
  int taken = 0;
  for (; taken < count && !queue.empty(); ++taken) {
    fill(wc[taken], queue.front());
    queue.pop();
  }
  return taken;
}

// What ibv_create_cq and ibv_create_cq_ex have in common.
struct Wish {
  const char* call;
  int64_t entries;
  void* cq_context;
  ibv_comp_channel* channel;
  int64_t comp_vector;
  uint64_t wc_flags = 0;
  bool extended = false;
  bool single_threaded = false;
  bool ignore_overrun = false;
  Pd* parent_domain = nullptr;
};

int validate(Context& context, const Wish& wish) noexcept {
  if (wish.entries < 1 || wish.entries > int64_t{kMaxCqe})
    return refuse(EINVAL, "%s: %lld entries; a completion queue has 1 to %u", wish.call,
                  static_cast<long long>(wish.entries), kMaxCqe);
  if (wish.comp_vector < 0 || wish.comp_vector >= context.base()->num_comp_vectors)
    return refuse(EINVAL, "%s: completion vector %lld; the context has %d", wish.call,
                  static_cast<long long>(wish.comp_vector), context.base()->num_comp_vectors);
  if (wish.channel != nullptr && wish.channel->context != context.base())
    return refuse(EINVAL, "%s: the completion channel is of another context", wish.call);
  return 0;
}

int make_cq(Context& context, const Wish& wish, DeviceCq*& made) {
  if (const int error = validate(context, wish); error != 0) return error;
  constexpr uint64_t kTimes =
      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  auto cq = std::make_unique<DeviceCq>();
  cq->queue = std::make_unique<ib::CompletionQueue>(static_cast<uint32_t>(wish.entries), cq->events,
                                                    (wish.wc_flags & kTimes) != 0,
                                                    memory_of(wish.parent_domain, Resource::cq));
  if (wish.ignore_overrun) cq->queue->ignore_overrun();
  cq->context = &context;
  cq->single_threaded = wish.single_threaded;
  cq->ex.context = context.base();
  cq->ex.channel = wish.channel;
  cq->ex.cq_context = wish.cq_context;
  cq->ex.handle = context.next_handle();
  cq->ex.cqe = static_cast<int>(wish.entries);
  ::pthread_mutex_init(&cq->ex.mutex, nullptr);
  ::pthread_cond_init(&cq->ex.cond, nullptr);
  if (wish.extended) fill_extended(cq->ex, wish.wc_flags);
  cq->use_context = ContextUse(context);
  if (wish.parent_domain != nullptr) cq->use_parent_domain = Use(wish.parent_domain->uses);
  if (wish.channel != nullptr) {
    cq->channel = &object_of<Channel>(wish.channel);
    std::lock_guard guard(cq->channel->mutex);
    ++wish.channel->refcnt;
  }
  made = cq.release();
  return 0;
}

int validate_extended(const ibv_context* context, const ibv_cq_init_attr_ex& attr) noexcept {
  constexpr const char* kCall = "ibv_create_cq_ex";
  constexpr uint64_t kServed = uint64_t{IBV_WC_STANDARD_FLAGS} |
                               IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                               IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  if ((attr.comp_mask & ~uint32_t{IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD}) != 0)
    return refuse(EINVAL, "%s: comp_mask 0x%x has unknown bits", kCall, attr.comp_mask);
  if ((attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0 &&
      (attr.flags &
       ~uint32_t{IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN}) != 0) {
    return refuse(EINVAL, "%s: flags 0x%x have unknown bits", kCall, attr.flags);
  }
  if ((attr.wc_flags & ~kServed) != 0)
    return refuse(EOPNOTSUPP,
                  "%s: wc_flags 0x%llx ask for what this device has not (VLAN, flow tag, tag "
                  "matching)",
                  kCall, static_cast<unsigned long long>(attr.wc_flags));
  if ((attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0 &&
      (attr.parent_domain == nullptr || attr.parent_domain->context != context ||
       pd_of(attr.parent_domain).parent_of == nullptr)) {
    return refuse(EINVAL, "%s: what it names is no parent domain of this context", kCall);
  }
  return 0;
}

int resize(DeviceCq& cq, int entries) {
  if (entries < 1 || entries > static_cast<int>(kMaxCqe))
    return refuse(EINVAL, "ibv_resize_cq: %d entries; a completion queue has 1 to %u", entries,
                  kMaxCqe);
  nic::EngineGuard guard(cq.context->engine());
  const Status s = cq.queue->resize(static_cast<uint32_t>(entries));
  if (!s.ok())
    return refuse(errno_of(s), "ibv_resize_cq: %u completions are in the queue: %s",
                  cq.queue->size(), describe(s.error()));
  assert(cq.queue->size() <= static_cast<uint32_t>(entries));
  cq.ex.cqe = entries;
  return 0;
}

int destroy(DeviceCq& cq) {
  if (const uint32_t uses = cq.uses.count(); uses != 0)
    return refuse(EBUSY, "ibv_destroy_cq: %u queue pairs or SRQs still use it", uses);
  // nobody raises events any more: what was not fetched is forgotten, what was is waited for
  if (cq.channel != nullptr) {
    {
      nic::EngineGuard guard(cq.context->engine());
      cq.channel->disarm(cq);
    }
    cq.channel->forget(cq);
    std::lock_guard guard(cq.channel->mutex);
    assert(cq.channel->base.refcnt > 0);
    --cq.channel->base.refcnt;
  }
  cq.context->async.forget(cq.base());
  wait_for_acknowledgements(cq.ex.mutex, cq.ex.cond, cq.ex.comp_events_completed, cq.handed_events);
  wait_for_acknowledgements(cq.ex.mutex, cq.ex.cond, cq.ex.async_events_completed, cq.handed_async);
  delete &cq;
  return 0;
}

}  // namespace

namespace {

// A queue that is never empty must not keep the engine from being progressed, nor the control
// thread from seeing that somebody polls.
constexpr uint32_t kPollEvery = 16;

// A program that polls once more before it waits finds the engine awake again, and one that polls
// without end although its queue is armed shall not put it to sleep each time.
constexpr uint8_t kRestsOfOneArming = 2;

// Progress for an empty queue. Armed and still empty: next the application waits, so what arrives
// shall ring the doorbell at once. Where it has slept since another queue came to that, it is not
// woken to be put to sleep again: a server has a queue for each of its clients.
[[gnu::always_inline]] inline void look_for_one(DeviceCq& cq, nic::Engine& engine) noexcept {
  if (cq.rests_due != 0 && engine.sleep().goes_on()) [[unlikely]] {
    if (cq.queue->empty()) --cq.rests_due;
    return;
  }
  engine.poll();
  if (cq.rests_due != 0 && cq.queue->empty()) [[unlikely]] {
    --cq.rests_due;
    if (cq.channel != nullptr) cq.channel->rest();
  }
}

// What is asleep would be rung by its peers for somebody who is here, unless he is about to wait.
[[gnu::always_inline]] inline bool needs_look(DeviceCq& cq, const nic::Engine& engine) noexcept {
  return cq.queue->empty() || (engine.sleep().is_asleep() && cq.rests_due == 0) ||
         (++cq.takes & (kPollEvery - 1)) == 0;
}

}  // namespace

bool take_one(DeviceCq& cq, ib::Wc& wc) noexcept {
  nic::Engine& engine = cq.context->engine();
  if (needs_look(cq, engine)) look_for_one(cq, engine);
  if (cq.queue->empty()) return false;
  wc = cq.queue->front();
  cq.queue->pop();
  return true;
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) noexcept {
  DeviceCq& ours = cq_of(cq);
  nic::Engine& engine = ours.context->engine();
  if (engine.life().is_over()) [[unlikely]]
    return -1;
  nic::PollGuard guard(engine);
  ib::CompletionQueue& queue = *ours.queue;
  if (!needs_look(ours, engine)) return take_some(queue, count, wc);
  look_for_one(ours, engine);
  if (queue.empty()) {
    if (!engine.is_look_due()) [[likely]]
      return 0;
    guard.look([&queue] { return !queue.empty(); });
  }
  return take_some(queue, count, wc);
}

int req_notify_cq(ibv_cq* cq, int solicited_only) noexcept {
  DeviceCq& ours = cq_of(cq);
  if (ours.context->engine().life().is_over()) return EOPNOTSUPP;
  nic::EngineGuard guard(ours.context->engine());
  ours.queue->arm(solicited_only != 0);
  ours.rests_due = kRestsOfOneArming;
  if (ours.channel != nullptr) ours.channel->on_armed(ours, solicited_only == 0);
  return 0;
}

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) noexcept {
  auto* made = guarded_new<DeviceCq>("ibv_create_cq_ex", life_of(context), [&](DeviceCq*& out) {
    if (const int error = validate_extended(context, *attr); error != 0) return error;
    const bool with_flags = (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0;
    Wish wish{"ibv_create_cq_ex", attr->cqe, attr->cq_context, attr->channel, attr->comp_vector};
    wish.wc_flags = attr->wc_flags;
    wish.extended = true;
    wish.single_threaded = with_flags && (attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0;
    wish.ignore_overrun = with_flags && (attr->flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0;
    if ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0) {
      wish.parent_domain = &pd_of(attr->parent_domain);
    }
    return make_cq(context_of(context), wish, out);
  });
  return made != nullptr ? &made->ex : nullptr;
}

int modify_cq(ibv_cq*, ibv_modify_cq_attr*) noexcept {
  return refuse(EOPNOTSUPP, "ibv_modify_cq: completion events of a software NIC are not moderated");
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context,
                                    ibv_comp_channel* channel, int comp_vector) {
  APERTURE_REAL(ibv_create_cq, "IBVERBS_1.1");
  if (!is_ours(context)) {
    return real.call_or<ibv_cq*>(nullptr, context, cqe, cq_context, channel, comp_vector);
  }
  return guarded_new_base<DeviceCq>("ibv_create_cq", life_of(context), [&](DeviceCq*& out) {
    return make_cq(context_of(context), {"ibv_create_cq", cqe, cq_context, channel, comp_vector},
                   out);
  });
}

APERTURE_VERB int ibv_resize_cq(ibv_cq* cq, int cqe) {
  APERTURE_FORWARD(is_ours(cq->context), EOPNOTSUPP, ibv_resize_cq, "IBVERBS_1.1", cq, cqe);
  return guarded("ibv_resize_cq", life_of(cq), [&] { return resize(cq_of(cq), cqe); });
}

APERTURE_VERB int ibv_destroy_cq(ibv_cq* cq) {
  APERTURE_FORWARD(is_ours(cq->context), EOPNOTSUPP, ibv_destroy_cq, "IBVERBS_1.1", cq);
  return guarded_release("ibv_destroy_cq", life_of(cq), [&] { return destroy(cq_of(cq)); });
}
