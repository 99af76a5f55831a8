// Making and freeing domains: see pd.hpp.
#include "verbs/pd.hpp"

#include <cassert>

#include "verbs/real.hpp"

namespace aperture::verbs {

namespace {

std::unique_ptr<Pd> make_pd(Context& context) {
  auto pd = std::make_unique<Pd>();
  pd->base.context = context.base();
  pd->base.handle = context.next_handle();
  pd->context = &context;
  pd->use_context = ContextUse(context);
  return pd;
}

int dealloc(Pd& pd) noexcept {
  if (const uint32_t uses = pd.uses.count(); uses != 0)
    return refuse(EBUSY,
                  "ibv_dealloc_pd: %u objects of this PD are still there; destroy its MRs, "
                  "windows, queue pairs, SRQs and address handles first",
                  uses);
  delete &pd;
  return 0;
}

int make_parent_domain(Context& context, const ibv_parent_domain_init_attr& attr, Pd*& made) {
  // IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC, of rdma-core 64: buffers may lie
  // outside the protected memory of a confidential guest. It is a leave, and we need none.
  constexpr uint32_t kAllowUnprotected = 1u << 2;
  constexpr uint32_t kKnown = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
                              IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT | kAllowUnprotected;
  if ((attr.comp_mask & ~kKnown) != 0)
    return refuse(EINVAL, "ibv_alloc_parent_domain: comp_mask 0x%x has unknown bits",
                  attr.comp_mask);
  if (attr.pd == nullptr || attr.pd->context != context.base() ||
      (attr.td != nullptr && attr.td->context != context.base())) {
    return refuse(EINVAL,
                  "ibv_alloc_parent_domain: it needs a PD, and the PD and the thread domain must "
                  "be of the same context");
  }
  if ((attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) != 0 &&
      (attr.alloc == nullptr || attr.free == nullptr)) {
    return refuse(EINVAL, "ibv_alloc_parent_domain: allocators come as two, alloc and free");
  }
  Pd& inner = pd_of(attr.pd);
  if (inner.parent_of != nullptr)
    return refuse(EINVAL, "ibv_alloc_parent_domain: its PD is itself a parent domain");
  auto pd = make_pd(context);
  assert(inner.id != 0 && inner.context == &context);
  pd->id = inner.id;
  pd->parent_of = &inner;
  if ((attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) != 0) {
    pd->allocators = std::make_unique<Allocators>(attr, &pd->base);
  }
  pd->use_pd = Use(inner.uses);
  if (attr.td != nullptr) pd->use_td = Use(object_of<Td>(attr.td).uses);
  made = pd.release();
  return 0;
}

}  // namespace

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attr) noexcept {
  return guarded_new_base<Td>("ibv_alloc_td", life_of(context), [&](Td*& out) {
    if (attr->comp_mask != 0)
      return refuse(EINVAL, "ibv_alloc_td: comp_mask 0x%x has unknown bits", attr->comp_mask);
    out = new Td;
    out->base.context = context;
    out->use_context = ContextUse(context_of(context));
    return 0;
  });
}

int dealloc_td(ibv_td* td) noexcept {
  return guarded_release("ibv_dealloc_td", life_of(td), [&] {
    auto& ours = object_of<Td>(td);
    if (ours.uses.count() != 0)
      return refuse(EBUSY, "ibv_dealloc_td: a parent domain still uses it");
    delete &ours;
    return 0;
  });
}

ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr) noexcept {
  return guarded_new_base<Pd>("ibv_alloc_parent_domain", life_of(context), [&](Pd*& out) {
    return make_parent_domain(context_of(context), *attr, out);
  });
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB ibv_pd* ibv_alloc_pd(ibv_context* context) {
  APERTURE_FORWARD(is_ours(context), nullptr, ibv_alloc_pd, "IBVERBS_1.1", context);
  return guarded_new_base<Pd>("ibv_alloc_pd", life_of(context), [&](Pd*& out) {
    auto pd = make_pd(context_of(context));
    pd->id = aperture::protect::new_domain();
    assert(pd->id != 0 && pd->parent_of == nullptr);
    out = pd.release();
    return 0;
  });
}

APERTURE_VERB int ibv_dealloc_pd(ibv_pd* pd) {
  APERTURE_FORWARD(is_ours(pd->context), EOPNOTSUPP, ibv_dealloc_pd, "IBVERBS_1.1", pd);
  return guarded_release("ibv_dealloc_pd", life_of(pd), [&] { return dealloc(pd_of(pd)); });
}
