// Making, filling and destroying shared receive queues: see srq.hpp.
#include "verbs/srq.hpp"

#include <algorithm>
#include <cassert>

#include "verbs/errors.hpp"
#include "verbs/real.hpp"
#include "verbs/receives.hpp"

namespace aperture::verbs {

void Srq::Events::on_limit_reached() noexcept {
  ibv_async_event event{};
  event.element.srq = &srq.base;
  event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  srq.pd->context->async.push(event);
}

namespace {

int validate(const char* call, const ibv_srq_attr& attr) noexcept {
  if (attr.max_wr == 0 || attr.max_wr > ib::kMaxQueueWrs || attr.max_sge > ib::kMaxSge)
    return refuse(EINVAL, "%s: max_wr %u and max_sge %u; an SRQ has 1 to %u and up to %u", call,
                  attr.max_wr, attr.max_sge, ib::kMaxQueueWrs, ib::kMaxSge);
  return 0;
}

int make_srq(const char* call, ibv_pd* pd, void* srq_context, ibv_srq_attr& attr, Srq*& made) {
  if (const int error = validate(call, attr); error != 0) return error;
  Pd& ours = pd_of(pd);
  attr.max_sge = std::max(attr.max_sge, 1u);
  auto srq = std::make_unique<Srq>();
  srq->queue = std::make_unique<ib::ReceiveQueue>(attr.max_wr, attr.max_sge, &srq->events,
                                                  memory_of(&ours, Resource::srq));
  srq->pd = &ours;
  srq->base.context = pd->context;
  srq->base.srq_context = srq_context;
  srq->base.pd = pd;
  srq->base.handle = ours.context->next_handle();
  ::pthread_mutex_init(&srq->base.mutex, nullptr);
  ::pthread_cond_init(&srq->base.cond, nullptr);
  srq->use_pd = Use(ours.uses);
  made = srq.release();
  return 0;
}

// One of an XRC domain: messages name it by its number, and complete in its own completion queue.
int make_xrc(ibv_context* context, ibv_srq_init_attr_ex& attr, Srq*& made) {
  constexpr const char* kCall = "ibv_create_srq_ex";
  constexpr uint32_t kNeeded =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  const auto is_here = [&](const auto* part) noexcept {
    return part != nullptr && part->context == context;
  };
  if (attr.comp_mask != kNeeded || !is_here(attr.pd) || !is_here(attr.xrcd) || !is_here(attr.cq))
    return refuse(EINVAL,
                  "%s: an XRC SRQ takes a type, and a PD, an XRC domain and a completion queue of "
                  "its context (comp_mask 0x%x)",
                  kCall, attr.comp_mask);
  Srq* srq = nullptr;
  if (const int error = make_srq(kCall, attr.pd, attr.srq_context, attr.attr, srq); error != 0) {
    return error;
  }
  std::unique_ptr<Srq> owned(srq);
  DeviceCq& cq = cq_of(attr.cq);
  srq->xrcd = &object_of<Xrcd>(attr.xrcd);
  assert(srq->xrcd->domain != nullptr && srq->base.handle != 0);
  srq->number = srq->base.handle;
  srq->use_cq = Use(cq.uses);
  srq->use_xrcd = Use(srq->xrcd->uses);
  srq->queue->serve_xrc(*cq.queue, srq->pd->id);
  nic::EngineGuard guard(srq->pd->context->engine());
  const Status s = srq->pd->context->nic->windows().enter_srq(
      srq->number, srq->xrcd->domain->number, *srq->queue);
  if (!s.ok()) return refuse(errno_of(s), "%s: %s", kCall, describe(s.error()));
  made = owned.release();
  return 0;
}

int modify(Srq& srq, const ibv_srq_attr& attr, int mask) {
  constexpr const char* kCall = "ibv_modify_srq";
  if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0)
    return refuse(EINVAL, "%s: mask 0x%x has unknown bits", kCall, mask);
  nic::EngineGuard guard(srq.pd->context->engine());
  const bool resize = (mask & IBV_SRQ_MAX_WR) != 0;
  if (resize && (attr.max_wr == 0 || attr.max_wr > ib::kMaxQueueWrs))
    return refuse(EINVAL, "%s: max_wr %u; an SRQ has 1 to %u", kCall, attr.max_wr,
                  ib::kMaxQueueWrs);
  const uint32_t room = resize ? attr.max_wr : srq.queue->max_wr();
  if ((mask & IBV_SRQ_LIMIT) != 0 && attr.srq_limit > room)
    return refuse(EINVAL, "%s: a limit of %u on a queue of %u", kCall, attr.srq_limit, room);
  if (resize) {
    if (const Status s = srq.queue->resize(attr.max_wr); !s.ok())
      return refuse(errno_of(s), "%s: %u receives are posted: %s", kCall, srq.queue->size(),
                    describe(s.error()));
  }
  if ((mask & IBV_SRQ_LIMIT) != 0) return errno_of(srq.queue->set_limit(attr.srq_limit));
  return 0;
}

int destroy(Srq& srq) {
  if (const uint32_t uses = srq.uses.count(); uses != 0)
    return refuse(EBUSY, "ibv_destroy_srq: %u queue pairs still use it", uses);
  if (srq.xrcd != nullptr) {
    nic::EngineGuard guard(srq.pd->context->engine());
    srq.pd->context->nic->windows().remove_srq(srq.number);
    assert(srq.number != 0);
    srq.queue->retire();
  }
  srq.pd->context->async.forget(&srq.base);
  wait_for_acknowledgements(srq.base.mutex, srq.base.cond, srq.base.events_completed,
                            srq.handed_async);
  delete &srq;
  return 0;
}

}  // namespace

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) noexcept {
  Srq& ours = object_of<Srq>(srq);
  return post_receives(
      ours.pd->context->engine(), wr, bad_wr,
      [&](const ib::RecvWr& recv) noexcept { return ours.queue->post(recv); },
      [&](const ibv_recv_wr& recv, Status why) noexcept {
        return refuse_receive("ibv_post_srq_recv", why, recv, ours.queue->max_wr(),
                              ours.queue->max_sge());
      });
}

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr) noexcept {
  constexpr const char* kCall = "ibv_create_srq_ex";
  return guarded_new_base<Srq>(kCall, life_of(context), [&](Srq*& out) {
    const bool typed = (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0;
    if (typed && attr->srq_type == IBV_SRQT_XRC) return make_xrc(context, *attr, out);
    if (typed && attr->srq_type != IBV_SRQT_BASIC)
      return refuse(EOPNOTSUPP, "%s: SRQs of type %d are not to be had", kCall,
                    static_cast<int>(attr->srq_type));
    if ((attr->comp_mask & ~uint32_t{IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD}) != 0 ||
        (attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || attr->pd == nullptr ||
        attr->pd->context != context) {
      return refuse(EINVAL, "%s: a basic SRQ takes a type and a PD of its context", kCall);
    }
    return make_srq(kCall, attr->pd, attr->srq_context, attr->attr, out);
  });
}

int get_srq_num(ibv_srq* srq, uint32_t* number) noexcept {
  const Srq& ours = object_of<Srq>(srq);
  if (ours.xrcd == nullptr)
    return refuse(EOPNOTSUPP, "ibv_get_srq_num: only XRC receive queues have a number");
  *number = ours.number;
  return 0;
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_create_srq, "IBVERBS_1.1", pd, attr);
  return guarded_new_base<Srq>("ibv_create_srq", life_of(pd), [&](Srq*& out) {
    return make_srq("ibv_create_srq", pd, attr->srq_context, attr->attr, out);
  });
}

APERTURE_VERB int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  APERTURE_FORWARD(is_ours(srq->context), EOPNOTSUPP, ibv_modify_srq, "IBVERBS_1.1", srq, attr,
                   mask);
  return guarded("ibv_modify_srq", life_of(srq),
                 [&] { return modify(object_of<Srq>(srq), *attr, mask); });
}

APERTURE_VERB int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attr) {
  APERTURE_FORWARD(is_ours(srq->context), EOPNOTSUPP, ibv_query_srq, "IBVERBS_1.1", srq, attr);
  return guarded("ibv_query_srq", life_of(srq), [&] {
    auto& ours = object_of<Srq>(srq);
    aperture::nic::EngineGuard guard(ours.pd->context->engine());
    *attr = {ours.queue->max_wr(), ours.queue->max_sge(), ours.queue->limit()};
    return 0;
  });
}

APERTURE_VERB int ibv_destroy_srq(ibv_srq* srq) {
  APERTURE_FORWARD(is_ours(srq->context), EOPNOTSUPP, ibv_destroy_srq, "IBVERBS_1.1", srq);
  return guarded_release("ibv_destroy_srq", life_of(srq),
                         [&] { return destroy(object_of<Srq>(srq)); });
}
