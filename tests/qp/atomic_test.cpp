// Atomics between two queue pairs, over each kind of lane and with each kind of target: order,
// results small and large, refusals, cancellation, the doorbell of a target that has stopped; and
// what a peer may not put into a cell. (man 3 fi_atomic; hostile-inputs 9, 14, 24, 25, 27, 38.)
#include <poll.h>

#include "qp/attacked.hpp"
#include "qp/one_sided.hpp"

namespace aperture::qp::test {
namespace {

using transport::AtomicKind;
using transport::AtomicOp;
using transport::AtomicType;

constexpr Rights kAll = Rights::remote_read | Rights::remote_write | Rights::remote_atomic;

struct Atomic {
  explicit Atomic(const RemoteRange& range, uint64_t context = 1) : range_(range) {
    wr.ranges = &range_;
    wr.range_count = 1;
    wr.len = range.len;
    wr.context = reinterpret_cast<void*>(context);
  }
  Atomic(const Atomic&) = delete;
  Atomic& operand(const void* at) {
    operand_ = {const_cast<void*>(at), wr.len};
    wr.operand = &operand_;
    wr.operand_count = 1;
    return *this;
  }
  Atomic& fetch(void* to) {
    wr.kind = AtomicKind::fetch;
    result_ = {to, wr.len};
    wr.result = &result_;
    wr.result_count = 1;
    return *this;
  }
  Atomic& compare(const void* with, void* to) {
    fetch(to);
    wr.kind = AtomicKind::compare;
    wr.op = AtomicOp::cswap;
    compare_ = {const_cast<void*>(with), wr.len};
    wr.compare = &compare_;
    wr.compare_count = 1;
    return *this;
  }
  Atomic& op(AtomicOp which, AtomicType type = AtomicType::uint64) {
    wr.op = which;
    wr.type = type;
    return *this;
  }
  AtomicWr wr;

 private:
  RemoteRange range_;
  iovec operand_{}, compare_{}, result_{};
};

class Atomics : public OneSided {
 protected:
  Atomics() : memory_(65536) {
    owner_executes_ = true;
    region_ = pair_.region(b(), memory_, kAll);
  }
  void TearDown() override {
    if (a().qp->state() != QpState::dead) expect_all_well();
  }
  ~Atomics() override { EXPECT_TRUE(memory_.canaries_intact()); }
  RemoteRange at(uint64_t offset, uint64_t len) {
    return {memory_.address() + offset, len, region_.key};
  }
  uint64_t& word(size_t n) { return reinterpret_cast<uint64_t*>(memory_.data())[n]; }

