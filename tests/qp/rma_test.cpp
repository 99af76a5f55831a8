// RMA writes and reads of every size and shape, through the ring, directly by the initiator, and
// with a target that stops polling in the middle.
#include "qp/one_sided.hpp"

namespace aperture::qp::test {
namespace {

class Rma : public OneSided {
 protected:
  void TearDown() override { expect_all_well(); }
};
INSTANTIATE_TEST_SUITE_P(links, Rma, kSettings, setting_name);

const size_t kSizes[] = {0,      1,      8,       47,      48,      49,      255,    256,
                         257,    4096,   32767,   32768,   32769,   65536,   262143, 262144,
                         262145, 524289, 1000003, 4194304, 9000001, 20000000};

TEST_P(Rma, write_of_every_size_lands_exactly_there) {
  uint64_t n = 0;
  for (const size_t size : kSizes) {
    Guarded memory(size + 200);
    const auto region = pair_.region(b(), memory, Rights::remote_write);
    const auto data = pattern(size, static_cast<unsigned>(++n));
    ASSERT_TRUE(a().write(iov_of(data), {memory.address() + 100, size, region.key}, n));
    expect_success(n, size);
    EXPECT_TRUE(same_bytes(memory.data() + 100, data.data(), size)) << size;
    for (size_t i = 0; i < 100; ++i) {
      ASSERT_EQ(memory.data()[i], std::byte{0});
      ASSERT_EQ(memory.data()[100 + size + i], std::byte{0});
    }
    EXPECT_TRUE(memory.canaries_intact());
    pair_.close(region);
  }
  EXPECT_EQ(a().writes.value(), n);
}

TEST_P(Rma, read_of_every_size_brings_exactly_that) {
  uint64_t n = 0;
  for (const size_t size : kSizes) {
    Guarded memory(size + 200);
    const auto data = pattern(size + 200, static_cast<unsigned>(++n));
    memory.set(data);
    const auto region = pair_.region(b(), memory, Rights::remote_read, true);
    Guarded result(size);
    ASSERT_TRUE(a().read({result.data(), size}, {100, size, region.key}, n));
    expect_success(n, size);
    EXPECT_TRUE(same_bytes(result.data(), data.data() + 100, size)) << size;
    EXPECT_TRUE(result.canaries_intact());
    pair_.close(region);
  }
  EXPECT_EQ(a().reads.value(), n);
}

// Several local pieces and several remote ranges, cut at different places, some of them empty.
TEST_P(Rma, several_pieces_and_ranges_meet) {
  for (const size_t size : {10u, 300u, 100000u, 3000000u}) {
    Guarded memory(2 * size);
    const auto region = pair_.region(b(), memory, Rights::remote_write | Rights::remote_read);
    const auto data = pattern(size, 4);
    auto* base = const_cast<std::byte*>(data.data());
    const size_t cut = size / 3;
    const iovec iov[4] = {{base, 1}, {base + 1, cut}, {base, 0}, {base + 1 + cut, size - 1 - cut}};
    const size_t half = size / 2;
    const RemoteRange ranges[4] = {{memory.address() + half + size / 4, half, region.key},
                                   {memory.address() + 5, 0, region.key},
                                   {memory.address(), 2, region.key},
                                   {memory.address() + 2, size - half - 2, region.key}};
    RmaWr wr = rma_of(iov[0], ranges[0], 1);
    wr.iov = iov;
    wr.iov_count = 4;
    wr.len = size;
    wr.ranges = ranges;
    wr.range_count = 4;
    ASSERT_TRUE(a().qp->requester().rma(WqeKind::write, wr));
    expect_success(1, size);
    EXPECT_TRUE(same_bytes(memory.data() + half + size / 4, base, half));
    EXPECT_TRUE(same_bytes(memory.data(), base + half, size - half));

    Guarded result(size);
    const iovec to[3] = {
        {result.data(), size - 3}, {result.data() + size - 3, 1}, {result.data() + size - 2, 2}};
    wr.iov = to;
    wr.iov_count = 3;
    wr.context = reinterpret_cast<void*>(2);
    ASSERT_TRUE(a().qp->requester().rma(WqeKind::read, wr));
    expect_success(2, size);
    EXPECT_TRUE(same_bytes(result.data(), base, size)) << size;
    EXPECT_TRUE(result.canaries_intact());
    EXPECT_TRUE(memory.canaries_intact());
    pair_.close(region);
  }
}

TEST_P(Rma, immediate_data_is_told_once_and_after_the_bytes) {
  for (const size_t size : {0u, 8u, 200u, 256u, 257u, 50000u, 2000000u}) {
    Guarded memory(size);
    const auto region = pair_.region(b(), memory, Rights::remote_write);
    const auto data = pattern(size, 6);
    const iovec iov = iov_of(data);
    const RemoteRange range{memory.address(), size, region.key};
    RmaWr wr = rma_of(iov, range, 5);
    wr.has_imm = true;
    wr.imm = 0x1234567890abcdefu + size;
    ASSERT_TRUE(a().qp->requester().rma(WqeKind::write, wr));
    // only the owner can tell it: it has to poll
    ASSERT_TRUE(pair_.until([&] { return !b().rx_cq.empty(); })) << size;
    EXPECT_TRUE(same_bytes(memory.data(), data.data(), size));
    const Completion c = take(b().rx_cq);
    EXPECT_EQ(c.imm, wr.imm);
    EXPECT_EQ(c.len, size);
    EXPECT_EQ(c.flags, 3u);
    ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 1; }));
    expect_success(5, size);
    pair_.settle();
    EXPECT_TRUE(b().rx_cq.empty());
    pair_.close(region);
    fall_asleep();
  }
}

