// Many queue pairs of one process, all connected and all used, and none afterwards: each carries
// its messages, and those that are made later use the memory of those that are gone. (It stays with
// the two ends of a process pair as long as both are there.)
//
// APERTURE_QUEUE_PAIRS: how many (default 1,000; ./dev soak: 4,000).
#include <cstdlib>

#include "base/clock.hpp"
#include "base/held_memory.hpp"
#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr uint32_t kShallow = 4;

class ManyQueuePairs : public testing::Test {
 protected:
  static size_t asked() {
    const char* const text = std::getenv("APERTURE_QUEUE_PAIRS");
    return text != nullptr ? std::strtoull(text, nullptr, 10) / 2 * 2 : 1000;
  }
  void SetUp() override {
    ASSERT_NE(device_.context, nullptr) << "run it under `aperture run`";
    pd_ = ibv_alloc_pd(device_.context);
    cq_ = ibv_create_cq(device_.context, 65536, nullptr, nullptr, 0);
    ASSERT_TRUE(pd_ != nullptr && cq_ != nullptr);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_destroy_cq(cq_), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
  }
  ibv_qp* make() {
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq_;
    attr.cap = {kShallow, kShallow, 1, 1, 0};
    attr.qp_type = IBV_QPT_RC;
    return ibv_create_qp(pd_, &attr);
  }
  // Each one sends to its partner, which is its neighbour in the list.
  void exchange(const std::vector<ibv_qp*>& qps) {
    Memory words(pd_, qps.size() * 2 * sizeof(uint64_t));
    auto* const word = reinterpret_cast<uint64_t*>(words.bytes.data());
    for (uint64_t i = 0; i < qps.size(); ++i) {
      word[2 * i] = i + 1;
      word[2 * i + 1] = 0;
      ibv_sge sge = words.sge((2 * i + 1) * sizeof(uint64_t), sizeof(uint64_t));
      ibv_recv_wr wr{i, nullptr, &sge, 1};
      ibv_recv_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_recv(qps[i], &wr, &bad), 0);
    }
    for (uint64_t i = 0; i < qps.size(); ++i) {
      ibv_sge sge = words.sge(2 * i * sizeof(uint64_t), sizeof(uint64_t));
      ASSERT_EQ(post_wr(qps[i], send_wr(IBV_WR_SEND, sge, i)), 0);
    }
    for (size_t i = 0; i < 2 * qps.size(); ++i) {
      const ibv_wc wc = End::completion_of(cq_, 30000);
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << i << " completions came before";
    }
    for (uint64_t i = 0; i < qps.size(); ++i) ASSERT_EQ(word[2 * (i ^ 1) + 1], i + 1);
  }
  void go_round(std::vector<ibv_qp*>& qps, HeldMemory& full) {
    const uint64_t began = now_ns();
    for (ibv_qp*& qp : qps) {
      qp = make();
      ASSERT_NE(qp, nullptr) << errno;
    }
    for (size_t i = 0; i < qps.size(); i += 2) {
      connect(qps[i], qps[i + 1]);
      if (HasFatalFailure()) return;
    }
    const uint64_t connected = now_ns();
    exchange(qps);
    if (HasFatalFailure()) return;
    const uint64_t first = now_ns();
    exchange(qps);
    const uint64_t second = now_ns();
    full = held_memory();
    for (ibv_qp* qp : qps) ASSERT_EQ(ibv_destroy_qp(qp), 0);
    std::printf(
        "%zu queue pairs: made in %lu ms, first messages %lu ms, next %lu ms, gone %lu ms\n",
        qps.size(), (connected - began) / 1000000, (first - connected) / 1000000,
        (second - first) / 1000000, (now_ns() - second) / 1000000);
  }

  Device device_;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
};

TEST_F(ManyQueuePairs, carry_their_messages_and_are_made_anew_in_the_same_memory) {
  std::vector<ibv_qp*> qps(asked());
  std::vector<ibv_qp*> few(qps.begin(), qps.begin() + 20);
  HeldMemory full;
  go_round(few, full);
  const HeldMemory before = held_memory();
  [[maybe_unused]] double first = 0;
  for (int round = 0; round < 3 && !HasFatalFailure(); ++round) {
    go_round(qps, full);
    const double each =
        (static_cast<double>(full.resident) - static_cast<double>(before.resident)) / 1024 /
        static_cast<double>(qps.size());
    std::printf("%.1f KiB a queue pair\n", each);
    if (round == 0) first = each;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed
    EXPECT_LE(each, 1.5 * first + 4) << "lanes that are gone are not used again";
#endif
  }
}

}  // namespace
}  // namespace aperture::test
