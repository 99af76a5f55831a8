// Two connected queue pairs in two threads over one mapping, as two processes would progress them:
// everything at once, in both directions. Under ThreadSanitizer the direct link is left out: it
// does not see what the kernel copies.
#include <atomic>
#include <thread>

#include "base/barrier.hpp"
#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

constexpr uint64_t kRounds = kTsan ? 400 : 4000;
constexpr size_t kSizes[] = {8, 8, 8, 100, 256, 300, 5000, 40'000, 200'000};
constexpr size_t kSlot = 256 * 1024;  // a round's own piece of memory, of 8
constexpr size_t kReceives = 8;
// parts of the memory: what is sent and read into, what is received, what the peer writes and reads
constexpr size_t kReceived = 8 * kSlot, kWritten = 16 * kSlot, kRead = 17 * kSlot;
constexpr size_t kCounter = 18 * kSlot;
constexpr size_t kAll = 18 * kSlot + 64;

size_t size_of(uint64_t i) {
  return kSizes[i % 9];
}
SendOp op_of(uint64_t i) {
  constexpr SendOp kOps[] = {SendOp::send, SendOp::write, SendOp::read, SendOp::fetch_add};
  return kOps[i % 4];
}

// What one thread does: sends, writes to, reads from and counts in the other side's memory, and
// stops polling now and then.
class Actor {
 public:
  Actor(Side& side, const Side& peer) : side_(side), peer_(peer) {}

  void run(std::atomic<int>& finished) {
    const uint64_t end = now_ns() + 60'000'000'000;
    uint64_t next = 0;
    while (now_ns() < end) {
      while (receives_ < kRounds / 4 && receives_ < taken_ + kReceives && post_receive()) {
      }
      if (next < kRounds && next < done_ + 8 && post(next) && ++next % 100 == 50) nap(next);
      side_.poll();
      reap();
      if (done_ == kRounds && taken_ == kRounds / 4) break;
    }
    finished.fetch_add(1);  // the other side may still need our polls
    while (finished.load() < 2 && now_ns() < end) side_.poll();
    for (int i = 0; i < 1000; ++i) side_.poll();
    EXPECT_LT(now_ns(), end) << "stuck at " << next << ", " << done_ << " done, " << taken_
                             << " received";
  }

 private:
  bool post_receive() {
    if (!side_.post_recv(receives_, kReceived + receives_ % kReceives * kSlot, kSlot)) return false;
    ++receives_;
    return true;
  }
  bool post(uint64_t i) {
    const size_t at = i % 8 * kSlot;
    const SendOp op = op_of(i);
    const size_t n = op == SendOp::fetch_add ? 8 : size_of(i);
    if (op == SendOp::send) side_.fill(at, pattern(n, static_cast<unsigned>(i)));
    if (op == SendOp::write) side_.fill(at, pattern(n, 5));
    const size_t to = op == SendOp::write ? kWritten : op == SendOp::read ? kRead : kCounter;
    SendWr wr = Side::work(op, i, peer_.address(to), peer_.key());
    wr.compare_add = 1;
    return side_.post(wr, {side_.sge(at, n)}).ok();
  }
  void reap() {
    for (; !side_.send_cq.empty(); side_.send_cq.pop(), ++done_) {
      const Wc& wc = side_.send_cq.front();
      EXPECT_EQ(wc.id, done_);
      EXPECT_EQ(wc.status, WcStatus::success);
      if (op_of(wc.id) == SendOp::read) {
        EXPECT_EQ(side_.bytes(wc.id % 8 * kSlot, size_of(wc.id)), pattern(size_of(wc.id), 77));
      }
      if (op_of(wc.id) == SendOp::fetch_add) {
        uint64_t former = 0;
        std::memcpy(&former, side_.memory.data() + wc.id % 8 * kSlot, 8);
        EXPECT_EQ(former, counted_++);
      }
    }
    for (; !side_.recv_cq.empty(); side_.recv_cq.pop(), ++taken_) {
      const Wc& wc = side_.recv_cq.front();
      EXPECT_EQ(wc.id, taken_);
      EXPECT_EQ(wc.status, WcStatus::success);
      const uint64_t i = taken_ * 4;
      ASSERT_EQ(wc.byte_len, size_of(i));
      EXPECT_EQ(side_.bytes(kReceived + taken_ % kReceives * kSlot, size_of(i)),
                pattern(size_of(i), static_cast<unsigned>(i)));
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
  const Side& peer_;
  uint64_t done_ = 0;      // of ours
  uint64_t counted_ = 0;   // atomics of ours
  uint64_t receives_ = 0;  // posted
  uint64_t taken_ = 0;     // and completed
};

using Threads = OverEachLink;
INSTANTIATE_TEST_SUITE_P(Links, Threads, kEachLink, link_name);

TEST_P(Threads, everything_at_once_in_both_directions) {
  if (kTsan && GetParam() == LinkKind::direct) GTEST_SKIP() << "copies by the kernel";
  ASSERT_TRUE(register_for_heavy_barriers());
  Pair p(GetParam(), {}, {}, kAll);
  for (Side* s : {p.a.get(), p.b.get()}) s->fill(kRead, pattern(200'000, 77));
  p.connect();
  Actor first(*p.a, *p.b);
  Actor second(*p.b, *p.a);
  p.lanes.set_apart();
  std::atomic<int> finished{0};
  std::thread other([&] { second.run(finished); });
  first.run(finished);
  other.join();
  for (Side* s : {p.a.get(), p.b.get()}) {
    EXPECT_EQ(s->qp->state(), QpState::rts);
    EXPECT_TRUE(s->events.async.empty());
    EXPECT_FALSE(s->qp->has_pending());
    EXPECT_EQ(s->bytes(kWritten, 40'000), pattern(40'000, 5));
    uint64_t count = 0;
    std::memcpy(&count, s->memory.data() + kCounter, 8);
    EXPECT_EQ(count, kRounds / 4);
  }
}

}  // namespace
}  // namespace aperture::ib::test
