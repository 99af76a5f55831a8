// FI_ATOMIC through the door: fi_atomic(3). Every operation on every type and in every kind of call
// against a reference, over every topology, with CMA allowed and denied, the target polling or not;
// what is refused; and that no update is lost between processes and the owner's own atomics.
#include <rdma/fi_atomic.h>

#include "doors/atomic_reference.hpp"
#include "doors/rma_setting.hpp"

namespace aperture::doors {
namespace {

constexpr uint32_t kRegion = 2;
constexpr uint64_t kSeed = 77;
constexpr int kTypes = kUint128 + 1;  // those of 1.17
constexpr int kOps = kMswap + 1;

Options atomic_options() {
  return {.caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC};
}

fi_datatype type_of(int type) {
  return static_cast<fi_datatype>(type);
}
fi_op op_of(int op) {
  return static_cast<fi_op>(op);
}

// One call of any kind from a node to a remote address.
struct Atomic {
  int kind = kBase;
  int op = kSum;
  int type = kUint64;
  size_t count = 1;
  const void* operand = nullptr;
  const void* compare = nullptr;
  void* result = nullptr;
};
int64_t start(Node& from, fi_addr_t to, uint64_t addr, uint64_t key, const Atomic& a, Op* op) {
  return post([&]() -> int64_t {
    switch (a.kind) {
      case kBase:
        return fi_atomic(from.ep(), a.operand, a.count, nullptr, to, addr, key, type_of(a.type),
                         op_of(a.op), op);
      case kFetch:
        return fi_fetch_atomic(from.ep(), a.operand, a.count, nullptr, a.result, nullptr, to, addr,
                               key, type_of(a.type), op_of(a.op), op);
      default:
        return fi_compare_atomic(from.ep(), a.operand, a.count, nullptr, a.compare, nullptr,
                                 a.result, nullptr, to, addr, key, type_of(a.type), op_of(a.op),
                                 op);
    }
  });
}
Completion finish(Node& from, fi_addr_t to, uint64_t addr, uint64_t key, const Atomic& a) {
  Op op;
  const int64_t rc = start(from, to, addr, key, a, &op);
  if (rc != 0) throw DoorError("posting an atomic", rc);
  return from.wait(&op);
}

class Atomics : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    duo = open_setting(GetParam(), atomic_options());
    remote = duo.second->region_open(kRegion, kBytes, kAllAccess, kSeed);
    aligned = first_aligned(remote);
  }
  Node& node() { return *duo.first->node(); }
  // The first place in a region that is a multiple of 16 in its owner's memory: asked of the owner,
  // since offsets do not tell.
  uint64_t first_aligned(const Remote& region) {
    unsigned char result[16];
    const Atomic a{kFetch, kRead, kInt128, 1, nullptr, nullptr, result};
    uint64_t offset = 0;
    while (run(a, offset, region).err != 0) ++offset;
    return offset;
  }
  Completion run(const Atomic& a, uint64_t offset, const Remote& region) {
    return finish(node(), duo.to_second, region.base + offset, region.key, a);
  }
  Completion run(const Atomic& a, uint64_t offset) { return run(a, offset, remote); }
  void put(const std::vector<uint8_t>& bytes, uint64_t offset) {
    ASSERT_EQ(node().run(fi_write, bytes.data(), bytes.size(), nullptr, duo.to_second,
                         remote.base + offset, remote.key),
              0);
  }
  std::vector<uint8_t> get(uint64_t offset, size_t len) {
    std::vector<uint8_t> out(len);
    EXPECT_EQ(node().run(fi_read, out.data(), len, nullptr, duo.to_second, remote.base + offset,
                         remote.key),
              0);
    return out;
  }
  void refused(const char* what, const Atomic& a, const Remote& to, uint64_t offset) {
    SCOPED_TRACE(what);
    EXPECT_EQ(run(a, offset, to).err, FI_EACCES);
    EXPECT_TRUE(node().quiet(1)) << "exactly one completion";
  }
  // An atomic of each kind must be refused and its result be left alone.
  void all_refused(const char* what, const Remote& to, uint64_t offset, int type = kUint64,
                   size_t count = 1) {
    std::vector<uint8_t> operand(count * 32, 1), result(count * 32, 0xcd);
    for (const Atomic& a :
         {Atomic{kBase, kSum, type, count, operand.data(), nullptr, nullptr},
          Atomic{kFetch, kSum, type, count, operand.data(), nullptr, result.data()},
          Atomic{kFetch, kRead, type, count, nullptr, nullptr, result.data()},
          Atomic{kCompare, kCswapNe, type, count, operand.data(), operand.data(), result.data()}}) {
      refused(what, a, to, offset);
      EXPECT_TRUE(std::all_of(result.begin(), result.end(), [](uint8_t b) { return b == 0xcd; }));
    }
  }
  // Both endpoints live: an atomic, and a message each way.
  void alive() {
    uint64_t one = 1, old = 0;
    ASSERT_EQ(run({kFetch, kSum, kUint64, 1, &one, nullptr, &old}, aligned).err, 0);
    duo.second->progress(true);
    duo.second->receive(50, 100);
    duo.first->send(51, duo.to_second, 100, 7);
    ASSERT_EQ(duo.second->wait(50).err, 0);
    ASSERT_EQ(duo.first->wait(51).err, 0);
    if (!GetParam().target_polls) duo.second->progress(false);
  }
  static constexpr size_t kBytes = 3 * 8192;
  Duo duo;
  Remote remote;
  uint64_t aligned = 0;
};

