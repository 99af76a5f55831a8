// The ordering rule: with strict order, what the initiator posts takes effect in that order,
// whatever path each operation takes and however the target behaves meanwhile. Random histories are
// compared with a model; the seed is printed. And claims: each request is executed by exactly one
// side.
#include <atomic>
#include <random>
#include <thread>

#include "qp/one_sided.hpp"

namespace aperture::qp::test {
namespace {

using link::test::digest;

constexpr size_t kMemory = 64 * 1024;

struct History {
  struct Step {
    int kind;  // 0 send, 1 write, 2 read, 3 write with immediate data
    size_t at;
    size_t len;
    std::vector<std::byte> data;   // what is written, or what the read must bring
    std::unique_ptr<Guarded> got;  // of a read
  };
  std::vector<Step> steps;
  std::vector<uint64_t> digests;  // of the memory when the nth send or notice arrives
};

History make_history(std::mt19937_64& random, size_t n) {
  History h;
  std::vector<std::byte> model(kMemory);
  const size_t lengths[] = {8, 8, 16, 200, 256, 264, 3000, 33000, 60000};
  for (size_t i = 0; i < n; ++i) {
    History::Step s;
    s.kind = static_cast<int>(random() % 4);
    s.len = lengths[random() % 9];
    s.at = random() % ((kMemory - s.len) / 8 + 1) * 8;
    if (s.kind == 1 || s.kind == 3) {
      s.data = pattern(s.len, static_cast<unsigned>(random()));
      std::copy(s.data.begin(), s.data.end(), model.begin() + static_cast<std::ptrdiff_t>(s.at));
    } else if (s.kind == 2) {
      s.data.assign(model.begin() + static_cast<std::ptrdiff_t>(s.at),
                    model.begin() + static_cast<std::ptrdiff_t>(s.at + s.len));
      s.got = std::make_unique<Guarded>(s.len);
    }
    if (s.kind == 0 || s.kind == 3) h.digests.push_back(digest(model.data(), kMemory));
    h.steps.push_back(std::move(s));
  }
  return h;
}

class Order : public testing::TestWithParam<LinkKind> {};
INSTANTIATE_TEST_SUITE_P(links, Order, kEachLink, link_name);

// Looks at the memory whenever a message arrives.
class Watcher final : public MessageSink {
 public:
  Watcher(Guarded& memory, std::vector<uint64_t>& seen) : memory_(memory), seen_(seen) {}
  bool on_message(Qp&, const Arrival&) noexcept override {
    seen_.push_back(digest(memory_.data(), kMemory));
    return true;
  }
  void on_received(Qp&, void*, Errc) noexcept override {}