TEST_P(Rma, notice_waits_for_room_in_the_cq_of_the_target) {
  Pair pair(GetParam().link, {.cq_entries = 2});
  pair.attach();
  Guarded memory(100000);
  const auto region = pair.region(*pair.b, memory, Rights::remote_write);
  const auto data = pattern(100000, 6);
  for (const size_t size : {8u, 100000u}) {
    const iovec iov{const_cast<std::byte*>(data.data()), size};
    const RemoteRange range{memory.address(), size, region.key};
    RmaWr wr = rma_of(iov, range, 5);
    wr.has_imm = true;
    wr.completion = false;
    uint64_t seen = 0;
    uint64_t posted = 0;
    ASSERT_TRUE(pair.until([&] {
      if (posted < 10) {
        wr.imm = posted;
        if (pair.a->qp->requester().rma(WqeKind::write, wr)) ++posted;
      }
      EXPECT_LE(pair.b->rx_cq.size(), 2u);
      if (pair.b->rx_cq.size() == 2 || (posted == 10 && !pair.b->rx_cq.empty())) {
        EXPECT_EQ(take(pair.b->rx_cq).imm, seen++);
      }
      return seen == 10;
    }));
    ASSERT_TRUE(pair.until([&] { return !pair.a->qp->has_pending(); }));
  }
}

TEST_P(Rma, injected_write_frees_its_buffer_at_once) {
  Guarded memory(200);
  const auto region = pair_.region(b(), memory, Rights::remote_write);
  std::vector<std::byte> data = pattern(200, 8);
  const auto expected = data;
  const iovec iov = iov_of(data);
  const RemoteRange range{memory.address(), 200, region.key};
  RmaWr wr = rma_of(iov, range, 1);
  wr.inject = true;
  wr.completion = false;
  ASSERT_TRUE(a().qp->requester().rma(WqeKind::write, wr));
  std::fill(data.begin(), data.end(), std::byte{0});
  ASSERT_TRUE(pair_.until([&] { return !a().qp->has_pending(); }, true, target_polls()));
  EXPECT_TRUE(memory.get() == expected);
  EXPECT_TRUE(a().tx_cq.empty());
  EXPECT_EQ(a().writes.value(), 1u);
}

// Far more operations in flight than there are cells, with acknowledgements coming in between.
TEST_P(Rma, many_small_operations_all_complete) {
  constexpr uint64_t kOps = 20000;
  Guarded memory(8 * 1024);
  memory.set(pattern(8 * 1024, 3));
  const auto region = pair_.region(b(), memory, Rights::remote_write | Rights::remote_read);
  std::vector<uint64_t> results(kOps, ~uint64_t{0});
  std::vector<uint64_t> sources(kOps);
  uint64_t posted = 0;
  uint64_t completed_ops = 0;
  ASSERT_TRUE(pair_.until(
      [&] {
        while (posted < kOps) {
          const size_t at = (posted % 1024) * 8;
          sources[posted] = posted;
          const bool write = posted % 3 == 0;
          if (!a().rma(write ? WqeKind::write : WqeKind::read,
                       {write ? &sources[posted] : &results[posted], 8},
                       {memory.address() + at, 8, region.key}, posted))
            break;
          ++posted;
        }
        completed_ops += take_contexts(a().tx_cq).size();
        return completed_ops == kOps;
      },
      true, target_polls()));
  EXPECT_EQ(a().qp->look(), Qp::Look::nothing) << "goes on polling for nothing";
}