TEST_P(Atomics, every_operation_on_every_type_matches_the_reference) {
  constexpr size_t kCount = 3;
  unsigned round = 0;
  for (int kind = 0; kind < kRefKinds; ++kind) {
    for (int type = 0; type < kTypes; ++type) {
      for (int op = 0; op < kOps; ++op) {
        if (!ref_offered(kind, op, type)) continue;
        SCOPED_TRACE("kind " + std::to_string(kind) + " operation " + std::to_string(op) +
                     " type " + std::to_string(type));
        const size_t n = ref_size(type);
        std::vector<uint8_t> before(16 + kCount * n + 16, 0x3c), operand(kCount * n),
            compare(kCount * n), result(kCount * n);
        ++round;
        for (unsigned e = 0; e < kCount; ++e) {
          ref_value(type, round + e, &before[16 + e * n]);
          ref_value(type, round / 3 + 2 * e, &operand[e * n]);
          ref_value(type, round + e + e % 2, &compare[e * n]);
        }
        put(before, aligned);
        const Completion c = run(
            {kind, op, type, kCount, operand.data(), compare.data(), result.data()}, aligned + 16);
        ASSERT_EQ(c.err, 0);
        ASSERT_EQ(c.flags, FI_ATOMIC | (kind == kBase ? FI_WRITE : FI_READ));
        const std::vector<uint8_t> after = get(aligned, before.size());
        for (unsigned e = 0; e < kCount; ++e) {
          uint8_t next[32];
          ref_step(op, type, &before[16 + e * n], &operand[e * n], &compare[e * n], next);
          ASSERT_TRUE(ref_same(type, next, &after[16 + e * n])) << "element " << e;
        }
        if (kind != kBase) {
          ASSERT_EQ(std::memcmp(result.data(), &before[16], kCount * n), 0) << "former values";
        }
        ASSERT_EQ(std::memcmp(before.data(), after.data(), 16), 0);
        ASSERT_EQ(std::memcmp(&before[16 + kCount * n], &after[16 + kCount * n], 16), 0);
      }
    }
  }
  EXPECT_TRUE(node().quiet());
}

