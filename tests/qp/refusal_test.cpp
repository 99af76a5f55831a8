// Refused remote access: exactly one error with the right reason, nothing outside or inside the
// region changed, and both queue pairs go on as before. Every refusal has its legal neighbour.
// (hostile_N: number N of the project's list of hostile inputs.)
#include <sys/mman.h>

#include <array>

#include "qp/one_sided.hpp"
#include "transport/tuning.hpp"

namespace aperture::qp::test {
namespace {

using protect::Denial;

class Refusal : public OneSided {
 protected:
  void TearDown() override { expect_all_well(); }
  // Posts it and expects one error of that kind, or success for Denial::none. Returns the reason.
  Denial attempt(WqeKind kind, uint64_t addr, uint64_t len, uint64_t key, void* local) {
    const iovec iov{local, len};
    const RemoteRange range{addr, len, key};
    return attempt(kind, rma_of(iov, range, ++context_));
  }
  // All of `local`, with the beginning of that memory.
  Denial attempt(WqeKind kind, Guarded& memory, uint64_t key, Guarded& local) {
    return attempt(kind, memory.address(), local.size(), key, local.data());
  }
  Denial attempt(WqeKind kind, const RmaWr& wr) {
    const uint64_t errors = a().writes.errors() + a().reads.errors();
    EXPECT_TRUE(a().qp->requester().rma(kind, wr));
    EXPECT_TRUE(completed(1));
    if (a().tx_cq.empty()) return Denial::none;
    if (!a().tx_cq.error_first()) {
      a().tx_cq.pop();
      EXPECT_TRUE(a().tx_cq.empty());
      return Denial::none;
    }
    const CompletionError e = a().tx_cq.pop_error();
    EXPECT_TRUE(a().tx_cq.empty()) << "more than one completion";
    EXPECT_EQ(e.err, Errc::access_denied);
    EXPECT_EQ(e.entry.context, wr.context);
    EXPECT_FALSE(e.sentence.empty());
    EXPECT_EQ(a().writes.errors() + a().reads.errors(), errors + 1);
    return static_cast<Denial>(e.vendor);
  }
  // Every size class, as write and as read; the memory holds 7 and must go on holding it.
  void expect_denied(Guarded& memory, uint64_t addr, uint64_t len, uint64_t key,
                     std::initializer_list<Denial> reasons) {
    for (const WqeKind kind : {WqeKind::write, WqeKind::read}) {
      if (len > kLocal) continue;
      Guarded local(len, 9);
      const Denial got = attempt(kind, addr, len, key, local.data());
      EXPECT_TRUE(std::find(reasons.begin(), reasons.end(), got) != reasons.end())
          << "reason " << int(got) << " of length " << len;
      EXPECT_TRUE(memory.all(7));
      EXPECT_TRUE(memory.canaries_intact());
      EXPECT_TRUE(local.all(9));
      EXPECT_TRUE(local.canaries_intact());
    }
  }
  static constexpr uint64_t kLocal = 1u << 24;
  uint64_t context_ = 0;
};

INSTANTIATE_TEST_SUITE_P(links, Refusal, kSettings, setting_name);

constexpr auto kBoth = Rights::remote_read | Rights::remote_write;
const uint64_t kLengths[] = {1, 200, 257, 40000, 300000};

TEST_P(Refusal, an_unknown_key_is_refused) {
  Guarded memory(300000, 7);
  const auto region = pair_.region(b(), memory, kBoth);
  for (const uint64_t len : kLengths) {
    expect_denied(memory, memory.address(), len, region.key ^ 1, {Denial::unknown_key});
    expect_denied(memory, memory.address(), len, 0, {Denial::unknown_key});
    expect_denied(memory, memory.address(), len, ~uint64_t{0}, {Denial::unknown_key});
  }
}

TEST_P(Refusal, hostile_7_a_key_of_another_domain_is_refused) {
  Guarded memory(300000, 7);
  const auto region = pair_.region(a(), memory, kBoth);  // ours, not the target's
  for (const uint64_t len : kLengths) {
    expect_denied(memory, memory.address(), len, region.key,
                  {Denial::wrong_domain, Denial::unknown_key});
  }
}

TEST_P(Refusal, hostile_8_a_missing_right_is_refused) {
  Guarded memory(300000, 7);
  const auto readable = pair_.region(b(), memory, Rights::remote_read | Rights::local_write);
  const auto writable = pair_.region(b(), memory, Rights::remote_write | Rights::local_read);
  for (const uint64_t len : kLengths) {
    Guarded local(len, 9);
    EXPECT_EQ(attempt(WqeKind::write, memory, readable.key, local), Denial::missing_right);
    EXPECT_EQ(attempt(WqeKind::read, memory, writable.key, local), Denial::missing_right);
    EXPECT_TRUE(memory.all(7));
    EXPECT_TRUE(local.all(9));
    EXPECT_EQ(attempt(WqeKind::read, memory, readable.key, local), Denial::none);
    EXPECT_TRUE(local.all(7));
    EXPECT_EQ(attempt(WqeKind::write, memory, writable.key, local), Denial::none);
    EXPECT_TRUE(memory.all(7));
  }
}

TEST_P(Refusal, hostile_9_one_byte_outside_is_refused) {
  for (const uint64_t len : kLengths) {
    Guarded memory(len, 7);
    const auto region = pair_.region(b(), memory, kBoth);
    expect_denied(memory, memory.address() - 1, len, region.key, {Denial::out_of_range});
    expect_denied(memory, memory.address() + 1, len, region.key, {Denial::out_of_range});
    expect_denied(memory, memory.address() - 1, 1, region.key, {Denial::out_of_range});
    expect_denied(memory, memory.address() + len, 1, region.key, {Denial::out_of_range});
    Guarded local(len, 7);
    EXPECT_EQ(attempt(WqeKind::write, memory, region.key, local), Denial::none);
    EXPECT_EQ(attempt(WqeKind::write, memory.address() + len - 1, 1, region.key, local.data()),
              Denial::none);
    pair_.close(region);
  }
}

TEST_P(Refusal, hostile_10_a_range_that_wraps_is_refused) {
  Guarded memory(5000, 7);
  const auto region = pair_.region(b(), memory, kBoth);
  for (const uint64_t len : {uint64_t{2}, uint64_t{300}, uint64_t{4000}, uint64_t{100000}}) {
    expect_denied(memory, ~uint64_t{0}, len, region.key, {Denial::out_of_range});
    expect_denied(memory, ~uint64_t{0} - len + 2, len, region.key, {Denial::out_of_range});
  }
}

TEST_P(Refusal, hostile_11_very_long_lengths_are_refused) {
  constexpr uint64_t k4G = uint64_t{1} << 32;
  void* room = ::mmap(nullptr, k4G + 4096, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  Guarded memory(5000, 7);
  const auto region = pair_.region(b(), memory, kBoth);
  for (const uint64_t len : {k4G / 2, k4G - 1, k4G, k4G + 8}) {
    for (const WqeKind kind : {WqeKind::write, WqeKind::read}) {
      EXPECT_EQ(attempt(kind, memory.address(), len, region.key, room), Denial::out_of_range)
          << len;
    }
  }
  ::munmap(room, k4G + 4096);
  EXPECT_TRUE(memory.all(7));
  EXPECT_TRUE(memory.canaries_intact());
}

TEST_P(Refusal, hostile_12_addressing_of_the_other_kind_is_refused) {
  Guarded memory(5000, 7);
  const auto zero_based = pair_.region(b(), memory, kBoth, true);
  const auto virtual_based = pair_.region(b(), memory, kBoth);
  for (const uint64_t len : {uint64_t{8}, uint64_t{4000}}) {
    expect_denied(memory, memory.address(), len, zero_based.key, {Denial::out_of_range});
    expect_denied(memory, 0, len, virtual_based.key, {Denial::out_of_range});
    Guarded local(len, 7);
    EXPECT_EQ(attempt(WqeKind::write, 0, len, zero_based.key, local.data()), Denial::none);
  }
}

TEST_P(Refusal, hostile_13_nothing_asked_of_a_bad_key_is_refused) {
  Guarded memory(64, 7);
  const auto region = pair_.region(b(), memory, kBoth);
  for (const WqeKind kind : {WqeKind::write, WqeKind::read}) {
    EXPECT_EQ(attempt(kind, memory.address(), 0, region.key ^ 1, nullptr), Denial::unknown_key);
    EXPECT_EQ(attempt(kind, memory.address() + 65, 0, region.key, nullptr), Denial::out_of_range);
    EXPECT_EQ(attempt(kind, memory.address(), 0, region.key, nullptr), Denial::none);
  }
}

TEST_P(Refusal, hostile_13_zero_length_region_gives_nothing) {
  Guarded memory(64, 7);
  protect::RegionSpec spec = Pair::spec_of(b(), memory, kBoth);
  spec.length = 0;
  const auto region = *pair_.keys->add(spec);
  expect_denied(memory, memory.address(), 1, region.key, {Denial::out_of_range});
  expect_denied(memory, memory.address(), 64, region.key, {Denial::out_of_range});
}

TEST_P(Refusal, hostile_15_closed_region_and_a_new_one_at_the_same_place) {
  Guarded memory(40000, 7);
  const auto region = pair_.region(b(), memory, kBoth);
  Guarded local(40000, 7);
  EXPECT_EQ(attempt(WqeKind::write, memory, region.key, local), Denial::none);
  pair_.close(region);
  const auto again = pair_.region(b(), memory, kBoth);
  for (const uint64_t len : {uint64_t{8}, uint64_t{40000}}) {
    expect_denied(memory, memory.address(), len, region.key, {Denial::closed});
    EXPECT_EQ(attempt(WqeKind::write, memory, again.key, local), Denial::none);
  }
}

TEST_P(Refusal, region_that_is_being_closed) {
  Guarded memory(40000, 7);
  const auto region = pair_.region(b(), memory, kBoth);
  ASSERT_TRUE(pair_.keys->revocation().begin(region));
  for (const uint64_t len : {uint64_t{8}, uint64_t{40000}}) {
    expect_denied(memory, memory.address(), len, region.key, {Denial::revoking, Denial::closed});
  }
}

TEST_P(Refusal, a_region_is_refused_until_it_is_enabled) {
  Guarded memory(40000, 7);
  protect::RegionSpec spec = Pair::spec_of(b(), memory, kBoth);
  spec.enabled = false;
  const auto region = *pair_.keys->add(spec);
  for (const uint64_t len : {uint64_t{8}, uint64_t{40000}}) {
    expect_denied(memory, memory.address(), len, region.key, {Denial::not_enabled});
  }
  ASSERT_TRUE(pair_.keys->enable(region));
  Guarded local(40000, 7);
  EXPECT_EQ(attempt(WqeKind::write, memory, region.key, local), Denial::none);
}

// One bad range among several: one error for the operation, whatever the others are.
TEST_P(Refusal, hostile_16_one_bad_range_of_several_refuses_all) {
  for (const uint64_t len : {uint64_t{100}, uint64_t{40000}, uint64_t{400000}}) {
    Guarded memory(3 * len, 7);
    const auto region = pair_.region(b(), memory, kBoth);
    for (size_t bad = 0; bad < 3; ++bad) {
      std::array<RemoteRange, 3> ranges;
      for (size_t i = 0; i < 3; ++i) {
        ranges[i] = {memory.address() + i * len, len, i == bad ? region.key ^ 1 : region.key};
      }
      for (const WqeKind kind : {WqeKind::write, WqeKind::read}) {
        Guarded local(3 * len, 7);
        const iovec iov{local.data(), 3 * len};
        RmaWr wr = rma_of(iov, ranges[0], ++context_);
        wr.ranges = ranges.data();
        wr.range_count = 3;
        EXPECT_EQ(attempt(kind, wr), Denial::unknown_key) << bad;
        EXPECT_TRUE(local.canaries_intact());
        EXPECT_TRUE(memory.canaries_intact());
        EXPECT_TRUE(memory.all(7));
      }
    }
    pair_.close(region);
  }
}

TEST_P(Refusal, refused_write_tells_no_immediate_data) {
  Guarded memory(40000, 7);
  const auto region = pair_.region(b(), memory, kBoth);
  for (const uint64_t len : {uint64_t{0}, uint64_t{8}, uint64_t{256}, uint64_t{30000}}) {
    for (const bool good : {false, true}) {
      Guarded local(len, 7);
      const iovec iov{local.data(), len};
      const RemoteRange range{memory.address(), len, good ? region.key : region.key ^ 1};
      RmaWr wr = rma_of(iov, range, 3);
      wr.has_imm = true;
      wr.imm = len;
      ASSERT_TRUE(a().qp->requester().rma(WqeKind::write, wr));
      ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 1; }));
      pair_.settle();
      ASSERT_EQ(a().tx_cq.error_first(), !good);
      if (good) {
        a().tx_cq.pop();
      } else {
        EXPECT_EQ(a().tx_cq.pop_error().vendor, uint32_t(Denial::unknown_key));
      }
      ASSERT_EQ(b().rx_cq.size(), good ? 1u : 0u) << len;
      if (good) b().rx_cq.pop();
    }
  }
}

