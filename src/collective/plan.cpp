// Plans of collective operations: see plan.hpp.
#include "collective/plan.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
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
// A binomial tree: the parent of all but 0, how many ranks from its own on are those below that
// one, if there are so many, and how many there are, itself included.
uint32_t parent_of(uint32_t seen) noexcept {
  assert(seen != 0);
  return seen & (seen - 1);
}
uint32_t span_of(Place at, uint32_t seen) noexcept {
  return seen != 0 ? seen & (0 - seen) : std::bit_ceil(at.members);
}
uint32_t subtree(Place at, uint32_t seen) noexcept {
  return std::min(span_of(at, seen), at.members - seen);
}

// Its bytes are anything.
std::unique_ptr<std::byte[]> scratch_of(size_t bytes) {
  static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= alignof(long double));
  return std::make_unique_for_overwrite<std::byte[]>(std::max<size_t>(bytes, 1));
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
Step& exchange(Plan& plan, uint32_t to, const std::byte* out, uint32_t from, std::byte* in,
               size_t bytes) {
  Step s;
  s.to = to;
  s.from = from;
  s.out = out;
  s.in = in;
  s.out_bytes = s.in_bytes = bytes;
  return plan.steps.emplace_back(s);
}
// The members that many ranks on and back, in a ring.
uint32_t ahead(Place at, uint32_t hops) noexcept {
  assert(hops < at.members);
  return (at.rank + hops) % at.members;
}
uint32_t behind(Place at, uint32_t hops) noexcept {
  assert(hops < at.members);
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

// What is reduced lies in scratch, with room beside it for what comes.
struct Sum {
  std::byte* sum;
  std::byte* other;
  size_t bytes;
  void take(Step& step) const noexcept { then_reduce(step, sum, other, bytes); }
};
Sum begin_sum(Plan& plan, Reduction how, const std::byte* from, size_t bytes) {
  plan.reduction = how;
  plan.scratch = scratch_of(2 * bytes);
  std::byte* const sum = plan.scratch.get();
  copy_now(sum, from, bytes);
  return {sum, sum + bytes, bytes};
}

}  // namespace

void finish(const Step& step, Reduction how) noexcept {
  switch (step.then) {
    case Then::nothing: return;
    case Then::copy: copy_now(step.target, step.source, step.bytes); return;
    case Then::reduce: {
      const size_t size = transport::atomic_size(how.type);
      assert(size != 0);  // asked for when the operation began
      transport::execute_atomic(how.op, how.type, step.target, step.source, nullptr, nullptr,
                                step.bytes / size);
      return;
    }
  }
}

namespace {

void add_barrier(Plan& plan, Place at) {
  for (uint32_t hop = 1; hop < at.members; hop <<= 1) {
    exchange(plan, ahead(at, hop), nullptr, behind(at, hop), nullptr, 0);
  }
}

constexpr size_t kWord = sizeof(uint64_t);
size_t place_of(JoinWord which) noexcept {
  return which == JoinWord::occurrence ? 0 : kWord;
}

}  // namespace

Plan plan_barrier(Place at) {
  Plan plan;
  add_barrier(plan, at);
  return plan;
}

// The highest is the same however often a word is met, so dissemination will do.
Plan plan_join(Place at) {
  Plan plan;
  plan.reduction = {transport::AtomicOp::max, transport::AtomicType::uint64};
  plan.scratch = scratch_of(3 * kWord);
  set_word(plan, JoinWord::occurrence, 0);
  set_word(plan, JoinWord::taken, 0);
  std::byte* const coming = plan.scratch.get() + 2 * kWord;
  for (const JoinWord which : {JoinWord::occurrence, JoinWord::taken}) {
    std::byte* const word = plan.scratch.get() + place_of(which);
    const size_t first = plan.steps.size();
    add_barrier(plan, at);
    for (size_t i = first; i < plan.steps.size(); ++i) {
      Step& s = plan.steps[i];
      s.out = word;
      s.in = coming;
      s.out_bytes = s.in_bytes = kWord;
      then_reduce(s, word, coming, kWord);
    }
  }
  return plan;
}

uint64_t word_of(const Plan& join, JoinWord which) noexcept {
  uint64_t value = 0;
  std::memcpy(&value, join.scratch.get() + place_of(which), sizeof value);
  return value;
}

void set_word(Plan& join, JoinWord which, uint64_t value) noexcept {
  std::memcpy(join.scratch.get() + place_of(which), &value, sizeof value);
}