TEST_P(Atomics, as_many_elements_as_are_offered_and_not_one_more) {
  for (const int type : {int{kUint8}, int{kUint64}, int{kLongDoubleComplex}}) {
    size_t most = 0;
    ASSERT_EQ(fi_compare_atomicvalid(node().ep(), type_of(type), FI_CSWAP_NE, &most), 0);
    ASSERT_GE(most * ref_size(type), 4096u);
    const size_t len = (most + 1) * ref_size(type);
    for (const int kind : {kBase, kFetch, kCompare}) {
      for (const size_t count : {most, most / 2 + 1, size_t{300} / ref_size(type)}) {
        std::vector<uint8_t> before(len, 0), operand(len), compare(len, 1), result(len);
        for (size_t i = 0; i < len; ++i) operand[i] = static_cast<uint8_t>(i % 100 + 1);
        if (type == kLongDoubleComplex)
          for (size_t e = 0; e <= most; ++e)
            ref_value(type, static_cast<unsigned>(e % 12), &operand[e * 32]);
        put(before, aligned);
        const Atomic a{kind,           kind == kCompare ? kCswapNe : kWrite,
                       type,           count,
                       operand.data(), compare.data(),
                       result.data()};
        ASSERT_EQ(run(a, aligned).err, 0) << type << " " << kind << " " << count;
        const size_t n = count * ref_size(type);
        std::vector<uint8_t> after = get(aligned, len);
        ASSERT_EQ(std::memcmp(after.data(), operand.data(), n), 0);
        ASSERT_EQ(std::memcmp(after.data() + n, before.data(), len - n), 0);
        if (kind != kBase) {
          ASSERT_EQ(std::memcmp(result.data(), before.data(), n), 0);
        }
      }
      std::vector<uint8_t> bytes(len);
      Op op;
      const Atomic more{kind,         kind == kCompare ? kCswap : kWrite,
                        type,         most + 1,
                        bytes.data(), bytes.data(),
                        bytes.data()};
      EXPECT_EQ(start(node(), duo.to_second, remote.base, remote.key, more, &op), -FI_EMSGSIZE);
      Atomic none = more;
      none.count = 0;
      EXPECT_EQ(start(node(), duo.to_second, remote.base, remote.key, none, &op), -FI_EINVAL);
    }
  }
  alive();
}

TEST_P(Atomics, many_outstanding_are_each_executed_once_and_in_order) {
  constexpr size_t kCount = 3000;
  const uint64_t zero = 0, one = 1;
  ASSERT_EQ(run({kBase, kWrite, kUint64, 1, &zero, nullptr, nullptr}, aligned).err, 0);
  std::vector<Op> ops(kCount);
  std::vector<uint64_t> results(kCount, ~uint64_t{0});
  for (size_t i = 0; i < kCount; ++i) {
    const Atomic a{kFetch, kSum, kUint64, 1, &one, nullptr, &results[i]};
    ASSERT_EQ(start(node(), duo.to_second, remote.base + aligned, remote.key, a, &ops[i]), 0);
  }
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(node().wait(&ops[i]).err, 0);
    ASSERT_EQ(results[i], i);
  }
  // larger ones, which fill the byte rings of both directions
  constexpr size_t kLarge = 200, kEach = 1024;
  std::vector<uint64_t> ones(kEach, 1), zeros(kEach, 0);
  std::vector<std::vector<uint64_t>> answers(kLarge, std::vector<uint64_t>(kEach));
  ASSERT_EQ(run({kBase, kWrite, kUint64, kEach, zeros.data(), nullptr, nullptr}, aligned).err, 0);
  for (size_t i = 0; i < kLarge; ++i) {
    const Atomic a{kFetch, kSum, kUint64, kEach, ones.data(), nullptr, answers[i].data()};
    ASSERT_EQ(start(node(), duo.to_second, remote.base + aligned, remote.key, a, &ops[i]), 0);
  }
  for (size_t i = 0; i < kLarge; ++i) {
    ASSERT_EQ(node().wait(&ops[i]).err, 0);
    ASSERT_TRUE(std::all_of(answers[i].begin(), answers[i].end(), [&](uint64_t v) {
      return v == i;
    })) << i;
  }
}

