// The ordering rule: what a queue pair posts takes effect in that order, whatever path each request
// takes (directly, through the ring, claimed there) and however the target behaves
// meanwhile. Random histories are compared with a model; the seed is printed. (IBTA vol. 1, 9.5;
// architecture: "The ordering rule".) With windows: window_queue_test.cpp.
#include <random>

#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

constexpr size_t kTarget = 64 * 1024;   // of the other side's memory, the beginning
constexpr size_t kReceiveAt = 1 << 20;  // and what its receives name
constexpr size_t kLengths[] = {8, 8, 16, 200, 256, 264, 3000, 33'000, 60'000};

uint64_t digest(const std::byte* data) {
  return link::test::digest(data, kTarget);
}

struct Step {
  SendOp op;
  size_t at;
  size_t len;
  std::vector<std::byte> data;  // what is written, or what the read or atomic must bring
  uint64_t digest = 0;          // of the target when its receive completes
};

std::vector<Step> make_history(std::mt19937_64& random, size_t n) {
  constexpr SendOp kOps[] = {SendOp::send,      SendOp::write, SendOp::read, SendOp::write_with_imm,
                             SendOp::fetch_add, SendOp::write, SendOp::read};
  std::vector<Step> steps;
  std::vector<std::byte> model(kTarget);
  for (size_t i = 0; i < n; ++i) {
    Step s;
    s.op = kOps[random() % 7];
    s.len = s.op == SendOp::fetch_add ? 8 : kLengths[random() % 9];
    s.at = random() % ((kTarget - s.len) / 8 + 1) * 8;
    const auto from = model.begin() + static_cast<ptrdiff_t>(s.at);
    if (s.op == SendOp::write || s.op == SendOp::write_with_imm) {
      s.data = pattern(s.len, static_cast<unsigned>(random()));
      std::copy(s.data.begin(), s.data.end(), from);
    } else {
      s.data.assign(from, from + static_cast<ptrdiff_t>(s.len));
    }
    if (s.op == SendOp::fetch_add) {
      uint64_t value;
      std::memcpy(&value, &*from, 8);
      value += i + 1;
      std::memcpy(&*from, &value, 8);
    }
    s.digest = digest(model.data());
    steps.push_back(std::move(s));
  }
  return steps;
}

using Order = OverEachLink;
INSTANTIATE_TEST_SUITE_P(Links, Order, kEachLink, link_name);

class History {
 public:
  History(LinkKind kind, uint64_t seed)
      : random_(seed), p_(kind), steps_(make_history(random_, kSteps)) {
    p_.connect();
    p_.b->recv_cq.arm(false);
    p_.b->events.on_completion = [this] {
      seen_.push_back(digest(p_.b->memory.data()));
      p_.b->recv_cq.arm(false);
    };
  }

  void play() {
    const uint64_t end = now_ns() + 20'000'000'000;
    while (done_ < kSteps) {
      ASSERT_LT(now_ns(), end) << "stuck after " << posted_ << ", " << done_ << " done";
      for (uint64_t burst = random_() % 8; burst > 0 && post(); --burst) {
      }
      for (uint64_t n = random_() % 6; n > 0; --n) p_.a->poll();
      ASSERT_NO_FATAL_FAILURE(reap());
      const auto mood = random_() % 8;
      if (mood == 0) p_.b->qp->fall_asleep(ring::kUnnumbered);
      if (mood == 1) p_.b->qp->wake_up();
      if (mood < 3) (void)p_.b->post_recv(0, kReceiveAt, kTarget);
      for (uint64_t n = mood < 4 ? random_() % 40 : 0; n > 0; --n) p_.b->poll();
      for (; !p_.b->recv_cq.empty(); p_.b->recv_cq.pop()) {
        EXPECT_EQ(p_.b->recv_cq.front().status, WcStatus::success);
      }
    }
    EXPECT_EQ(digest(p_.b->memory.data()), steps_.back().digest);
    size_t next = 0;
    for (size_t i = 0; i < kSteps; ++i) {
      if (steps_[i].op != SendOp::send && steps_[i].op != SendOp::write_with_imm) continue;
      ASSERT_LT(next, seen_.size());
      ASSERT_EQ(seen_[next++], steps_[i].digest) << "message of step " << i;
    }
    EXPECT_EQ(next, seen_.size());
  }

 private:
  static constexpr size_t kSteps = 300;
  static constexpr size_t kOut = 16;

