// Plans of collective operations: see plan.hpp.
#include "collective/plan.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace aperture::collective {

namespace {

using Then = Step::Then;

// Ranks as seen from a root, which is 0.
uint32_t seen_from(Place at, uint32_t root) noexcept {
  return (at.rank + at.members - root) % at.members;
}
uint32_t rank_of(Place at, uint32_t root, uint32_t seen) noexcept {
  return (seen + root) % at.members;
}
// The members below that one in a binomial tree, itself included: their ranks follow its own.
uint32_t subtree(Place at, uint32_t seen) noexcept {
  const uint32_t lowest = seen != 0 ? seen & (0 - seen) : std::bit_ceil(at.members);
  return std::min(lowest, at.members - seen);
}

std::unique_ptr<std::byte[]> scratch_of(size_t bytes) {
  static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= alignof(long double));
  return std::make_unique<std::byte[]>(std::max<size_t>(bytes, 1));
}

void copy_now(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

void send(Plan& plan, uint32_t to, const std::byte* from, size_t bytes) {
  Step s;
  s.to = to;
  s.out = from;
  s.out_bytes = bytes;
  plan.steps.push_back(s);
}
Step& receive(Plan& plan, uint32_t from, std::byte* to, size_t bytes) {
  Step s;
  s.from = from;
  s.in = to;
  s.in_bytes = bytes;
  return plan.steps.emplace_back(s);
}
// Both at once.
Step& exchange(Plan& plan, uint64_t to, const std::byte* out, uint64_t from, std::byte* in,
               size_t bytes) {
  Step s;
  s.to = static_cast<uint32_t>(to);
  s.from = static_cast<uint32_t>(from);
  s.out = out;
  s.in = in;
  s.out_bytes = s.in_bytes = bytes;
  return plan.steps.emplace_back(s);
}
// The members that many ranks on and back, in a ring.
uint64_t ahead(Place at, uint64_t hops) noexcept {
  return (at.rank + hops) % at.members;
}
uint64_t behind(Place at, uint64_t hops) noexcept {
  return (at.rank + at.members - hops) % at.members;
}
void then_reduce(Step& step, std::byte* target, const std::byte* source, size_t bytes) noexcept {
  step.then = Then::reduce;
  step.target = target;
  step.source = source;
  step.bytes = bytes;
}
void then_copy(Plan& plan, std::byte* target, const std::byte* source, size_t bytes) {
  Step s;
  s.then = Then::copy;
  s.target = target;
  s.source = source;
  s.bytes = bytes;
  plan.steps.push_back(s);
}

}  // namespace

void finish(const Step& step, Reduction how) noexcept {
  switch (step.then) {
    case Then::nothing: return;
    case Then::copy: copy_now(step.target, step.source, step.bytes); return;
    case Then::reduce:
      transport::execute_atomic(how.op, how.type, step.target, step.source, nullptr, nullptr,
                                step.bytes / transport::atomic_size(how.type));
      return;
  }
}

Plan plan_barrier(Place at) {
  Plan plan;
  for (uint64_t hop = 1; hop < at.members; hop <<= 1) {
    exchange(plan, ahead(at, hop), nullptr, behind(at, hop), nullptr, 0);
  }
  return plan;
}

// Or-ing twice does no harm, so dissemination will do.
Plan plan_join(Place at, uint8_t word) {
  Plan plan = plan_barrier(at);
  plan.reduction = {transport::AtomicOp::bor, transport::AtomicType::uint8};
  plan.scratch = scratch_of(2);
  std::byte* const sum = plan.scratch.get();
  sum[0] = std::byte{word};
  for (Step& s : plan.steps) {
    s.out = sum;
    s.out_bytes = 1;
    s.in = sum + 1;
    s.in_bytes = 1;
    then_reduce(s, sum, sum + 1, 1);
  }
  return plan;
}

Plan plan_broadcast(Place at, uint32_t root, std::byte* buf, size_t bytes) {
  Plan plan;
  const uint32_t me = seen_from(at, root);
  if (me != 0) receive(plan, rank_of(at, root, me & (me - 1)), buf, bytes);
  const uint32_t below = me != 0 ? me & (0 - me) : std::bit_ceil(at.members);
  for (uint32_t hop = below >> 1; hop != 0; hop >>= 1) {
    if (me + hop < at.members) send(plan, rank_of(at, root, me + hop), buf, bytes);
  }
  return plan;
}

Plan plan_reduce(Place at, uint32_t root, const std::byte* buf, std::byte* result, size_t bytes,
                 Reduction how) {
  Plan plan;
  plan.reduction = how;
  plan.scratch = scratch_of(2 * bytes);
  std::byte* const sum = plan.scratch.get();
  copy_now(sum, buf, bytes);
  const uint32_t me = seen_from(at, root);
  for (uint32_t hop = 1; hop < at.members; hop <<= 1) {
    if ((me & hop) != 0) {
      send(plan, rank_of(at, root, me - hop), sum, bytes);
      return plan;
    }
    if (me + hop >= at.members) continue;
    then_reduce(receive(plan, rank_of(at, root, me + hop), sum + bytes, bytes), sum, sum + bytes,
                bytes);
  }
  then_copy(plan, result, sum, bytes);
  return plan;
}