TEST_P(Atomics, outside_the_region_is_refused) {  // [9] [10] [14]
  constexpr size_t kLength = 4096 + 8;
  const Remote small = duo.second->region_open(3, kLength, kAllAccess, kSeed);
  const uint64_t at = first_aligned(small);
  all_refused("just before the start", small, at - 16);
  all_refused("behind the end", small, at + kLength);
  all_refused("a page further", small, at + 8192);
  all_refused("straddles the end", small, at + kLength - 8, kInt128);
  all_refused("the last of many lies outside", small, at + kLength - 64, kUint64, 9);
  all_refused("wraps", small, uint64_t{0} - 8 - small.base, kUint64, 2);
  EXPECT_TRUE(duo.second->region_verify(3, kSeed));
  alive();
}

TEST_P(Atomics, hostile_14_misaligned_elements_are_refused) {  // [14]
  const std::vector<uint8_t> before = get(aligned, 256);
  for (int type = 0; type < kTypes; ++type) {
    for (size_t off = 1; off < ref_alignment(type); off += off < 2 ? 1 : 2) {
      all_refused("misaligned", remote, aligned + off, type, 2);
    }
  }
  EXPECT_EQ(get(aligned, 256), before);
  // and whatever C aligns a complex number to is good enough
  for (const int type : {kFloatComplex, kDoubleComplex}) {
    std::vector<uint8_t> operand(64), old(64);
    const Atomic a{kFetch, kWrite, type, 2, operand.data(), nullptr, old.data()};
    EXPECT_EQ(run(a, aligned + ref_size(type) / 2).err, 0);
  }
  alive();
}

TEST_P(Atomics, a_bad_key_is_refused) {  // [7] [15]
  for (const uint64_t flip : {uint64_t{1} << 30, uint64_t{1} << 40, ~uint64_t{0}}) {
    Remote bad = remote;
    bad.key ^= flip;
    all_refused("another key", bad, aligned);
  }
  const Remote gone = duo.second->region_open(4, 4096, kAllAccess, kSeed);
  duo.second->region_close(4);
  all_refused("a closed region", gone, 64);
  const Remote elsewhere = duo.second->region_open_elsewhere(5, 4096, kAllAccess, kSeed);
  all_refused("a region of another domain", elsewhere, 64);
  alive();
}

TEST_P(Atomics, hostile_8_rights_that_were_not_given) {  // [8]
  std::vector<uint8_t> operand(16, 1), result(16);
  const Atomic base{kBase, kSum, kUint8, 1, operand.data(), nullptr, nullptr};
  const Atomic fetch{kFetch, kSum, kUint8, 1, operand.data(), nullptr, result.data()};
  const Atomic read{kFetch, kRead, kUint8, 1, nullptr, nullptr, result.data()};
  const Atomic compare{kCompare, kCswap, kUint8, 1, operand.data(), operand.data(), result.data()};
  const Remote readable = duo.second->region_open(6, 4096, FI_REMOTE_READ, kSeed);
  refused("base on a readable region", base, readable, 0);
  refused("fetch on a readable region", fetch, readable, 0);
  refused("compare on a readable region", compare, readable, 0);
  EXPECT_EQ(run(read, 0, readable).err, 0);
  EXPECT_TRUE(duo.second->region_verify(6, kSeed));
  const Remote writable = duo.second->region_open(7, 4096, FI_REMOTE_WRITE, kSeed);
  refused("fetch on a writable region", fetch, writable, 0);
  refused("compare on a writable region", compare, writable, 0);
  refused("read on a writable region", read, writable, 0);
  EXPECT_TRUE(duo.second->region_verify(7, kSeed));
  EXPECT_EQ(run(base, 0, writable).err, 0);
  const Remote local =
      duo.second->region_open(8, 4096, FI_READ | FI_WRITE | FI_SEND | FI_RECV, kSeed);
  all_refused("a region for local use", local, 0, kUint8);
  EXPECT_TRUE(duo.second->region_verify(8, kSeed));
  alive();
}

