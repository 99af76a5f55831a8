// What the owner hears of accesses: immediate data and remote counters, whoever copied the bytes.
// fi_rma(3), FI_REMOTE_CQ_DATA; fi_getinfo(3), FI_RMA_EVENT.
#include "qp/one_sided.hpp"

namespace aperture::qp::test {
namespace {

constexpr size_t kSizes[] = {0, 1, 8, 256, 257, 5000, 32768, 100000, 700000};
// The target wakes up at last in pair_.settle() and takes what is in its ring.
class Notices : public OneSided {
 protected:
  Notices() : OneSided(true) {}
};
INSTANTIATE_TEST_SUITE_P(settings, Notices, kSettings, setting_name);

using NoNotices = OneSided;
INSTANTIATE_TEST_SUITE_P(settings, NoNotices, kSettings, setting_name);

// Where all goes directly.
using NoticesToASleeper = Notices;
using NoNoticesToASleeper = OneSided;
const auto kAsleep = testing::Values(Setting{LinkKind::direct, Target::asleep});
INSTANTIATE_TEST_SUITE_P(settings, NoticesToASleeper, kAsleep, setting_name);
INSTANTIATE_TEST_SUITE_P(settings, NoNoticesToASleeper, kAsleep, setting_name);

TEST_P(Notices, each_write_and_each_read_counts_once) {
  Guarded memory(700000), local(700000);
  const auto region = pair_.region(b(), memory, Rights::remote_write | Rights::remote_read);
  uint64_t writes = 0;
  for (int round = 0; round < 3; ++round) {
    for (const size_t size : kSizes) {
      const iovec iov{local.data(), size};
      const RemoteRange range{memory.address(), size, region.key};
      ASSERT_TRUE(a().write(iov, range, 1));
      ASSERT_TRUE(completed(1)) << size;
      take(a().tx_cq);
      ASSERT_TRUE(a().read(iov, range, 2));
      ASSERT_TRUE(completed(1)) << size;
      take(a().tx_cq);
      ++writes;
    }
  }
  pair_.settle();
  EXPECT_EQ(b().remote_writes.value(), writes);
  EXPECT_EQ(b().remote_reads.value(), writes);
  EXPECT_TRUE(b().rx_cq.empty()) << "no entry without immediate data";
}

TEST_P(Notices, several_ranges_are_one_access) {
  Guarded memory(400000), local(300000);
  const auto region = pair_.region(b(), memory, Rights::remote_write | Rights::remote_read);
  for (const size_t size : {size_t{100}, size_t{100000}}) {
    const RemoteRange ranges[3] = {{memory.address(), size, region.key},
                                   {memory.address() + 100000, size, region.key},
                                   {memory.address() + 200000, size, region.key}};
    const iovec iov{local.data(), 3 * size};
    RmaWr wr = rma_of(iov, ranges[0], 1);
    wr.ranges = ranges;
    wr.range_count = 3;
    for (const WqeKind kind : {WqeKind::write, WqeKind::read}) {
      ASSERT_TRUE(a().qp->requester().rma(kind, wr));
      ASSERT_TRUE(completed(1));
      take(a().tx_cq);
    }
  }
  pair_.settle();
  EXPECT_EQ(b().remote_writes.value(), 2u);
  EXPECT_EQ(b().remote_reads.value(), 2u);
}

TEST_P(Notices, a_refused_access_counts_for_nobody) {
  Guarded memory(100000), local(200000);
  const auto region = pair_.region(b(), memory, Rights::remote_write | Rights::remote_read);
  for (const size_t size : {size_t{8}, size_t{100000}}) {
    for (const bool has_imm : {false, true}) {
      for (const WqeKind kind : {WqeKind::write, WqeKind::read}) {
        if (has_imm && kind == WqeKind::read) continue;
        const iovec iov{local.data(), size};
        const RemoteRange range{memory.address() + 1 + memory.size() - size, size, region.key};
        RmaWr wr = rma_of(iov, range, 1);
        wr.has_imm = has_imm;
        ASSERT_TRUE(a().qp->requester().rma(kind, wr));
        // one that was in the ring of a stopped target is for its owner to refuse
        ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 1; }));
        EXPECT_EQ(take_end(a().tx_cq), Errc::access_denied);
      }
    }
  }
  pair_.settle();
  EXPECT_EQ(b().remote_writes.value(), 0u);
  EXPECT_EQ(b().remote_reads.value(), 0u);
  EXPECT_TRUE(b().rx_cq.empty());
  EXPECT_TRUE(memory.all(0));
  // and the next good one does count, with its data
  const iovec iov{local.data(), 8};
  const RemoteRange good{memory.address(), 8, region.key};
  RmaWr wr = rma_of(iov, good, 1);
  wr.has_imm = true;
  wr.imm = 5;
  ASSERT_TRUE(a().qp->requester().rma(WqeKind::write, wr));
  ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 1; }));
  take(a().tx_cq);
  pair_.settle();
  EXPECT_EQ(b().remote_writes.value(), 1u);
  ASSERT_EQ(b().rx_cq.size(), 1u);
  EXPECT_EQ(b().rx_cq.front().imm, 5u);
}