  bool post() {
    if (posted_ == kSteps || posted_ - done_ == kOut) return false;
    const Step& s = steps_[posted_];
    const size_t at = posted_ % kOut * kTarget;  // of our memory
    if (s.op == SendOp::write || s.op == SendOp::write_with_imm) p_.a->fill(at, s.data);
    SendWr wr = Side::work(s.op, posted_, p_.b->address(s.at), p_.b->key());
    wr.compare_add = posted_ + 1;
    if (!p_.a->post(wr, {p_.a->sge(at, s.len)})) return false;
    ++posted_;
    return true;
  }
  void reap() {
    for (; !p_.a->send_cq.empty(); p_.a->send_cq.pop(), ++done_) {
      const Wc& wc = p_.a->send_cq.front();
      ASSERT_EQ(wc.id, done_);
      ASSERT_EQ(wc.status, WcStatus::success) << "step " << done_;
      const Step& s = steps_[done_];
      if (s.op != SendOp::read && s.op != SendOp::fetch_add) continue;
      ASSERT_EQ(p_.a->bytes(done_ % kOut * kTarget, s.len), s.data) << "step " << done_;
    }
  }

  std::mt19937_64 random_;
  Pair p_;
  std::vector<Step> steps_;
  std::vector<uint64_t> seen_;
  size_t posted_ = 0;
  size_t done_ = 0;
};

TEST_P(Order, random_histories_take_effect_as_posted) {
  std::random_device device;
  for (int i = 0; i < 40; ++i) {
    const uint64_t seed = i < 20 ? static_cast<uint64_t>(i) : device();
    SCOPED_TRACE("seed " + std::to_string(seed));
    History(GetParam(), seed).play();
    if (HasFailure()) return;
  }
}

// Each pair of operations, from each mood of the target to each other one.
TEST_P(Order, each_pair_of_operations_over_each_change_of_path) {
  constexpr SendOp kOps[] = {SendOp::send, SendOp::write, SendOp::write_with_imm, SendOp::read,
                             SendOp::fetch_add};
  for (const SendOp first : kOps) {
    for (const SendOp second : kOps) {
      for (unsigned moods = 0; moods < 4; ++moods) {
        for (const size_t n : {size_t{8}, size_t{40'000}}) {
          SCOPED_TRACE(std::to_string(static_cast<int>(first)) + " then " +
                       std::to_string(static_cast<int>(second)) + " " + std::to_string(moods));
          ConnectedPair p(GetParam());
          const auto state = [&](bool asleep) {
            asleep ? p.b->qp->fall_asleep(ring::kUnnumbered) : p.b->qp->wake_up();
          };
          const auto len = [&](SendOp op) { return op == SendOp::fetch_add ? size_t{8} : n; };
          for (uint64_t i = 0; i < 2; ++i) {
            ASSERT_TRUE(p.b->post_recv(i, kReceiveAt + i * kTarget, kTarget));
          }
          p.a->fill(0, pattern(n, 1));
          p.a->fill(kTarget, pattern(n, 2));
          p.b->fill(0, pattern(n, 3));
          state((moods & 1) != 0);
          ASSERT_TRUE(p.a->post(first, 1, 0, len(first), p.b->address(), p.b->key()));
          for (int i = 0; i < 3; ++i) p.a->poll();
          state((moods & 2) != 0);
          ASSERT_TRUE(p.a->post(second, 2, kTarget, len(second), p.b->address(), p.b->key()));
          EXPECT_EQ(p.ended_of(p.a->send_cq, 2), (Ended{{1, success}, {2, success}}));
          const bool wrote = first == SendOp::write || first == SendOp::write_with_imm;
          const bool writes = second == SendOp::write || second == SendOp::write_with_imm;
          const auto after = writes ? pattern(n, 2) : wrote ? pattern(n, 1) : pattern(n, 3);
          EXPECT_EQ(p.b->bytes(0, n), after) << "what was written last is there";
          if (second == SendOp::read || second == SendOp::fetch_add) {
            const auto expected = wrote ? pattern(n, 1) : pattern(n, 3);
            EXPECT_EQ(
                p.a->bytes(kTarget, len(second)),
                std::vector<std::byte>(expected.begin(),
                                       expected.begin() + static_cast<ptrdiff_t>(len(second))));
          }
        }
      }
    }
  }
}

// Of two that write into each other neither is to take the other for away because it is posting.
TEST(BothWays, requests_of_the_peer_are_executed_between_direct_copies_that_are_posted) {
  for (const size_t n : {size_t{4096}, size_t{600'000}}) {  // the fast way of posting, and the slow
    SCOPED_TRACE(n);
    ConnectedPair p(LinkKind::direct);
    p.settle();
    p.b->fill(0, pattern(64, 1));
    ASSERT_TRUE(p.b->post(SendOp::write, 1, 0, 64, p.a->address(kReceiveAt), p.a->key()));
    p.b->qp->fall_asleep(ring::kUnnumbered);
    ASSERT_TRUE(p.a->post(SendOp::write, 2, 0, n, p.b->address(kReceiveAt), p.b->key()));
    EXPECT_EQ(p.a->send_cq.size(), 1u) << "it has gone directly";
    EXPECT_EQ(p.a->bytes(kReceiveAt, 64), pattern(64, 1)) << "and nobody has polled";
  }
}

}  // namespace
}  // namespace aperture::ib::test