TEST_P(Atomics, several_ranges_at_once_or_none_of_them) {
  const Remote other = duo.second->region_open(9, 4096, FI_REMOTE_WRITE | FI_REMOTE_READ, kSeed);
  const uint64_t at = first_aligned(other);
  uint64_t operand[6] = {1, 2, 3, 4, 5, 6}, compare[6] = {}, result[6] = {}, zeros[6] = {};
  ASSERT_EQ(run({kBase, kWrite, kUint64, 6, zeros, nullptr, nullptr}, aligned).err, 0);
  ASSERT_EQ(run({kBase, kWrite, kUint64, 6, zeros, nullptr, nullptr}, at, other).err, 0);
  fi_ioc from[2] = {{operand, 1}, {operand + 1, 5}},
         against[3] = {{compare, 2}, {compare + 2, 2}, {compare + 4, 2}},
         to[2] = {{result, 4}, {result + 4, 2}};
  fi_rma_ioc ranges[3] = {{remote.base + aligned, 2, remote.key},
                          {other.base + at + 8, 3, other.key},
                          {remote.base + aligned + 32, 1, remote.key}};
  Op op;
  fi_msg_atomic m{from, nullptr, 2, duo.to_second, ranges, 3, FI_UINT64, FI_SUM, &op, 0};
  ASSERT_EQ(node().run_message(fi_atomicmsg, &m, FI_COMPLETION), 0);
  ASSERT_EQ(node().run_message(fi_fetch_atomicmsg, &m, to, nullptr, 2,
                               FI_COMPLETION | FI_DELIVERY_COMPLETE),
            0);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(result[i], operand[i]) << i;
  m.op = FI_CSWAP_NE;
  ASSERT_EQ(node().run_message(fi_compare_atomicmsg, &m, against, nullptr, 3, to, nullptr, 2, 0),
            0);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(result[i], 2 * operand[i]) << i;

  // one bad range of three: nothing has changed, also not before it
  const std::vector<uint8_t> before = get(aligned, 64);
  m.op = FI_SUM;
  for (const fi_rma_ioc& bad : {fi_rma_ioc{ranges[2].addr, 1, remote.key ^ 1 << 30},
                                fi_rma_ioc{ranges[2].addr + 1, 1, remote.key},
                                fi_rma_ioc{remote.base + kBytes, 1, remote.key}}) {
    ranges[2] = bad;
    ASSERT_EQ(node().run_message(fi_atomicmsg, &m, FI_COMPLETION), FI_EACCES);
    EXPECT_EQ(get(aligned, 64), before);
  }
  alive();
}

TEST_P(Atomics, inject_takes_the_operand_at_once) {
  uint64_t operand = 5;
  const uint64_t zero = 0;
  ASSERT_EQ(run({kBase, kWrite, kUint64, 1, &zero, nullptr, nullptr}, aligned).err, 0);
  for (int i = 0; i < 100; ++i) {
    operand = 5;
    ASSERT_EQ(node().post(fi_inject_atomic, &operand, 1, duo.to_second, remote.base + aligned,
                          remote.key, FI_UINT64, FI_SUM),
              0);
    operand = ~uint64_t{0};
  }
  uint64_t seen = 0;
  ASSERT_EQ(run({kFetch, kRead, kUint64, 1, nullptr, nullptr, &seen}, aligned).err, 0);
  EXPECT_EQ(seen, 500u);
  EXPECT_TRUE(node().quiet(2)) << "inject writes no completion";
  std::vector<uint64_t> large(64);
  EXPECT_EQ(fi_inject_atomic(node().ep(), large.data(), 33, duo.to_second, remote.base + aligned,
                             remote.key, FI_UINT64, FI_SUM),
            -FI_EMSGSIZE);
  // compare operands are constant buffers too
  uint64_t compare = 500, result = 0;
  operand = 7;
  fi_ioc from{&operand, 1}, against{&compare, 1}, to{&result, 1};
  fi_rma_ioc range{remote.base + aligned, 1, remote.key};
  Op op;
  fi_msg_atomic m{&from, nullptr, 1, duo.to_second, &range, 1, FI_UINT64, FI_CSWAP, &op, 0};
  ASSERT_EQ(node().post(fi_compare_atomicmsg, &m, &against, nullptr, 1, &to, nullptr, 1,
                        FI_INJECT | FI_COMPLETION),
            0);
  operand = compare = 0;
  ASSERT_EQ(node().wait(&op).err, 0);
  EXPECT_EQ(result, 500u);
  ASSERT_EQ(run({kFetch, kRead, kUint64, 1, nullptr, nullptr, &seen}, aligned).err, 0);
  EXPECT_EQ(seen, 7u);
}