TEST_P(Rma, full_cq_is_again) {
  Pair pair(GetParam().link, {.cq_entries = 4});
  pair.attach();
  Guarded memory(100000);
  const auto region = pair.region(*pair.b, memory, Rights::remote_write);
  const auto data = pattern(100000, 6);
  const iovec iov = iov_of(data);
  const RemoteRange range{memory.address(), data.size(), region.key};
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pair.a->write(iov, range, 1));
  EXPECT_EQ(pair.a->write(iov, range, 1).error(), Errc::again);
  ASSERT_TRUE(pair.until([&] { return pair.a->tx_cq.size() == 4; }));
  EXPECT_EQ(pair.a->write(iov, range, 1).error(), Errc::again);
  pair.a->tx_cq.pop();
  EXPECT_TRUE(pair.a->write(iov, range, 1));
}

TEST_P(Rma, queued_while_connecting_runs_later) {
  Pair pair(GetParam().link);
  Guarded memory(1000);
  Guarded result(1000);
  const auto region = pair.region(*pair.b, memory, Rights::remote_write | Rights::remote_read);
  const auto data = pattern(1000, 6);
  const iovec from = iov_of(data);
  const iovec to{result.data(), 1000};
  const RemoteRange range{memory.address(), data.size(), region.key};
  ASSERT_TRUE(pair.a->write(from, range, 1));
  RmaWr read = rma_of(to, range, 2);
  read.fence = true;
  ASSERT_TRUE(pair.a->qp->requester().rma(WqeKind::read, read));
  ASSERT_TRUE(pair.a->write(from, range, 3));
  ASSERT_TRUE(pair.a->qp->requester().cancel(reinterpret_cast<void*>(3)));
  EXPECT_EQ(pair.a->tx_cq.pop_error().err, Errc::canceled);
  pair.attach();
  ASSERT_TRUE(pair.until([&] { return pair.a->tx_cq.size() == 2; }));
  EXPECT_TRUE(result.get() == data);
}

// A large operation while the target sleeps, wakes and polls, sleeps again: it changes its path in
// its middle, and arrives whole.
TEST_P(Rma, large_operation_over_changing_paths_arrives_whole) {
  constexpr size_t kSize = 40'000'000;
  Guarded memory(kSize);
  const auto data = pattern(kSize, 12);
  memory.set(data);
  const auto region = pair_.region(b(), memory, Rights::remote_write | Rights::remote_read);
  for (const WqeKind kind : {WqeKind::read, WqeKind::write}) {
    Guarded local(kSize, 0);
    const auto source = pattern(kSize, 13);
    if (kind == WqeKind::write) local.set(source);
    ASSERT_TRUE(a().rma(kind, {local.data(), kSize}, {memory.address(), kSize, region.key}, 1));
    uint64_t round = 0;
    ASSERT_TRUE(pair_.until(
        [&] {
          ++round;
          if (round % 4 == 1) b().qp->fall_asleep(ring::kUnnumbered);
          if (round % 4 == 3) {
            b().qp->wake_up();
            for (int i = 0; i < 20; ++i) b().poll();
          }
          return a().tx_cq.size() == 1;
        },
        true, false));
    b().qp->wake_up();
    expect_success(1, kSize);
    EXPECT_TRUE(kind == WqeKind::read ? local.get() == data : memory.get() == source);
  }
}

// Its owner has begun to answer it, in steps, when it stops: that part alone has to wait for it.
// Who looks at its ring for a moment now and then holds up no more.
TEST(LargeRead, of_an_owner_that_hardly_polls_goes_on_without_it) {
  constexpr size_t kSize = 16'000'000;
  Pair pair(LinkKind::direct);
  pair.attach();
  Guarded memory(kSize), local(kSize);
  const auto data = pattern(kSize, 14);
  memory.set(data);
  const auto region = pair.region(*pair.b, memory, Rights::remote_read);
  ASSERT_TRUE(pair.a->read(iov_of(local), {memory.address(), kSize, region.key}, 1));
  int owner_polls = 0;
  uint64_t next_ns = 0;
  ASSERT_TRUE(pair.until(
      [&] {
        if (now_ns() >= next_ns) {
          next_ns = now_ns() + 20'000'000;
          pair.b->poll();
          ++owner_polls;
        }
        return pair.a->tx_cq.size() == 1;
      },
      true, false));
  EXPECT_EQ(take(pair.a->tx_cq).len, kSize);
  EXPECT_TRUE(local.get() == data);
  EXPECT_LE(owner_polls, 20);
  pair.close(region);
}

}  // namespace
}  // namespace aperture::qp::test