  Guarded memory_;
  protect::RegionHandle region_;
};
INSTANTIATE_TEST_SUITE_P(settings, Atomics, kSettings, setting_name);

TEST_P(Atomics, one_of_8_bytes_is_one_cell_and_so_is_its_answer) {
  b().count_accesses();
  const uint64_t one = 1;
  uint64_t old = 9;
  EXPECT_TRUE(a().qp->requester().atomic(Atomic(at(0, 8)).operand(&one).wr));
  EXPECT_EQ(a().qp->lane()->request_tx.cells.pos(), 1u);
  expect_success(1, 8);
  EXPECT_TRUE(a().qp->requester().atomic(Atomic(at(0, 8), 2).operand(&one).fetch(&old).wr));
  EXPECT_EQ(a().qp->lane()->request_tx.cells.pos(), 2u);
  expect_success(2, 8);
  EXPECT_EQ(b().qp->lane()->response_tx.cells.pos(), 2u) << "a result, behind the permit";
  EXPECT_EQ(old, 1u);
  EXPECT_TRUE(a().qp->requester().atomic(Atomic(at(0, 8), 3).operand(&one).compare(&old, &old).wr));
  EXPECT_EQ(a().qp->lane()->request_tx.cells.pos(), 3u);
  expect_success(3, 8);
  EXPECT_EQ(word(0), 2u) << "1 was not there";
  EXPECT_EQ(b().remote_writes.value(), 1u);
  EXPECT_EQ(b().remote_reads.value(), 2u);
  EXPECT_EQ(a().writes.value(), 1u);
  EXPECT_EQ(a().reads.value(), 2u);
}

TEST_P(Atomics, of_every_length_with_results_inline_and_through_the_byte_ring) {
  for (const size_t n : {1, 4, 15, 16, 17, 31, 32, 33, 100, 512, 1024}) {
    std::vector<uint64_t> operand(n), compare(n), result(n, 7);
    for (size_t i = 0; i < n; ++i) {
      operand[i] = i * 3 + n;
      word(i) = compare[i] = i;
    }
    EXPECT_TRUE(a().qp->requester().atomic(
        Atomic(at(0, n * 8)).operand(operand.data()).compare(compare.data(), result.data()).wr));
    expect_success(1, n * 8);
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(word(i), operand[i]);
      ASSERT_EQ(result[i], i);
    }
    EXPECT_TRUE(a().qp->requester().atomic(Atomic(at(0, n * 8)).operand(operand.data()).wr));
    expect_success(1, n * 8);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(word(i), 2 * operand[i]);
    EXPECT_TRUE(a().qp->requester().atomic(
        Atomic(at(0, n * 8)).op(AtomicOp::read).fetch(result.data()).wr));
    expect_success(1, n * 8);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(result[i], 2 * operand[i]);
  }
}

TEST_P(Atomics, more_than_the_rings_hold_wait_and_keep_their_order) {
  constexpr size_t kCount = 900;
  std::vector<uint64_t> ones(1024, 1), results(kCount * 1024);
  size_t posted = 0, ended = 0;
  EXPECT_TRUE(pair_.until([&] {
    while (posted < kCount) {
      const size_t n = posted % 5 == 0 ? 1024 : 1;
      const Status s = a().qp->requester().atomic(
          Atomic(at(0, n * 8), posted).operand(ones.data()).fetch(&results[posted * 1024]).wr);
      if (!s) break;
      ++posted;
    }
    for (const uint64_t context : take_contexts(a().tx_cq)) EXPECT_EQ(context, ended++);
    return ended == kCount;
  }));
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(results[i * 1024], i) << "executed once, in order";
  EXPECT_EQ(word(0), kCount);
  EXPECT_EQ(a().port.tx.atomics.out(), 0u);
}

TEST_P(Atomics, injected_operands_are_taken_at_once_even_when_they_wait) {
  std::vector<uint64_t> operand(32), compare(32);
  std::vector<std::vector<uint64_t>> former(400, std::vector<uint64_t>(32));
  size_t accepted = 0;
  for (uint64_t i = 0; i < 400; ++i) {  // more than the ring holds
    std::fill(operand.begin(), operand.end(), i + 1);
    std::fill(compare.begin(), compare.end(), i);
    Atomic atomic(at(0, 256), i);
    atomic.operand(operand.data()).compare(compare.data(), former[i].data());
    atomic.wr.inject = true;
    if (!a().qp->requester().atomic(atomic.wr)) break;
    ++accepted;
    std::fill(operand.begin(), operand.end(), ~uint64_t{0});
    std::fill(compare.begin(), compare.end(), ~uint64_t{0});
  }
  ASSERT_GT(accepted, 100u);
  ASSERT_TRUE(completed(accepted));
  EXPECT_EQ(take_contexts(a().tx_cq).size(), accepted);
  EXPECT_EQ(word(0), accepted);
  EXPECT_EQ(word(31), accepted);
}

TEST_P(Atomics, refusals_change_nothing_and_name_the_range) {
  b().count_accesses();
  const uint64_t one[3] = {1, 1, 1};
  uint64_t old[3] = {7, 7, 7};
  const RemoteRange bad[] = {{memory_.address() + 4, 8, region_.key},
                             {memory_.address() + 65536, 8, region_.key},
                             {memory_.address(), 8, region_.key + 1}};
  const protect::Denial why[] = {protect::Denial::misaligned, protect::Denial::out_of_range,
                                 protect::Denial::unknown_key};
  for (size_t i = 0; i < 3; ++i) {
    for (const bool fetches : {false, true}) {
      Atomic atomic(bad[i]);
      atomic.operand(one);
      if (fetches) atomic.fetch(old);
      EXPECT_TRUE(a().qp->requester().atomic(atomic.wr));
      ASSERT_TRUE(completed(1));
      ASSERT_TRUE(a().tx_cq.error_first());
      CompletionError e = a().tx_cq.pop_error();
      EXPECT_EQ(e.err, Errc::access_denied);
      EXPECT_EQ(e.vendor, static_cast<uint32_t>(why[i]));
      // the same in the middle of three
      const RemoteRange ranges[3] = {at(0, 8), bad[i], at(16, 8)};
      Atomic several(at(0, 24));
      several.operand(one);
      if (fetches) several.fetch(old);
      several.wr.ranges = ranges;
      several.wr.range_count = 3;
      EXPECT_TRUE(a().qp->requester().atomic(several.wr));
      ASSERT_TRUE(completed(1));
      ASSERT_TRUE(a().tx_cq.error_first());
      e = a().tx_cq.pop_error();
      EXPECT_EQ(e.vendor, static_cast<uint32_t>(why[i]));
      char address[32];
      std::snprintf(address, sizeof address, "0x%llx", (unsigned long long)bad[i].addr);
      EXPECT_NE(e.sentence.find(address), std::string::npos) << e.sentence;
    }
  }
  EXPECT_TRUE(memory_.all(0));
  EXPECT_EQ(old[0] + old[1] + old[2], 21u);
  EXPECT_EQ(a().writes.errors() + a().reads.errors(), 12u);
  EXPECT_EQ(b().remote_writes.value() + b().remote_reads.value(), 0u);
}

TEST_P(Atomics, rights_of_the_region_decide) {
  const uint64_t one = 1;
  uint64_t old = 0;
  const auto outcome = [&](Rights rights, AtomicKind kind, AtomicOp op) {
    Guarded memory(64);
    const auto region = pair_.region(b(), memory, rights);
    Atomic atomic({memory.address(), 8, region.key});
    atomic.operand(&one);
    if (kind != AtomicKind::base) atomic.fetch(&old);
    atomic.op(op);
    EXPECT_TRUE(a().qp->requester().atomic(atomic.wr));
    EXPECT_TRUE(completed(1));
    const bool refused = take_end(a().tx_cq) != Errc::ok;
    EXPECT_EQ(memory.all(0), refused || op == AtomicOp::read);
    pair_.close(region);
    return !refused;
  };
  const Rights write = Rights::remote_write | Rights::remote_atomic;
  EXPECT_TRUE(outcome(write, AtomicKind::base, AtomicOp::sum));
  EXPECT_FALSE(outcome(Rights::remote_write, AtomicKind::base, AtomicOp::sum));
  EXPECT_FALSE(outcome(Rights::remote_read, AtomicKind::base, AtomicOp::sum));
  EXPECT_FALSE(outcome(write, AtomicKind::fetch, AtomicOp::sum));
  EXPECT_FALSE(outcome(Rights::remote_read, AtomicKind::fetch, AtomicOp::sum));
  EXPECT_TRUE(outcome(kAll, AtomicKind::fetch, AtomicOp::sum));
  EXPECT_TRUE(outcome(Rights::remote_read, AtomicKind::fetch, AtomicOp::read));
  EXPECT_FALSE(outcome(write, AtomicKind::fetch, AtomicOp::read));
}

// Direct copies never overtake them where order was asked for, nor are they ever claimed.
TEST_P(Atomics, wait_for_their_owner_whoever_could_copy) {
  const uint64_t one = 1;
  EXPECT_TRUE(a().qp->requester().atomic(Atomic(at(0, 8)).operand(&one).wr));
  const uint64_t until = now_ns() + 20'000'000;
  while (now_ns() < until) a().poll();
  EXPECT_TRUE(a().tx_cq.empty());
  EXPECT_EQ(word(0), 0u);
  uint64_t seen = 0;
  const iovec iov{&seen, 8};
  const RemoteRange range = at(0, 8);
  RmaWr read = rma_of(iov, range, 2);
  read.fence = true;
  EXPECT_TRUE(a().qp->requester().rma(WqeKind::read, read));
  ASSERT_TRUE(completed(2));
  EXPECT_EQ(take(a().tx_cq).context, reinterpret_cast<void*>(1));
  expect_success(2, 8);
  EXPECT_EQ(seen, 1u) << "the fenced read saw the atomic";
}

TEST_P(Atomics, one_that_waits_rings_the_doorbell) {
  pollfd bell{pair_.bell_b(), POLLIN, 0};
  const uint64_t one = 1;
  EXPECT_TRUE(a().qp->requester().atomic(Atomic(at(0, 8)).operand(&one).wr));
  EXPECT_TRUE(pair_.until([&] { return ::poll(&bell, 1, 0) == 1; }, true, false));
  expect_success(1, 8);
}

TEST_P(Atomics, pending_ones_end_once_when_the_peer_is_lost) {
  const uint64_t one = 1;
  uint64_t old = 0;
  for (uint64_t i = 1; i <= 300; ++i) {
    if (!a().qp->requester().atomic(Atomic(at(0, 8), i).operand(&one).fetch(&old).wr)) break;
  }
  const size_t accepted = a().port.tx.wqes.out();
  a().qp->ending().lose(Errc::peer_lost);
  a().qp->finish(Errc::peer_lost);
  EXPECT_EQ(a().tx_cq.size(), accepted);
  while (!a().tx_cq.empty()) EXPECT_EQ(take_end(a().tx_cq), Errc::peer_lost);
  EXPECT_EQ(a().port.tx.wqes.out(), 0u);
  EXPECT_EQ(a().port.tx.atomics.out(), 0u);
}

TEST_P(Atomics, queued_ones_can_be_cancelled) {
  Pair fresh(GetParam().link);  // no lane yet: everything waits
  const uint64_t one = 1;
  EXPECT_TRUE(fresh.a->qp->requester().atomic(Atomic(at(0, 8), 5).operand(&one).wr));
  EXPECT_TRUE(fresh.a->qp->requester().cancel(reinterpret_cast<void*>(5)));
  EXPECT_EQ(take_end(fresh.a->tx_cq), Errc::canceled);
  EXPECT_EQ(fresh.a->port.tx.atomics.out(), 0u);
  EXPECT_EQ(fresh.a->port.tx.wqes.out(), 0u);
}

// ---- a hostile peer ----------------------------------------------------------------------------

class HostileAtomics : public Attacked {
 protected:
  HostileAtomics() : Attacked(16384, kAll) { EXPECT_TRUE(peer().prepare_request_bytes()); }