TEST_P(Atomics, stand_between_writes_and_messages_with_fences) {
  uint64_t one = 1, seen = 0;
  for (uint64_t round = 1; round < 60; ++round) {
    std::vector<uint8_t> value(round % 2 == 0 ? 8 : 20000, 0);
    std::memcpy(value.data(), &round, 8);
    Op op[3];
    ASSERT_EQ(node().post(fi_write, value.data(), value.size(), nullptr, duo.to_second,
                          remote.base + aligned, remote.key, &op[0]),
              0);
    fi_ioc from{&one, 1}, to{&seen, 1};
    fi_rma_ioc range{remote.base + aligned, 1, remote.key};
    fi_msg_atomic m{&from, nullptr, 1, duo.to_second, &range, 1, FI_UINT64, FI_SUM, &op[1], 0};
    ASSERT_EQ(node().post(fi_fetch_atomicmsg, &m, &to, nullptr, 1, FI_FENCE | FI_COMPLETION), 0);
    uint64_t back = 0;
    iovec iov{&back, 8};
    fi_rma_iov rma{remote.base + aligned, 8, remote.key};
    fi_msg_rma r{&iov, nullptr, 1, duo.to_second, &rma, 1, &op[2], 0};
    ASSERT_EQ(node().post(fi_readmsg, &r, FI_FENCE | FI_COMPLETION), 0);
    for (Op& o : op) ASSERT_EQ(node().wait(&o).err, 0);
    ASSERT_EQ(seen, round) << "the fetch saw the write before it";
    ASSERT_EQ(back, round + 1) << "the read saw the atomic before it";
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, Atomics, all_settings(), setting_name);

// Three processes at one pair of words: the owner with its CPU's atomics, two others from outside.
TEST(AtomicsTogether, processes_and_the_owners_own_atomics_lose_nothing) {
  constexpr uint64_t kEach = 20000;
  for (const bool denied : {false, true}) {
    LocalSide owner;
    RemoteSide first(child_denying(denied)), second(child_denying(denied));
    Options options = atomic_options();
    const auto name = owner.open(options);
    RemoteSide* others[] = {&first, &second};
    const Remote remote = owner.region_open(1, 4096 + 64, kAllAccess, 1);
    // zeros, at a place that is aligned
    uint64_t zeros[2] = {};
    const fi_addr_t self = owner.insert(name);
    Node& node = *owner.node();
    ASSERT_EQ(finish(node, self, remote.base, remote.key,
                     {kBase, kWrite, kUint64, 2, zeros, nullptr, nullptr})
                  .err,
              0);
    for (RemoteSide* side : others) {
      const auto its_name = side->open(options);
      owner.insert(its_name);
      side->begin<&Performer::add>(side->insert(name), remote, kEach);
    }
    owner.call<&Performer::add_here>(1u, kEach);
    for (RemoteSide* side : others) side->finish();
    uint64_t sums[2] = {};
    ASSERT_EQ(finish(node, self, remote.base, remote.key,
                     {kFetch, kRead, kUint64, 2, nullptr, nullptr, sums})
                  .err,
              0);
    EXPECT_EQ(sums[0], 3 * kEach);
    double real = 0;
    std::memcpy(&real, &sums[1], sizeof real);
    EXPECT_EQ(real, 3.0 * kEach);
  }
}

}  // namespace
}  // namespace aperture::doors