Plan plan_allreduce(Place at, const std::byte* buf, std::byte* result, size_t bytes,
                    Reduction how) {
  Plan plan;
  plan.reduction = how;
  plan.scratch = scratch_of(2 * bytes);
  std::byte* const sum = plan.scratch.get();
  std::byte* const other = sum + bytes;
  copy_now(sum, buf, bytes);
  // of the first 2 * folded members, those with an even rank leave their part to the next one
  const uint32_t doubling = std::bit_floor(at.members);
  const uint32_t folded = at.members - doubling;
  const bool is_folding = at.rank < 2 * folded;
  if (is_folding && at.rank % 2 == 0) {
    send(plan, at.rank + 1, sum, bytes);
    receive(plan, at.rank + 1, sum, bytes);
  } else {
    if (is_folding) then_reduce(receive(plan, at.rank - 1, other, bytes), sum, other, bytes);
    const uint32_t me = is_folding ? at.rank / 2 : at.rank - folded;
    for (uint32_t hop = 1; hop < doubling; hop <<= 1) {
      const uint32_t seen = me ^ hop;
      const uint32_t peer = seen < folded ? 2 * seen + 1 : seen + folded;
      then_reduce(exchange(plan, peer, sum, peer, other, bytes), sum, other, bytes);
    }
    if (is_folding) send(plan, at.rank - 1, sum, bytes);
  }
  then_copy(plan, result, sum, bytes);
  return plan;
}

Plan plan_reduce_scatter(Place at, const std::byte* buf, std::byte* result, size_t bytes,
                         Reduction how) {
  Plan plan;
  plan.reduction = how;
  plan.scratch = scratch_of(2 * bytes);
  std::byte* const sum = plan.scratch.get();
  copy_now(sum, buf + at.rank * bytes, bytes);
  for (uint32_t hop = 1; hop < at.members; ++hop) {
    const uint64_t to = ahead(at, hop), from = behind(at, hop);
    then_reduce(exchange(plan, to, buf + to * bytes, from, sum + bytes, bytes), sum, sum + bytes,
                bytes);
  }
  then_copy(plan, result, sum, bytes);
  return plan;
}

Plan plan_scatter(Place at, uint32_t root, const std::byte* buf, std::byte* result, size_t bytes) {
  Plan plan;
  const uint32_t me = seen_from(at, root);
  const uint32_t mine = subtree(at, me);
  plan.scratch = scratch_of(mine * bytes);
  std::byte* const parts = plan.scratch.get();
  if (me == 0) {
    for (uint32_t i = 0; i < at.members; ++i)
      copy_now(parts + i * bytes, buf + rank_of(at, root, i) * bytes, bytes);
  } else {
    receive(plan, rank_of(at, root, me & (me - 1)), parts, mine * bytes);
  }
  const uint32_t below = me != 0 ? me & (0 - me) : std::bit_ceil(at.members);
  for (uint32_t hop = below >> 1; hop != 0; hop >>= 1) {
    if (me + hop >= at.members) continue;
    send(plan, rank_of(at, root, me + hop), parts + hop * bytes, subtree(at, me + hop) * bytes);
  }
  then_copy(plan, result, parts, bytes);
  return plan;
}

Plan plan_gather(Place at, uint32_t root, const std::byte* buf, std::byte* result, size_t bytes) {
  Plan plan;
  const uint32_t me = seen_from(at, root);
  const uint32_t mine = subtree(at, me);
  plan.scratch = scratch_of(mine * bytes);
  std::byte* const parts = plan.scratch.get();
  copy_now(parts, buf, bytes);
  for (uint32_t hop = 1; hop < mine; hop <<= 1) {
    if (me + hop >= at.members) break;
    receive(plan, rank_of(at, root, me + hop), parts + hop * bytes, subtree(at, me + hop) * bytes);
  }
  if (me != 0) {
    send(plan, rank_of(at, root, me & (me - 1)), parts, mine * bytes);
    return plan;
  }
  for (uint32_t i = 0; i < at.members; ++i)
    then_copy(plan, result + rank_of(at, root, i) * bytes, parts + i * bytes, bytes);
  return plan;
}

Plan plan_allgather(Place at, const std::byte* buf, std::byte* result, size_t bytes) {
  Plan plan;
  plan.scratch = scratch_of(at.members * bytes);
  std::byte* const parts = plan.scratch.get();  // of this member, the next one, ...
  copy_now(parts, buf, bytes);
  for (uint64_t have = 1; have < at.members; have <<= 1) {
    const uint64_t more = std::min<uint64_t>(have, at.members - have);
    exchange(plan, behind(at, have), parts, ahead(at, have), parts + have * bytes, more * bytes);
  }
  for (uint32_t i = 0; i < at.members; ++i)
    then_copy(plan, result + (at.rank + i) % at.members * bytes, parts + i * bytes, bytes);
  return plan;
}

Plan plan_alltoall(Place at, const std::byte* buf, std::byte* result, size_t bytes) {
  Plan plan;
  plan.scratch = scratch_of(at.members * bytes);  // the two buffers may be one
  std::byte* const parts = plan.scratch.get();
  copy_now(parts, buf, at.members * bytes);
  copy_now(result + at.rank * bytes, parts + at.rank * bytes, bytes);
  for (uint32_t hop = 1; hop < at.members; ++hop) {
    const uint64_t to = ahead(at, hop), from = behind(at, hop);
    exchange(plan, to, parts + to * bytes, from, result + from * bytes, bytes);
  }
  return plan;
}

}  // namespace aperture::collective