TEST_P(NoNotices, immediate_data_comes_once_and_after_the_bytes_without_the_target_polling) {
  Guarded memory(700000);
  const auto region = pair_.region(b(), memory, Rights::remote_write);
  unsigned seed = 0;
  for (const size_t size : kSizes) {
    ++seed;
    auto data = pattern(size, seed);
    const iovec iov{data.data(), size};
    const RemoteRange range{memory.address(), size, region.key};
    RmaWr wr = rma_of(iov, range, seed);
    wr.has_imm = true;
    wr.imm = 1000 + size;
    ASSERT_TRUE(a().qp->requester().rma(WqeKind::write, wr));
    ASSERT_TRUE(completed(1)) << size << ": the bytes need no poll of a target that can be reached";
    take(a().tx_cq);
    EXPECT_TRUE(same_bytes(memory.data(), data.data(), size)) << size;
    if (target_polls()) {
      ASSERT_TRUE(pair_.until([&] { return b().rx_cq.size() == 1; }));
      EXPECT_EQ(take(b().rx_cq).imm, 1000 + size);
    }
  }
  pair_.settle();
  if (target_polls()) return;
  ASSERT_EQ(b().rx_cq.size(), std::size(kSizes));
  for (const size_t size : kSizes) {
    const Completion c = take(b().rx_cq);
    EXPECT_EQ(c.imm, 1000 + size);
    EXPECT_EQ(c.len, size);
    EXPECT_EQ(c.flags, 3u);
  }
}

TEST_P(NoNoticesToASleeper, nobody_pays_who_did_not_ask) {
  Guarded memory(1000), local(1000);
  const auto region = pair_.region(b(), memory, Rights::remote_write);
  ASSERT_TRUE(a().write({local.data(), 1000}, {memory.address(), 1000, region.key}, 1));
  ASSERT_TRUE(completed(1));
  EXPECT_FALSE(b().qp->anything_arrived()) << "nothing went through the ring";
}

TEST_P(NoticesToASleeper, wait_where_there_is_no_room_and_none_is_lost) {
  Guarded memory(8), local(8);
  const auto region = pair_.region(b(), memory, Rights::remote_write);
  uint64_t posted = 0;
  while (posted < 600 && a().write({local.data(), 8}, {memory.address(), 8, region.key}, 1)) {
    ++posted;
    a().poll();
  }
  EXPECT_GT(posted, 256u) << "the ring has fewer cells than that";
  EXPECT_TRUE(a().qp->requester().has_queued());
  ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == posted; }));
  pair_.settle();
  EXPECT_EQ(b().remote_writes.value(), posted);
}

TEST_P(Notices, notices_and_immediate_data_keep_their_place_behind_messages) {
  Guarded memory(8), local(8);
  const auto region = pair_.region(b(), memory, Rights::remote_write);
  const iovec iov{local.data(), 8};
  const RemoteRange range{memory.address(), 8, region.key};
  SendWr message = send_of(iov, 9);
  message.completion = false;
  RmaWr write = rma_of(iov, range, 1);
  write.has_imm = true;
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(a().qp->requester().send(message));
    write.imm = i;
    ASSERT_TRUE(a().qp->requester().rma(WqeKind::write, write));
  }
  ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 20; }));
  pair_.settle();
  EXPECT_EQ(b().sink.messages.size(), 20u);
  ASSERT_EQ(b().rx_cq.size(), 20u);
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(take(b().rx_cq).imm, i);
}

}  // namespace
}  // namespace aperture::qp::test
