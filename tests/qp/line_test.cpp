// Operations that go as lines (qp/line.hpp): small writes and atomics that have no WQE. They are
// told from others by nothing that an application sees.
#include "qp/line.hpp"

#include <numeric>

#include "qp/one_sided.hpp"

namespace aperture::qp::test {
namespace {

using protect::Denial;
using transport::AtomicOp;
using transport::AtomicType;

constexpr auto kWritable = Rights::remote_read | Rights::remote_write | Rights::remote_atomic;
constexpr wire::AtomicCode kAdd{static_cast<uint8_t>(AtomicOp::sum),
                                static_cast<uint8_t>(AtomicType::uint64), 0, 1};

LineRmaWr line_of(const RemoteRange& range, uint64_t context, bool has_entry = true) {
  return {.addr = range.addr,
          .len = range.len,
          .key = range.key,
          .imm = 0,
          .context = reinterpret_cast<void*>(context),
          .flags = 64,
          .has_imm = false,
          .completion = has_entry};
}

// With or without a target that is told of each access.
class Line : public OneSided {
 protected:
  explicit Line(bool wants_notices = false) : OneSided(wants_notices) {}
  void TearDown() override { expect_all_well(); }

  // One that has stopped, once it was waited for: what can go directly is for the requester then.
  bool is_known_away() {
    return GetParam().target == Target::stopped && a().writes.value() + a().writes.errors() != 0;
  }
  RemoteRange whole() { return {memory_.address(), kBytes, region_.key}; }
  bool write(const RemoteRange& range, uint64_t context, bool has_entry = true) {
    return a().qp->line().write(line_of(range, context, has_entry), data_.data());
  }
  bool add(const RemoteRange& range, uint64_t context) {
    return a().qp->line().atomic(line_of(range, context), kAdd, 1, data_.data());
  }
  CompletionError take_error() {
    EXPECT_TRUE(completed(1));
    if (a().tx_cq.empty() || !a().tx_cq.error_first()) {
      ADD_FAILURE() << "no error";
      return {};
    }
    return a().tx_cq.pop_error();
  }