Plan plan_broadcast(Place at, uint32_t root, std::byte* buf, size_t bytes) {
  Plan plan;
  const uint32_t me = seen_from(at, root);
  if (me != 0) receive(plan, rank_of(at, root, parent_of(me)), buf, bytes);
  for (uint32_t hop = span_of(at, me) >> 1; hop != 0; hop >>= 1) {
    if (me + hop < at.members) send(plan, rank_of(at, root, me + hop), buf, bytes);
  }
  return plan;
}

Plan plan_reduce(Place at, uint32_t root, const std::byte* buf, std::byte* result, size_t bytes,
                 Reduction how) {
  Plan plan;
  const Sum own = begin_sum(plan, how, buf, bytes);
  const uint32_t me = seen_from(at, root);
  for (uint32_t hop = 1; hop < at.members; hop <<= 1) {
    if ((me & hop) != 0) {
      send(plan, rank_of(at, root, me - hop), own.sum, bytes);
      return plan;
    }
    if (me + hop >= at.members) continue;
    own.take(receive(plan, rank_of(at, root, me + hop), own.other, bytes));
  }
  then_copy(plan, result, own.sum, bytes);
  return plan;
}

Plan plan_allreduce(Place at, const std::byte* buf, std::byte* result, size_t bytes,
                    Reduction how) {
  Plan plan;
  const Sum own = begin_sum(plan, how, buf, bytes);
  // of the first 2 * folded members, those with an even rank leave their part to the next one
  const uint32_t doubling = std::bit_floor(at.members);
  const uint32_t folded = at.members - doubling;
  const bool is_folding = at.rank < 2 * folded;
  if (is_folding && at.rank % 2 == 0) {
    send(plan, at.rank + 1, own.sum, bytes);
    receive(plan, at.rank + 1, own.sum, bytes);
  } else {
    if (is_folding) own.take(receive(plan, at.rank - 1, own.other, bytes));
    const uint32_t me = is_folding ? at.rank / 2 : at.rank - folded;
    for (uint32_t hop = 1; hop < doubling; hop <<= 1) {
      const uint32_t seen = me ^ hop;
      const uint32_t peer = seen < folded ? 2 * seen + 1 : seen + folded;
      own.take(exchange(plan, peer, own.sum, peer, own.other, bytes));
    }
    if (is_folding) send(plan, at.rank - 1, own.sum, bytes);
  }
  then_copy(plan, result, own.sum, bytes);
  return plan;
}

Plan plan_reduce_scatter(Place at, const std::byte* buf, std::byte* result, size_t bytes,
                         Reduction how) {
  Plan plan;
  const Sum own = begin_sum(plan, how, buf + at.rank * bytes, bytes);
  for (uint32_t hop = 1; hop < at.members; ++hop) {
    const uint32_t to = ahead(at, hop), from = behind(at, hop);
    own.take(exchange(plan, to, buf + to * bytes, from, own.other, bytes));
  }
  then_copy(plan, result, own.sum, bytes);
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
    receive(plan, rank_of(at, root, parent_of(me)), parts, mine * bytes);
  }
  for (uint32_t hop = span_of(at, me) >> 1; hop != 0; hop >>= 1) {
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
    send(plan, rank_of(at, root, parent_of(me)), parts, mine * bytes);
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
  for (uint32_t have = 1; have < at.members; have <<= 1) {
    const uint32_t more = std::min(have, at.members - have);
    exchange(plan, behind(at, have), parts, ahead(at, have), parts + have * bytes, more * bytes);
  }
  for (uint32_t i = 0; i < at.members; ++i)
    then_copy(plan, result + (at.rank + i) % at.members * bytes, parts + i * bytes, bytes);
  return plan;
}

Plan plan_alltoall(Place at, const std::byte* buf, std::byte* result, size_t bytes) {
  Plan plan;
  const std::byte* parts = buf;
  if (buf == result && bytes != 0) {  // what comes would be sent on
    plan.scratch = scratch_of(at.members * bytes);
    copy_now(plan.scratch.get(), buf, at.members * bytes);
    parts = plan.scratch.get();
  } else {
    copy_now(result + at.rank * bytes, buf + at.rank * bytes, bytes);
  }
  for (uint32_t hop = 1; hop < at.members; ++hop) {
    const uint32_t to = ahead(at, hop), from = behind(at, hop);
    exchange(plan, to, parts + to * bytes, from, result + from * bytes, bytes);
  }
  return plan;
}

}  // namespace aperture::collective