  void put_inline(link::Lane& lane, const wire::AtomicCode& code, uint32_t count, uint16_t len) {
    const Head head = Head::make(Op::atomic, 0, len, memory_.address());
    put(lane.request_tx, head, wire::AtomicFields{region_.key, code, count});
  }
  void put_bytes(const wire::AtomicCode& code, const std::vector<uint64_t>& words, uint64_t pos,
                 uint32_t len) {
    ring::ByteWriter& bytes = peer().request_tx.bytes;
    std::memcpy(bytes.at(0), words.data(), words.size() * 8);
    if (bytes.committed() == 0) bytes.commit(0, static_cast<uint32_t>(words.size() * 8));
    put(peer().request_tx, Head::make(Op::atomic_bytes, 0, 0, 0),
        wire::AtomicBytesFields{pos, code, len});
  }
  void expect_broken() {
    poll();
    EXPECT_TRUE(a().qp->broken());
    EXPECT_TRUE(memory_.all(7));
  }
  std::vector<uint64_t> range(uint64_t count) { return {memory_.address(), region_.key, count}; }
  // An addition of ours to something of the peer's.
  void post_sum(void* fetch_to = nullptr) {
    const uint64_t one = 1;
    Atomic atomic({4096, 8, 1});
    atomic.operand(&one);
    if (fetch_to != nullptr) atomic.fetch(fetch_to);
    EXPECT_TRUE(a().qp->requester().atomic(atomic.wr));
  }
};
INSTANTIATE_TEST_SUITE_P(links, HostileAtomics, kEachLink, link_name);

constexpr uint8_t kSum = static_cast<uint8_t>(AtomicOp::sum);
constexpr uint8_t kRead = static_cast<uint8_t>(AtomicOp::read);
constexpr uint8_t kSwap = static_cast<uint8_t>(AtomicOp::cswap);
constexpr uint8_t kWord = static_cast<uint8_t>(AtomicType::uint64);

TEST_P(HostileAtomics, codes_that_name_nothing_end_the_connection) {
  const wire::AtomicCode codes[] = {
      {20, kWord, 0, 1},    {255, kWord, 0, 1},    {kSum, 20, 0, 1},     {kSum, 255, 0, 1},
      {kSum, kWord, 3, 1},  {kSum, kWord, 255, 1}, {kSwap, kWord, 0, 1}, {kSum, kWord, 2, 1},
      {kRead, kWord, 0, 1}, {kSum, kWord, 0, 0},   {kSum, kWord, 0, 2},  {kSum, kWord, 0, 255}};
  for (const wire::AtomicCode& code : codes) {
    SCOPED_TRACE(std::to_string(code.op) + " " + std::to_string(code.type) + " " +
                 std::to_string(code.kind));
    expect_breaks([&](link::Lane& lane) { put_inline(lane, code, 1, 8); });
  }
}

TEST_P(HostileAtomics, counts_and_lengths_that_do_not_fit) {
  const std::pair<uint32_t, uint16_t> cases[] = {
      {0, 0},   {1, 0},    {1, 7},          {1, 9},          {1, 16},
      {2, 8},   {33, 256}, {0x20000000, 0}, {0x20000001, 8}, {~uint32_t{0}, 256},
      {1025, 8}};
  for (const auto& [count, len] : cases) {
    SCOPED_TRACE(std::to_string(count) + " " + std::to_string(len));
    expect_breaks([&, n = count, bytes = len](link::Lane& lane) {
      put_inline(lane, {kSum, kWord, 0, 1}, n, bytes);
    });
  }
  put_inline(peer(), {kSum, kWord, 0, 1}, 33, 264);
  expect_broken();
}

TEST_P(HostileAtomics, sound_cells_are_executed) {
  a().count_accesses();
  put_inline(peer(), {kSum, kWord, 0, 1}, 32, 256);
  std::vector<uint64_t> words = range(2);
  words.insert(words.end(), {5, 6});
  put_bytes({kSum, kWord, 1, 1}, words, 0, 40);
  poll();
  EXPECT_FALSE(a().qp->broken());
  EXPECT_FALSE(memory_.all(7));
  EXPECT_EQ(a().remote_writes.value(), 1u);
  EXPECT_EQ(a().remote_reads.value(), 1u);
}

TEST_P(HostileAtomics, payload_outside_the_byte_ring_ends_the_connection) {
  const uint64_t size = peer().request_tx.bytes.size();
  const uint64_t place = GetParam() == LinkKind::shm ? size - 32 : ~uint64_t{0} - 8;
  put_bytes({kSum, kWord, 0, 1}, range(2), place, 40);
  expect_broken();
}

TEST_P(HostileAtomics, operands_that_are_missing) {
  put_bytes({kSum, kWord, 0, 1}, range(2), 0, GetParam() == LinkKind::shm ? 39 : 24);
  expect_broken();
}
TEST_P(HostileAtomics, more_operands_than_elements_end_the_connection) {
  put_bytes({kSum, kWord, 0, 1}, range(2), 0, 48);
  expect_broken();
}
TEST_P(HostileAtomics, a_list_that_is_cut_off) {
  put_bytes({kSum, kWord, 0, 8}, range(1), 0, GetParam() == LinkKind::shm ? 191 : 0);
  expect_broken();
}
TEST_P(HostileAtomics, more_ranges_than_there_may_be) {
  put_bytes({kSum, kWord, 0, 9}, range(1), 0, 9 * 24 + 9 * 8);
  expect_broken();
}
TEST_P(HostileAtomics, counts_of_ranges_that_wrap) {
  std::vector<uint64_t> words = range(uint64_t{1} << 61);
  for (const uint64_t w : range(2)) words.push_back(w);
  words.insert(words.end(), {1, 1});
  put_bytes({kSum, kWord, 0, 2}, words, 0, 48 + 16);
  expect_broken();
}
TEST_P(HostileAtomics, an_empty_range_among_others_ends_the_connection) {
  std::vector<uint64_t> words = range(0);
  for (const uint64_t w : range(2)) words.push_back(w);
  words.insert(words.end(), {1, 1});
  put_bytes({kSum, kWord, 0, 2}, words, 0, 48 + 16);
  expect_broken();
}
TEST_P(HostileAtomics, more_elements_than_a_request_may_have) {
  std::vector<uint64_t> words = range(1024);
  for (const uint64_t w : range(1)) words.push_back(w);
  words.resize(words.size() + 1025, 1);
  put_bytes({kSum, kWord, 0, 2}, words, 0, static_cast<uint32_t>(words.size() * 8));
  expect_broken();
}

TEST_P(HostileAtomics, an_answer_that_nobody_asked_for_ends_the_connection) {
  uint64_t old = 0;
  post_sum();  // base: has no answer
  response(Op::read_inline, 8, 0);
  poll();
  EXPECT_TRUE(a().qp->broken());
  EXPECT_EQ(old, 0u);
}

TEST_P(HostileAtomics, an_answer_that_is_too_long) {
  uint64_t old[3] = {7, 7, 7};
  post_sum(&old[1]);
  response(Op::read_inline, 16, 0);
  poll();
  EXPECT_TRUE(a().qp->broken());
  EXPECT_EQ(old[2], 7u);
}

TEST_P(HostileAtomics, an_acknowledgement_without_the_answer_fails_the_operation) {
  uint64_t old = 7;
  post_sum(&old);
  acknowledge();
  poll();
  EXPECT_EQ(take_end(a().tx_cq), Errc::protocol);
}

TEST_P(HostileAtomics, a_refusal_that_names_a_range_that_is_not_there) {
  post_sum();
  response(Op::nak, 0xff09, 0);
  acknowledge();
  poll();
  ASSERT_TRUE(a().tx_cq.error_first());
  EXPECT_EQ(a().tx_cq.pop_error().vendor, static_cast<uint32_t>(protect::Denial::misaligned));
}

}  // namespace
}  // namespace aperture::qp::test
