// Atomics between two queue pairs in two threads over one mapping, as two processes would progress
// them, while a third thread changes the same words with the CPU's own atomics.
#include <atomic>
#include <set>
#include <thread>

#include "qp/one_sided.hpp"

namespace aperture::qp::test {
namespace {

constexpr uint64_t kRounds = kTsan ? 1000 : 8000;

class AtomicThreads : public testing::TestWithParam<LinkKind> {};
INSTANTIATE_TEST_SUITE_P(links, AtomicThreads, kEachLink, link_name);

// Adds 1 to a word of the other side again and again, by turns fetching what was there.
class Adder {
 public:
  Adder(Side& side, uint64_t address, uint64_t key) : side_(side), address_(address), key_(key) {}

  void run(std::atomic<int>& finished) {
    side_.qp->wake_up();
    const uint64_t end = now_ns() + 60'000'000'000;
    while ((ended_ < kRounds || side_.qp->has_pending()) && now_ns() < end) {
      if (posted_ < kRounds && posted_ - ended_ < kInFlight) post();
      side_.poll();
      reap();
    }
    finished.fetch_add(1);
    while (finished.load() < 2 && now_ns() < end) side_.poll();
    for (int i = 0; i < 1000; ++i) side_.poll();
    EXPECT_EQ(ended_, kRounds) << "stuck";
  }
  const std::set<uint64_t>& seen() const { return seen_; }

 private:
  static constexpr uint64_t kInFlight = 40;

  void post() {
    const uint64_t one = 1;
    const iovec operand{const_cast<uint64_t*>(&one), 8};
    const iovec result{&former_[posted_ % kInFlight], 8};
    const RemoteRange range{address_, 8, key_};
    AtomicWr wr;
    wr.kind = posted_ % 2 == 0 ? transport::AtomicKind::base : transport::AtomicKind::fetch;
    wr.len = 8;
    wr.operand = &operand;
    wr.operand_count = 1;
    wr.result = &result;
    wr.result_count = posted_ % 2;
    wr.ranges = &range;
    wr.range_count = 1;
    wr.context = reinterpret_cast<void*>(posted_);
    wr.inject = true;  // it may wait for room
    if (side_.qp->requester().atomic(wr)) ++posted_;
  }
  void reap() {
    for (; !side_.tx_cq.empty(); side_.tx_cq.pop()) {
      ASSERT_FALSE(side_.tx_cq.error_first());
      const auto which = reinterpret_cast<uint64_t>(side_.tx_cq.front().context);
      EXPECT_EQ(which, ended_) << "out of order";
      if (which % 2 == 1) {
        EXPECT_TRUE(seen_.insert(former_[which % kInFlight]).second) << "one value seen twice";
      }
      ++ended_;
    }
  }

  Side& side_;
  const uint64_t address_, key_;
  uint64_t posted_ = 0, ended_ = 0;
  uint64_t former_[kInFlight] = {};
  std::set<uint64_t> seen_;
};

TEST_P(AtomicThreads, lose_nothing_and_see_every_value_once) {
  ASSERT_TRUE(register_for_heavy_barriers());
  Pair pair(GetParam());
  Guarded of_a(64), of_b(64);
  const Rights rights = Rights::remote_read | Rights::remote_write | Rights::remote_atomic;
  const uint64_t key_a = pair.region(*pair.a, of_a, rights).key;
  const uint64_t key_b = pair.region(*pair.b, of_b, rights).key;
  pair.attach();
  Adder first(*pair.a, of_b.address(), key_b), second(*pair.b, of_a.address(), key_a);
  pair.set_apart();
  std::atomic<int> finished{0};
  std::thread owner([&] {
    for (uint64_t i = 0; i < kRounds; ++i) {
      __atomic_fetch_add(reinterpret_cast<uint64_t*>(of_a.data()), 1, __ATOMIC_SEQ_CST);
      __atomic_fetch_add(reinterpret_cast<uint64_t*>(of_b.data()), 1, __ATOMIC_SEQ_CST);
    }
  });
  std::thread other([&] { second.run(finished); });
  first.run(finished);
  other.join();
  owner.join();
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(of_a.data()), 2 * kRounds);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(of_b.data()), 2 * kRounds);
  EXPECT_EQ(first.seen().size(), kRounds / 2);
  EXPECT_EQ(second.seen().size(), kRounds / 2);
  for (Side* side : {pair.a.get(), pair.b.get()}) {
    EXPECT_FALSE(side->qp->broken());
    EXPECT_EQ(side->port.tx.wqes.out(), 0u);
    EXPECT_EQ(side->port.tx.atomics.out(), 0u);
  }
}

}  // namespace
}  // namespace aperture::qp::test