// Far more refusals than the response ring has cells and one poll looks at, among successes: each
// operation ends as it should.
TEST_P(Refusal, flood_of_refusals_among_successes) {
  Guarded memory(8, 7);
  const auto region = pair_.region(b(), memory, kBoth);
  constexpr uint64_t kOps = 5000;
  Guarded local(8, 7);
  std::vector<int> ended(kOps, 0);
  uint64_t posted = 0;
  uint64_t count = 0;
  ASSERT_TRUE(pair_.until(
      [&] {
        for (; posted < kOps; ++posted) {
          const bool bad = posted % 5 != 0;
          const WqeKind kind = posted % 2 == 0 ? WqeKind::write : WqeKind::read;
          if (!a().rma(kind, {local.data(), 8},
                       {memory.address(), 8, bad ? region.key ^ 1 : region.key}, posted))
            break;
        }
        if (target_polls()) {
          for (int i = 0; i < 10; ++i) b().poll();  // it is well ahead of the initiator
        }
        while (!a().tx_cq.empty()) {
          const auto nth = reinterpret_cast<uint64_t>(a().tx_cq.front().context);
          EXPECT_EQ(take_end(a().tx_cq), nth % 5 != 0 ? Errc::access_denied : Errc::ok) << nth;
          ++ended[nth];
          ++count;
        }
        return count == kOps;
      },
      true, target_polls()));
  for (uint64_t i = 0; i < kOps; ++i) EXPECT_EQ(ended[i], 1) << i;
}

