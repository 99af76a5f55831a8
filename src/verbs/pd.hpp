// Protection domains, parent domains and thread domains: ibv_alloc_pd(3), ibv_alloc_td(3),
// ibv_alloc_parent_domain(3).
//
// A PD is a protect::DomainId. A parent domain is another face of its PD: what is made in one may
// be used with what is made in the other. Threads: any; an object is destroyed by whoever uses it
// last.
#pragma once

#include <memory>

#include "protect/rights.hpp"
#include "verbs/buffers.hpp"
#include "verbs/context.hpp"

namespace aperture::verbs {

struct Td {
  ibv_td base{};  // first: object_of()
  ContextUse use_context;
  Uses uses;
};

struct Pd {
  ibv_pd base{};  // first: object_of()
  protect::DomainId id = 0;
  Context* context = nullptr;
  Pd* parent_of = nullptr;                 // the PD of a parent domain, else null
  std::unique_ptr<Allocators> allocators;  // that a parent domain was given, else null
  ContextUse use_context;
  Use use_pd;
  Use use_td;
  Uses uses;
};

// Where queues of that kind in that domain have their memory from; null: from the process.
inline ib::QueueMemory* memory_of(Pd* pd, Resource kind) noexcept {
  return pd != nullptr && pd->allocators != nullptr ? &pd->allocators->of(kind) : nullptr;
}

inline Pd& pd_of(ibv_pd* pd) noexcept {
  return object_of<Pd>(pd);
}

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* attr) noexcept;
int dealloc_td(ibv_td* td) noexcept;
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* attr) noexcept;

}  // namespace aperture::verbs