 private:
  Guarded& memory_;
  std::vector<uint64_t>& seen_;
};

void run_history(LinkKind link, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  Pair pair(link, {.cq_entries = 4096, .strict = true});
  pair.attach();
  Guarded memory(kMemory);
  const auto region = pair.region(*pair.b, memory, Rights::remote_read | Rights::remote_write);
  std::vector<uint64_t> seen;
  Watcher watcher(memory, seen);
  pair.b->port.sink = &watcher;
  History h = make_history(random, 300);
  size_t posted = 0;
  const uint64_t end = now_ns() + 20'000'000'000;
  while (posted < h.steps.size() || pair.a->qp->has_pending()) {
    ASSERT_LT(now_ns(), end) << "stuck after " << posted;
    for (uint64_t burst = random() % 8; burst > 0 && posted < h.steps.size(); --burst) {
      History::Step& s = h.steps[posted];
      const iovec iov{s.kind == 2 ? s.got->data() : s.data.data(), s.kind == 0 ? 0 : s.len};
      const RemoteRange range{memory.address() + s.at, s.len, region.key};
      Status status;
      if (s.kind == 0) {
        status = pair.a->send(iov, posted);
      } else {
        RmaWr wr = rma_of(iov, range, posted);
        wr.has_imm = s.kind == 3;
        if (s.kind != 2 && random() % 2 == 0 && pair.a->write_line(wr)) {
          ++posted;
          continue;
        }
        status = pair.a->qp->requester().rma(s.kind == 2 ? WqeKind::read : WqeKind::write, wr);
      }
      if (!status) break;
      ++posted;
    }
    for (uint64_t n = random() % 6; n > 0; --n) pair.a->poll();
    const auto mood = random() % 8;
    if (mood == 0) pair.b->qp->fall_asleep(ring::kUnnumbered);
    if (mood == 1) pair.b->qp->wake_up();
    if (mood < 4) {
      for (uint64_t n = random() % 40; n > 0; --n) {
        const size_t notices = pair.b->rx_cq.size();
        pair.b->poll();
        ASSERT_LE(pair.b->rx_cq.size(), notices + 64);
      }
    }
  }
  pair.settle();
  EXPECT_FALSE(pair.a->qp->broken());
  EXPECT_FALSE(pair.b->qp->broken());
  for (size_t i = 0; i < h.steps.size(); ++i) {
    History::Step& s = h.steps[i];
    EXPECT_TRUE(s.kind != 2 || s.got->get() == s.data) << "read " << i;
  }
  for (; !pair.a->tx_cq.empty(); pair.a->tx_cq.pop()) EXPECT_FALSE(pair.a->tx_cq.error_first());
  // each send saw exactly what was posted before it
  size_t next = 0;
  for (size_t i = 0, told = 0; i < h.steps.size(); ++i) {
    if (h.steps[i].kind == 3) ++told;
    if (h.steps[i].kind != 0) continue;
    ASSERT_LT(next, seen.size());
    EXPECT_EQ(seen[next], h.digests[next + told]) << "send " << i;
    ++next;
  }
  EXPECT_EQ(next, seen.size());
}

TEST_P(Order, random_histories_take_effect_as_posted) {
  std::random_device device;
  for (int i = 0; i < 60; ++i) {
    run_history(GetParam(), i < 30 ? static_cast<uint64_t>(i) : device());
    if (HasFailure()) return;
  }
}

TEST_P(Order, fenced_operation_waits_for_everything_before_it) {
  Pair pair(GetParam());  // not strict
  pair.attach();
  Guarded memory(kMemory);
  const auto region = pair.region(*pair.b, memory, Rights::remote_read | Rights::remote_write);
  for (const size_t len : {8u, 3000u, 60000u}) {
    for (const bool asleep : {false, true}) {
      const auto data = pattern(len, static_cast<unsigned>(len + asleep));
      asleep ? pair.b->qp->fall_asleep(ring::kUnnumbered) : pair.b->qp->wake_up();
      const iovec from = iov_of(data);
      Guarded result(len);
      const iovec to{result.data(), len};
      const RemoteRange range{memory.address(), len, region.key};
      RmaWr write = rma_of(from, range, 1);
      write.has_imm = true;  // through the ring
      RmaWr read = rma_of(to, range, 2);
      read.fence = true;
      ASSERT_TRUE(pair.a->qp->requester().rma(WqeKind::write, write));
      ASSERT_TRUE(pair.a->qp->requester().rma(WqeKind::read, read));
      ASSERT_TRUE(pair.until([&] { return pair.a->tx_cq.size() == 2; }));
      EXPECT_EQ(take_contexts(pair.a->tx_cq), (std::vector<uint64_t>{1, 2}));
      EXPECT_TRUE(result.get() == data);
    }
  }
}

// Of two that write into each other neither is to take the other for away because it is posting.
TEST(BothWays, requests_of_the_peer_are_executed_between_direct_copies_that_are_posted) {
  Pair pair(LinkKind::direct);
  pair.attach();
  Guarded at_a(64), at_b(64);
  const auto of_a = pair.region(*pair.a, at_a, Rights::remote_write);
  const auto of_b = pair.region(*pair.b, at_b, Rights::remote_write);
  auto from_a = pattern(64, 1), from_b = pattern(64, 2);
  ASSERT_TRUE(pair.b->write(iov_of(from_b), {at_a.address(), 64, of_a.key}, 1));
  pair.b->qp->fall_asleep(ring::kUnnumbered);
  ASSERT_TRUE(pair.a->write(iov_of(from_a), {at_b.address(), 64, of_b.key}, 2));
  EXPECT_EQ(at_b.get(), from_a) << "it has gone directly";
  EXPECT_EQ(at_a.get(), from_b) << "and nobody has polled";
}

// --- the claim word ---

using transport::ClaimVerdict;

class Claim : public testing::Test {
 protected:
  ClaimVerdict verdict(uint64_t pos) { return transport::claim_verdict(words, pos, false); }

