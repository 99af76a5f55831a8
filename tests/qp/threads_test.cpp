// Two queue pairs in two threads over one mapping, as two processes would progress them: everything
// at once, in both directions. Under ThreadSanitizer the direct link is left out: it does not see
// what the kernel copies.
#include <atomic>
#include <thread>

#include "qp/one_sided.hpp"

namespace aperture::qp::test {
namespace {

constexpr uint64_t kRounds = kTsan ? 400 : 4000;
const size_t kSizes[] = {8, 8, 8, 100, 256, 300, 5000, 40000, 200000};

class Threads : public testing::TestWithParam<LinkKind> {};
INSTANTIATE_TEST_SUITE_P(links, Threads, kEachLink, link_name);

// What one thread does: sends, writes to and reads from its own part of the other side's memory,
// and stops polling now and then.
class Actor {
 public:
  Actor(Side& side, Guarded& remote, uint64_t key, unsigned seed)
      : side_(side), remote_(remote), key_(key), seed_(seed) {}

  void run(std::atomic<int>& finished) {
    side_.qp->wake_up();
    uint64_t next = 0;
    const uint64_t end = now_ns() + 60'000'000'000;
    while (now_ns() < end) {
      if (next < kRounds && post(next) && ++next % 100 == 50) nap(next);
      side_.poll();
      reap();
      if (next == kRounds && !side_.qp->has_pending() && outstanding_ == 0 &&
          side_.sink.messages.size() >= sends_of_one_side() && side_.sink.all_done()) {
        break;
      }
    }
    // the other side may still need our polls
    finished.fetch_add(1);
    while (finished.load() < 2 && now_ns() < end) side_.poll();
    for (int i = 0; i < 1000; ++i) side_.poll();
    EXPECT_LT(now_ns(), end) << "stuck at " << next << ", " << outstanding_ << " outstanding, "
                             << side_.sink.messages.size() << " received";
  }
  static uint64_t sends_of_one_side() { return (kRounds + 2) / 3; }
  static size_t size_of(uint64_t i) { return kSizes[i % 9]; }

 private:
  bool post(uint64_t i) {
    if (outstanding_ > 30) return false;
    const size_t size = size_of(i);
    const size_t slot = i % 32;
    if (buffers_.size() < 32) buffers_.resize(32);
    if (busy_[slot]) return false;
    std::vector<std::byte>& buffer = buffers_[slot];
    Status s;
    if (i % 3 == 0) {
      buffer = pattern(size, static_cast<unsigned>(i));
      const iovec iov{buffer.data(), size};
      SendWr wr = send_of(iov, slot);
      wr.tag = i;
      s = side_.qp->requester().send(wr);
    } else {
      buffer = pattern(size, seed_);
      const iovec iov{buffer.data(), size};
      s = side_.rma(i % 3 == 1 ? WqeKind::write : WqeKind::read, iov,
                    {remote_.address() + (i % 3 == 1 ? 0 : 200000), size, key_}, slot);
    }
    if (!s) return false;
    busy_[slot] = true;
    is_read_[slot] = i % 3 == 2;
    ++outstanding_;
    return true;
  }
  void reap() {
    for (; !side_.tx_cq.empty(); side_.tx_cq.pop()) {
      EXPECT_FALSE(side_.tx_cq.error_first());
      const auto slot = reinterpret_cast<size_t>(side_.tx_cq.front().context);
      busy_[slot] = false;
      if (is_read_[slot]) {
        const auto expected = pattern(buffers_[slot].size(), 77);
        EXPECT_TRUE(buffers_[slot] == expected);
      }
      --outstanding_;
    }
  }
  void nap(uint64_t i) {
    const bool says_so = i % 200 == 50;
    if (says_so) side_.qp->fall_asleep(ring::kUnnumbered);
    const uint64_t until = now_ns() + 30'000;
    while (now_ns() < until) cpu_relax();
    if (says_so) side_.qp->wake_up();
  }

  Side& side_;
  Guarded& remote_;
  const uint64_t key_;
  const unsigned seed_;
  uint64_t outstanding_ = 0;
  std::vector<std::vector<std::byte>> buffers_;
  bool busy_[32] = {};
  bool is_read_[32] = {};
};

TEST_P(Threads, everything_at_once_in_both_directions) {
  if (kTsan && GetParam() == LinkKind::direct) GTEST_SKIP() << "copies by the kernel";
  ASSERT_TRUE(register_for_heavy_barriers());
  Pair pair(GetParam());
  Guarded of_a(400000), of_b(400000);
  const auto readable = pattern(200000, 77);
  for (Guarded* g : {&of_a, &of_b}) {
    std::copy(readable.begin(), readable.end(), g->data() + 200000);
  }
  const auto rights = Rights::remote_read | Rights::remote_write;
  const auto key_a = pair.region(*pair.a, of_a, rights).key;
  const auto key_b = pair.region(*pair.b, of_b, rights).key;
  pair.attach();
  Actor first(*pair.a, of_b, key_b, 5);
  Actor second(*pair.b, of_a, key_a, 6);
  pair.set_apart();
  std::atomic<int> finished{0};
  std::thread other([&] { second.run(finished); });
  first.run(finished);
  other.join();
  for (Side* side : {pair.a.get(), pair.b.get()}) {
    EXPECT_FALSE(side->qp->broken());
    ASSERT_EQ(side->sink.messages.size(), Actor::sends_of_one_side());
    uint64_t i = 0;
    for (const Received& r : side->sink.messages) {
      EXPECT_EQ(r.tag, i);
      EXPECT_TRUE(r.payload == pattern(Actor::size_of(i), static_cast<unsigned>(i))) << i;
      i += 3;
    }
    EXPECT_EQ(side->port.tx.wqes.out(), 0u);
  }
  const auto written_b = pattern(200000, 5);
  const auto written_a = pattern(200000, 6);
  EXPECT_TRUE(same_bytes(of_b.data(), written_b.data(), 40000));
  EXPECT_TRUE(same_bytes(of_a.data(), written_a.data(), 40000));
  EXPECT_TRUE(of_a.canaries_intact() && of_b.canaries_intact());
}

}  // namespace
}  // namespace aperture::qp::test
