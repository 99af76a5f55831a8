// The allocators of a parent domain: ibv_alloc_parent_domain(3).
//
// What is made in that domain has the memory of its queues from them: queue pairs (send queue, and
// receives of their own), SRQs, and completion queues that name it (ibv_create_cq_ex(3)). Nothing
// else is allocated by them. Called in the thread that makes, resizes or destroys the object; while
// an object is resized its context is locked, so they must not call verbs. Threads: any.
#pragma once

#include <array>
#include <cstdint>

#include "ib/queue_memory.hpp"
#include "verbs/api.hpp"

namespace aperture::verbs {

// What the low 32 bits of the callbacks' resource_type are; the high ones are
// RDMA_DRIVER_UNKNOWN, 0.
enum class Resource : uint32_t { qp = 1, cq, srq };

class Allocator final : public ib::QueueMemory {
 public:
  bool allocate(size_t bytes, size_t alignment, void*& at) noexcept override;
  void release(void* at) noexcept override;

  ibv_parent_domain_init_attr attr{};
  ibv_pd* pd = nullptr;  // the parent domain itself
  uint64_t resource_type = 0;
};

// One for each kind of resource.
class Allocators {
 public:
  Allocators(const ibv_parent_domain_init_attr& attr, ibv_pd* pd) noexcept;
  Allocator& of(Resource kind) noexcept { return each_[static_cast<size_t>(kind) - 1]; }

 private:
  std::array<Allocator, 3> each_;
};

}  // namespace aperture::verbs