  const std::unique_ptr<ring::ChannelWords> on_heap_ = std::make_unique<ring::ChannelWords>();
  ring::ChannelWords& words = *on_heap_;  // on a cache line of their own
  transport::ClaimSide claims;
};

TEST_F(Claim, idle_owner_loses_the_request_and_steps_over_it) {
  ASSERT_TRUE(claims.begin(words, 0, 0));
  EXPECT_EQ(verdict(0), ClaimVerdict::wait);
  claims.finish(words, 0);
  EXPECT_EQ(verdict(0), ClaimVerdict::skip);
  EXPECT_EQ(verdict(1), ClaimVerdict::execute);
}

TEST_F(Claim, owner_that_has_begun_keeps_the_request) {
  EXPECT_EQ(verdict(5), ClaimVerdict::execute);
  EXPECT_FALSE(claims.begin(words, 5, 5));
  EXPECT_FALSE(claims.begin(words, 5, 7));
  EXPECT_EQ(verdict(5), ClaimVerdict::execute);
  words.consumed.store(6);
  EXPECT_FALSE(claims.begin(words, 5, 7));
}

TEST_F(Claim, request_given_back_is_executed_and_older_ones_stay_done) {
  ASSERT_TRUE(claims.begin(words, 3, 3));
  claims.finish(words, 3);
  ASSERT_TRUE(claims.begin(words, 7, 7));
  EXPECT_EQ(verdict(3), ClaimVerdict::wait);  // whether it is of the run is not known there
  claims.retract(words);
  EXPECT_EQ(verdict(3), ClaimVerdict::skip);
  EXPECT_EQ(verdict(7), ClaimVerdict::execute);
}

TEST_F(Claim, owner_waits_at_each_of_a_run_and_steps_over_those_that_were_done) {
  ASSERT_TRUE(claims.begin(words, 2, 5));
  for (uint64_t pos = 2; pos <= 5; ++pos) EXPECT_EQ(verdict(pos), ClaimVerdict::wait) << pos;
  EXPECT_EQ(verdict(6), ClaimVerdict::execute);
  claims.finish(words, 3);
  EXPECT_EQ(verdict(2), ClaimVerdict::skip);
  EXPECT_EQ(verdict(3), ClaimVerdict::skip);
  EXPECT_EQ(verdict(4), ClaimVerdict::execute);
  EXPECT_FALSE(claims.begin(words, 4, 5));
}

// Owner and initiator fight over each of many requests: one of them does it, and the other sees
// what was done. Of a run that was claimed some are given back now and then.
TEST_F(Claim, each_request_is_executed_by_exactly_one) {
  ASSERT_TRUE(register_for_heavy_barriers());
  constexpr uint64_t kRequests = 50'000;
  std::vector<uint32_t> done(kRequests, 0);  // not atomic: the protocol is what orders it
  uint64_t claimed = 0;
  std::thread owner([&] {
    std::mt19937 random(1);
    for (uint64_t pos = 0; pos < kRequests;) {
      switch (verdict(pos)) {
        case ClaimVerdict::execute: ++done[pos]; break;
        case ClaimVerdict::skip: break;
        case ClaimVerdict::wait: std::this_thread::yield(); continue;
      }
      ++pos;
      words.consumed.store(pos, std::memory_order_release);
      if (random() % 4 == 0) {
        for (int i = static_cast<int>(random() % 2000); i > 0; --i) cpu_relax();
      }
    }
  });
  uint64_t done_through = 0;
  std::mt19937 random(2);
  while (done_through < kRequests) {
    const uint64_t last = std::min(done_through + random() % 4, kRequests - 1);
    const uint64_t consumed = words.consumed.load(std::memory_order_acquire);
    if (consumed > done_through) {
      done_through = consumed;
    } else if (claims.begin(words, done_through, last)) {
      const uint64_t end = done_through + random() % (last - done_through + 2);
      if (end == done_through) {
        claims.retract(words);
        continue;
      }
      for (; done_through < end; ++done_through, ++claimed) ++done[done_through];
      claims.finish(words, end - 1);
    }
    if (done_through > words.consumed.load(std::memory_order_acquire) + 100) {
      std::this_thread::yield();
    }
  }
  owner.join();
  for (uint64_t i = 0; i < kRequests; ++i) ASSERT_EQ(done[i], 1u) << i;
  RecordProperty("claimed", static_cast<int>(claimed));
}

}  // namespace
}  // namespace aperture::qp::test