// More than goes directly while it is posted and in two passes: then it is in its middle.
constexpr uint64_t kLong = 4 * transport::kDirectBudget;

// A region that is closed in the middle of a large operation: one error, and nothing after the
// close.
TEST_P(Refusal, close_in_the_middle) {
  for (const WqeKind kind : {WqeKind::write, WqeKind::read}) {
    Guarded memory(kLong, 7);
    const auto region = pair_.region(b(), memory, kBoth);
    Guarded local(kLong, 9);
    ASSERT_TRUE(a().rma(kind, {local.data(), kLong}, {memory.address(), kLong, region.key}, 1));
    for (int i = 0; i < 2; ++i) {
      a().poll();
      if (target_polls()) b().poll();
    }
    ASSERT_TRUE(a().tx_cq.empty());
    pair_.close(region);
    const auto at_close = memory.get();
    ASSERT_TRUE(completed(1));
    EXPECT_EQ(take_end(a().tx_cq), Errc::access_denied);
    pair_.settle();
    EXPECT_TRUE(memory.get() == at_close);
    EXPECT_TRUE(memory.canaries_intact());
    EXPECT_TRUE(local.canaries_intact());
  }
}

// The same key over the same memory again, between two pieces: that is another region.
TEST_P(Refusal, close_in_the_middle_and_the_same_key_again) {
  for (const WqeKind kind : {WqeKind::write, WqeKind::read}) {
    Guarded memory(kLong, 7);
    protect::RegionSpec spec = Pair::spec_of(b(), memory, kBoth);
    spec.requested_key = 77;
    const auto first = *pair_.keys->add(spec);
    Guarded local(kLong, 9);
    ASSERT_TRUE(a().rma(kind, {local.data(), kLong}, {memory.address(), kLong, 77}, 1));
    for (int i = 0; i < 2; ++i) {
      a().poll();
      if (target_polls()) b().poll();
    }
    ASSERT_TRUE(a().tx_cq.empty());
    // what has not begun yet is an access to the second region, and may go through
    const bool begun = kind == WqeKind::write ? !memory.all(7) : !local.all(9);
    pair_.close(first);
    const auto second = *pair_.keys->add(spec);
    const auto at_close = memory.get();
    ASSERT_TRUE(completed(1));
    ASSERT_EQ(take_end(a().tx_cq), begun ? Errc::access_denied : Errc::ok);
    if (begun) {
      pair_.settle();
      EXPECT_TRUE(memory.get() == at_close);
    }
    EXPECT_TRUE(memory.canaries_intact());
    EXPECT_EQ(attempt(kind, memory.address(), 100, 77, local.data()), Denial::none);
    pair_.close(second);
  }
}

}  // namespace
}  // namespace aperture::qp::test