  static constexpr size_t kBytes = wire::kLineWriteBytes;
  std::vector<std::byte> data_ = pattern(4096, 1);
  Guarded memory_{4096, 7};
  protect::RegionHandle region_ = pair_.region(b(), memory_, kWritable);
};
// Where a target sleeps, what can go directly does.
const auto kThere = testing::Values(
    Setting{LinkKind::loopback, Target::polls}, Setting{LinkKind::shm, Target::polls},
    Setting{LinkKind::direct, Target::polls}, Setting{LinkKind::direct, Target::stopped});
const auto kPolling = testing::Values(Setting{LinkKind::loopback, Target::polls},
                                      Setting{LinkKind::shm, Target::polls},
                                      Setting{LinkKind::direct, Target::polls});
INSTANTIATE_TEST_SUITE_P(links, Line, kThere, setting_name);

class LineOrNot : public Line {};  // with one that sleeps, too
INSTANTIATE_TEST_SUITE_P(links, LineOrNot, kSettings, setting_name);
class LineToOneThatPolls : public Line {};
INSTANTIATE_TEST_SUITE_P(links, LineToOneThatPolls, kPolling, setting_name);
class LineToOneThatSleeps : public Line {};
INSTANTIATE_TEST_SUITE_P(links, LineToOneThatSleeps,
                         testing::Values(Setting{LinkKind::direct, Target::asleep}), setting_name);

class ToldLine : public Line {
 protected:
  ToldLine() : Line(true) {}
};
INSTANTIATE_TEST_SUITE_P(links, ToldLine, kThere, setting_name);
class ToldLineToOneThatStopped : public ToldLine {};
INSTANTIATE_TEST_SUITE_P(links, ToldLineToOneThatStopped,
                         testing::Values(Setting{LinkKind::direct, Target::stopped}), setting_name);

TEST_P(Line, a_write_of_each_length_that_fits_lands_without_a_wqe) {
  for (size_t len = 0; len <= kBytes; ++len) {
    const RemoteRange range{memory_.address(), len, region_.key};
    if (!write(range, len)) {
      ASSERT_TRUE(is_known_away()) << len;
      continue;
    }
    EXPECT_EQ(a().port.tx.wqes.out(), 0u);
    EXPECT_TRUE(a().qp->has_pending());
    expect_success(len, len);
    EXPECT_TRUE(same_bytes(memory_.data(), data_.data(), len));
  }
  EXPECT_FALSE(write({memory_.address(), kBytes + 1, region_.key}, 1)) << "it does not fit";
  EXPECT_TRUE(memory_.canaries_intact());
}

TEST_P(LineToOneThatSleeps, is_what_cannot_go_directly) {
  EXPECT_FALSE(write(whole(), 1));
  EXPECT_FALSE(a().qp->has_pending());
  const uint64_t one = 1;
  std::memcpy(data_.data(), &one, sizeof one);
  std::memset(memory_.data(), 0, 8);
  owner_executes_ = true;
  ASSERT_TRUE(add({memory_.address(), 8, region_.key}, 2));
  expect_success(2, 8);
  EXPECT_EQ(std::memcmp(memory_.data(), &one, sizeof one), 0);
}

TEST_P(Line, an_entry_says_what_that_of_a_wqe_says) {
  ASSERT_TRUE(write(whole(), 5));
  ASSERT_TRUE(completed(1));
  const Completion c = take(a().tx_cq);
  EXPECT_EQ(c.flags, 64u);
  EXPECT_EQ(c.len, kBytes);
  EXPECT_EQ(c.imm, 0u);
  EXPECT_EQ(a().writes.value(), 1u);
}

TEST_P(Line, a_refused_one_ends_with_one_error_that_a_wqe_would_have_ended_with) {
  const RemoteRange refused[] = {{memory_.address(), 8, region_.key ^ 1},
                                 {memory_.address() - 1, 8, region_.key},
                                 {memory_.address() + 4095, 2, region_.key}};
  for (const RemoteRange& range : refused) {
    const uint64_t errors = a().writes.errors();
    if (!write(range, 3)) {
      ASSERT_TRUE(is_known_away());
      continue;
    }
    const CompletionError e = take_error();
    const iovec iov{data_.data(), range.len};
    ASSERT_TRUE(a().write(iov, range, 3));
    const CompletionError expected = take_error();
    EXPECT_EQ(expected.err, Errc::access_denied);
    EXPECT_EQ(e.err, expected.err);
    EXPECT_EQ(e.vendor, expected.vendor);
    EXPECT_EQ(e.sentence, expected.sentence);
    EXPECT_EQ(e.entry.context, expected.entry.context);
    EXPECT_EQ(e.entry.flags, 64u);
    EXPECT_EQ(e.entry.len, 0u);
    EXPECT_EQ(a().writes.errors(), errors + 2);
    EXPECT_TRUE(a().tx_cq.empty());
    EXPECT_TRUE(memory_.all(7) && memory_.canaries_intact());
  }
}

TEST_P(Line, one_without_an_entry_is_counted_and_its_error_told) {
  const RemoteRange bad{memory_.address(), 8, region_.key ^ 1};
  ASSERT_TRUE(write(whole(), 1, false));
  ASSERT_TRUE(write(bad, 2, false));
  ASSERT_TRUE(write(whole(), 3, false));
  EXPECT_EQ(take_error().entry.context, reinterpret_cast<void*>(uint64_t{2}));
  owner_executes_ = true;
  EXPECT_TRUE(pair_.until([&] { return a().writes.value() == 2; }, true,
                          GetParam().target == Target::polls));
  EXPECT_EQ(a().writes.errors(), 1u);
  EXPECT_TRUE(a().tx_cq.empty());
}

TEST_P(LineOrNot, ends_in_the_order_of_posting_among_others) {
  Guarded result(3000);
  const iovec large{data_.data(), 3000}, into{result.data(), 3000};
  const RemoteRange range{memory_.address(), 3000, region_.key};
  std::vector<uint64_t> expected;
  for (uint64_t i = 1; i <= 40; i += 4) {
    ASSERT_TRUE(write(whole(), i) || a().write({data_.data(), kBytes}, whole(), i));
    ASSERT_TRUE(a().write(large, range, i + 1));
    ASSERT_TRUE(write(whole(), i + 2) || a().write({data_.data(), kBytes}, whole(), i + 2));
    ASSERT_TRUE(a().read(into, range, i + 3));
    for (int n = 0; n < 4; ++n) expected.push_back(i + static_cast<uint64_t>(n));
  }
  ASSERT_TRUE(completed(expected.size()));
  EXPECT_EQ(take_contexts(a().tx_cq), expected);
}

TEST_P(LineOrNot, an_add_is_executed_by_the_owner_and_refused_by_it) {
  const uint64_t one = 1;
  std::memcpy(data_.data(), &one, sizeof one);
  uint64_t sum = 40;
  std::memcpy(memory_.data(), &sum, sizeof sum);
  owner_executes_ = true;
  const RemoteRange word{memory_.address(), 8, region_.key};
  ASSERT_TRUE(add(word, 1));
  ASSERT_TRUE(add({word.addr, 8, word.key ^ 1}, 2));
  ASSERT_TRUE(add(word, 3));
  EXPECT_EQ(a().port.tx.wqes.out(), 0u);
  ASSERT_TRUE(completed(3));
  EXPECT_EQ(take(a().tx_cq).context, reinterpret_cast<void*>(uint64_t{1}));
  const CompletionError e = take_error();
  EXPECT_EQ(e.vendor, static_cast<uint32_t>(Denial::unknown_key));
  EXPECT_NE(e.sentence.find("remote atomic of 8 bytes"), std::string::npos) << e.sentence;
  EXPECT_EQ(take(a().tx_cq).context, reinterpret_cast<void*>(uint64_t{3}));
  std::memcpy(&sum, memory_.data(), sizeof sum);
  EXPECT_EQ(sum, 42u);
}

TEST_P(LineToOneThatPolls, what_stands_in_the_queue_is_not_overtaken) {
  // more than the ring holds
  const iovec iov{data_.data(), 4096};
  const RemoteRange range{memory_.address(), 4096, region_.key};
  uint64_t posted = 0;
  while (!a().qp->requester().has_queued()) {
    ASSERT_TRUE(a().write(iov, range, ++posted));
    ASSERT_LT(posted, 10'000u);
  }
  EXPECT_FALSE(write(whole(), 0));
  EXPECT_FALSE(add(whole(), 0));
  ASSERT_TRUE(completed(posted));
  std::vector<uint64_t> expected(posted);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(take_contexts(a().tx_cq), expected);
}

TEST_P(Line, one_with_a_fence_behind_it_is_waited_for) {
  ASSERT_TRUE(write(whole(), 1));
  Guarded result(kBytes);
  const iovec into{result.data(), kBytes};
  const RemoteRange range = whole();
  RmaWr read = rma_of(into, range, 2);
  read.fence = true;
  ASSERT_TRUE(a().qp->requester().rma(WqeKind::read, read));
  ASSERT_TRUE(completed(2));
  EXPECT_EQ(take_contexts(a().tx_cq), (std::vector<uint64_t>{1, 2}));
  EXPECT_TRUE(same_bytes(result.data(), data_.data(), kBytes));
}

TEST_P(ToldLine, its_owner_hears_of_each_that_is_executed_and_of_none_that_is_refused) {
  for (uint64_t i = 0; i < 6; ++i) {
    RemoteRange range = whole();
    if (i % 3 == 2) range.key ^= 1;
    if (!write(range, i)) {
      EXPECT_TRUE(is_known_away());
      ASSERT_TRUE(a().write({data_.data(), kBytes}, range, i));
    }
    owner_executes_ = true;
    ASSERT_TRUE(completed(1));
    EXPECT_EQ(take_end(a().tx_cq), i % 3 == 2 ? Errc::access_denied : Errc::ok);
  }
  pair_.settle();
  EXPECT_EQ(b().remote_writes.value(), 4u);
}

TEST_P(ToldLineToOneThatStopped, of_one_that_the_owner_left_to_be_claimed_it_hears_later) {
  ASSERT_TRUE(write(whole(), 1));
  expect_success(1, kBytes);
  EXPECT_EQ(b().remote_writes.value(), 0u);
  EXPECT_TRUE(same_bytes(memory_.data(), data_.data(), kBytes));
  pair_.settle();
  EXPECT_EQ(b().remote_writes.value(), 1u);
}

TEST_P(Line, data_that_goes_with_a_write_is_told) {
  LineRmaWr wr = line_of({memory_.address(), 32, region_.key}, 1);
  wr.has_imm = true;
  wr.imm = 4711;
  ASSERT_TRUE(a().qp->line().write(wr, data_.data()));
  expect_success(1, 32);
  pair_.settle();
  ASSERT_EQ(b().rx_cq.size(), 1u);
  EXPECT_EQ(take(b().rx_cq).imm, 4711u);
  wr.len = 33;
  EXPECT_FALSE(a().qp->line().write(wr, data_.data())) << "it does not fit beside the data";
}

class EndOfLines : public testing::TestWithParam<LinkKind> {};
INSTANTIATE_TEST_SUITE_P(links, EndOfLines, kEachLink, link_name);

TEST_P(EndOfLines, those_under_way_end_in_order_with_one_error_each) {
  Pair pair(GetParam());
  pair.attach();
  Guarded memory(4096);
  const auto region = pair.region(*pair.b, memory, kWritable);
  const auto data = pattern(4096, 1);
  const RemoteRange small{memory.address(), 8, region.key},
      large{memory.address(), 300, region.key};
  Cq& cq = pair.a->tx_cq;
  const size_t room = cq.room();
  ASSERT_TRUE(pair.a->qp->line().write(line_of(small, 1), data.data()));
  const iovec iov{const_cast<std::byte*>(data.data()), 300};
  ASSERT_TRUE(pair.a->write(iov, large, 2));
  ASSERT_TRUE(pair.a->qp->line().write(line_of(small, 3, false), data.data()));
  ASSERT_TRUE(pair.a->qp->line().atomic(line_of(small, 4), kAdd, 1, data.data()));
  pair.a->qp->finish(Errc::peer_lost);
  for (uint64_t i = 1; i <= 4; ++i) {
    ASSERT_TRUE(cq.error_first()) << i;
    const CompletionError e = cq.pop_error();
    EXPECT_EQ(e.err, Errc::peer_lost);
    EXPECT_EQ(e.entry.context, reinterpret_cast<void*>(i));
    EXPECT_FALSE(e.sentence.empty());
  }
  EXPECT_TRUE(cq.empty());
  EXPECT_EQ(cq.room(), room) << "an entry is promised still";
  EXPECT_EQ(pair.a->port.tx.wqes.out(), 0u);
  EXPECT_FALSE(pair.a->qp->has_pending());
}

TEST_P(EndOfLines, there_is_one_where_the_queue_has_room_for_its_entry) {
  Pair pair(GetParam(), {.cq_entries = 4});
  pair.attach();
  Guarded memory(64);
  const auto region = pair.region(*pair.b, memory, kWritable);
  const auto data = pattern(64, 1);
  const RemoteRange range{memory.address(), 8, region.key};
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.a->qp->line().write(line_of(range, i, i % 2 == 0), data.data()));
  }
  EXPECT_FALSE(pair.a->qp->line().write(line_of(range, 4), data.data()));
  EXPECT_FALSE(pair.a->qp->line().atomic(line_of(range, 4, false), kAdd, 1, data.data()))
      << "its error would have no room";
  ASSERT_TRUE(pair.until([&] { return pair.a->tx_cq.size() == 2; }));
}

}  // namespace
}  // namespace aperture::qp::test
