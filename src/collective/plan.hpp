// How a collective operation is carried out by one of its members: steps, one after the other, each
// a message out, a message in, or both at once, and what is done with what came.
//
// Plans are made of the numbers and buffers that the call gave, and know nothing of peers but their
// ranks. Barriers disseminate; broadcasts, reductions to a root, scatters and gathers go along a
// binomial tree; allreduce doubles recursively, with those beyond a power of two folded in first;
// allgather is Bruck's; reduce-scatter and alltoall exchange pairwise. fi_collective(3). No state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/atomic_op.hpp"

namespace aperture::collective {

inline constexpr uint32_t kNobody = ~uint32_t{0};

struct Step {
  uint32_t to = kNobody;  // rank
  uint32_t from = kNobody;
  const std::byte* out = nullptr;
  size_t out_bytes = 0;
  std::byte* in = nullptr;  // apart from `out`
  size_t in_bytes = 0;
  // `then`, once both are through: `target` from `source`, `bytes` of them.
  enum class Then : uint8_t { nothing, copy, reduce } then = Then::nothing;
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  size_t bytes = 0;
};

// The member for whom the plan is.
struct Place {
  uint32_t rank = 0;
  uint32_t members = 1;
};

struct Reduction {
  transport::AtomicOp op = transport::AtomicOp::sum;
  transport::AtomicType type = transport::AtomicType::uint8;
};

struct Plan {
  std::vector<Step> steps;
  std::unique_ptr<std::byte[]> scratch;  // aligned for any type
  Reduction reduction;
};

// All by exception std::bad_alloc. `bytes` are those of one member's part: what scatter hands to
// each, gather and allgather take from each, alltoall and reduce_scatter move between each two.
Plan plan_barrier(Place at);

// Of a join: two rounds of a barrier, half of the steps each, that leave the highest of all
// members' words in place of each one's own; that of the second is 0 until it is set.
enum class JoinWord : uint8_t { occurrence, taken };
Plan plan_join(Place at);
uint64_t word_of(const Plan& join, JoinWord which) noexcept;
void set_word(Plan& join, JoinWord which, uint64_t value) noexcept;

Plan plan_broadcast(Place at, uint32_t root, std::byte* buf, size_t bytes);
Plan plan_reduce(Place at, uint32_t root, const std::byte* buf, std::byte* result, size_t bytes,
                 Reduction how);
Plan plan_allreduce(Place at, const std::byte* buf, std::byte* result, size_t bytes, Reduction how);
Plan plan_reduce_scatter(Place at, const std::byte* buf, std::byte* result, size_t bytes,
                         Reduction how);
Plan plan_scatter(Place at, uint32_t root, const std::byte* buf, std::byte* result, size_t bytes);
Plan plan_gather(Place at, uint32_t root, const std::byte* buf, std::byte* result, size_t bytes);
Plan plan_allgather(Place at, const std::byte* buf, std::byte* result, size_t bytes);
Plan plan_alltoall(Place at, const std::byte* buf, std::byte* result, size_t bytes);

// What a step does once its messages are through.
void finish(const Step& step, Reduction how) noexcept;

}  // namespace aperture::collective
