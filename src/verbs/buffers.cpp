// Asking the application for memory: see buffers.hpp.
#include "verbs/buffers.hpp"

#include <bit>
#include <cassert>

#include "base/log.hpp"

namespace aperture::verbs {

namespace {

constexpr uint64_t kDriver = 0;  // RDMA_DRIVER_UNKNOWN: the kernel has no driver for this device

}  // namespace

bool Allocator::allocate(size_t bytes, size_t alignment, void*& at) noexcept {
  assert(pd != nullptr && attr.alloc != nullptr && std::has_single_bit(alignment));
  void* got = attr.alloc(pd, attr.pd_context, bytes, alignment, resource_type);
  if (got == IBV_ALLOCATOR_USE_DEFAULT) return false;
  if (reinterpret_cast<uintptr_t>(got) % alignment != 0) {
    APERTURE_WARN("the allocator of a parent domain gave %p, which is not aligned to %zu bytes",
                  got, alignment);
    release(got);
    got = nullptr;
  } else if (got == nullptr) {
    APERTURE_WARN("the allocator of a parent domain gave none of the %zu bytes that a queue needs",
                  bytes);
  }
  at = got;
  return true;
}

void Allocator::release(void* at) noexcept {
  assert(pd != nullptr && attr.free != nullptr);
  attr.free(pd, attr.pd_context, at, resource_type);
}

Allocators::Allocators(const ibv_parent_domain_init_attr& attr, ibv_pd* pd) noexcept {
  for (const Resource kind : {Resource::qp, Resource::cq, Resource::srq}) {
    Allocator& one = of(kind);
    one.attr = attr;
    if ((attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) == 0) {
      one.attr.pd_context = nullptr;
    }
    one.pd = pd;
    one.resource_type = kDriver << 32 | static_cast<uint32_t>(kind);
  }
}

}  // namespace aperture::verbs
