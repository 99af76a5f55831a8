// Two contexts of one process, as two processes would have them: engines, lanes and threads of
// their own, over one mapping that ThreadSanitizer sees from both sides. Memory windows among it.
#include <atomic>
#include <thread>

#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr int kWithWindows = kEverything | IBV_ACCESS_MW_BIND;

// Waits for it and validates it.
void expect_success(const ibv_wc& wc, ibv_wc_opcode opcode) {
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, opcode);
}

// A window of type 2 over all of a memory.
class Window {
 public:
  Window(ibv_pd* pd, const Memory& memory)
      : memory_(memory), window_(ibv_alloc_mw(pd, IBV_MW_TYPE_2)), rkey_(window_->rkey) {}
  ~Window() { EXPECT_EQ(ibv_dealloc_mw(window_), 0); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  uint32_t bind(ibv_qp* qp, ibv_cq* cq) {
    rkey_ = ibv_inc_rkey(rkey_);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_BIND_MW;
    wr.bind_mw.mw = window_;
    wr.bind_mw.rkey = rkey_;
    wr.bind_mw.bind_info = {memory_.mr, memory_.at(), memory_.bytes.size(),
                            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    post(qp, wr);
    expect_success(End::completion_of(cq), IBV_WC_BIND_MW);
    return rkey_;
  }
  void invalidate(ibv_qp* qp, ibv_cq* cq) {
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.invalidate_rkey = rkey_;
    post(qp, wr);
    expect_success(End::completion_of(cq), IBV_WC_LOCAL_INV);
  }

 private:
  static void post(ibv_qp* qp, ibv_send_wr& wr) {
    wr.send_flags = IBV_SEND_SIGNALED;
    ASSERT_EQ(post_wr(qp, wr), 0);
  }

  const Memory& memory_;
  ibv_mw* window_;
  uint32_t rkey_;
};

class Apart : public TwoContexts {};

// Sends `count` messages to its peer and receives as many, the number of each in its bytes.
void talk(const End& end, uint32_t count, uint32_t length) {
  constexpr uint32_t kSlots = 8;
  Memory out(end.pd, size_t{kSlots} * length), in(end.pd, size_t{kSlots} * length);
  uint32_t posted = 0, sent = 0, received = 0, receives = 0;
  for (; receives < kSlots; ++receives) {
    ASSERT_EQ(end.receive(in.sge(receives * length, length), kSlots), 0);
  }
  while (sent < count || received < count) {
    if (posted < count && posted - sent < kSlots && posted < received + kSlots) {
      char* const at = out.bytes.data() + posted % kSlots * length;
      std::memset(at, static_cast<int>('a' + posted % 26), length);
      ASSERT_EQ(end.post(IBV_WR_SEND, out.sge(posted % kSlots * length, length), 1), 0);
      ++posted;
    }
    ibv_wc wc;
    if (ibv_poll_cq(end.cq, 1, &wc) == 0) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    if (wc.opcode == IBV_WC_SEND) {
      ++sent;
      continue;
    }
    const size_t slot = received % kSlots * length;
    ASSERT_EQ(in.text(slot, length), std::string(length, static_cast<char>('a' + received % 26)));
    ++received;
    if (receives < count) {
      ++receives;
      ASSERT_EQ(end.receive(in.sge(static_cast<uint32_t>(slot), length), kSlots), 0);
    }
  }
}

TEST_F(Apart, both_send_and_receive_at_once) {
  End here(here_.context, here_pd_), there(there_.context, there_pd_);
  connect(here.qp, there.qp);
  for (const uint32_t length : {64u, 20'000u}) {
    std::thread other([&] { talk(there, 200, length); });
    talk(here, 200, length);
    other.join();
  }
}

TEST_F(Apart, several_threads_read_write_and_add_to_memory_that_its_owner_leaves_alone) {
  constexpr int kThreads = 3;
  constexpr uint64_t kRounds = 100;
  Memory far(there_pd_, 4096, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      End here(here_.context, here_pd_), there(there_.context, there_pd_);
      connect(here.qp, there.qp);
      Memory near(here_pd_, 256);
      const uint64_t own = 1024 + 128 * t;
      for (uint64_t i = 0; i < kRounds; ++i) {
        std::memset(near.bytes.data(), static_cast<int>('A' + i % 26), 128);
        ASSERT_EQ(here.post(IBV_WR_RDMA_WRITE, near.sge(0, 128), 1, far.at(own), far.mr->rkey), 0);
        ASSERT_EQ(here.post(IBV_WR_RDMA_READ, near.sge(128, 128), 2, far.at(own), far.mr->rkey), 0);
        for (int k = 0; k < 2; ++k) ASSERT_EQ(here.completion().status, IBV_WC_SUCCESS);
        ASSERT_EQ(near.text(0, 128), near.text(128, 128));
        ibv_sge sge = near.sge(0, 8);
        ibv_send_wr wr = send_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, sge);
        wr.wr.atomic = {far.at(), 1, 0, far.mr->rkey};
        ASSERT_EQ(post_wr(here.qp, wr), 0);
        ASSERT_EQ(here.completion().status, IBV_WC_SUCCESS);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  uint64_t sum = 0;
  std::memcpy(&sum, far.bytes.data(), sizeof sum);
  EXPECT_EQ(sum, kThreads * kRounds);
}

// The owner looks at its memory without any other precaution than the completion.
TEST_F(Apart, nothing_lands_once_a_window_is_invalidated) {
  for (int round = 0; round < 20; ++round) {
    End here(here_.context, here_pd_), there(there_.context, there_pd_);
    connect(here.qp, there.qp);
    Memory memory(there_pd_, 4096, '.', kWithWindows);
    Window window(there_pd_, memory);
    const uint32_t rkey = window.bind(there.qp, there.cq);
    std::atomic<int> written{0};
    ibv_wc_status last = IBV_WC_SUCCESS;
    std::thread writer([&] {
      Memory from(here_pd_, 4096);
      while (last == IBV_WC_SUCCESS) {
        std::memset(from.bytes.data(), 'a' + written % 26, 4096);
        last = here.run(IBV_WR_RDMA_WRITE, from.sge(0, 4096), memory.at(), rkey);
        ASSERT_NE(last, IBV_WC_FATAL_ERR);
        ++written;
      }
    });
    while (written < 5 + round) std::this_thread::yield();
    window.invalidate(there.qp, there.cq);
    const std::vector<char> then = memory.bytes;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(memory.bytes, then);
    writer.join();
    EXPECT_EQ(last, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(memory.bytes, then);
  }
}

// Two connections whose messages land in one shared receive queue; each has a window.
class SharedReceives : public Apart {
 protected:
  void SetUp() override {
    Apart::SetUp();
    cq_ = ibv_create_cq(there_.context, 64, nullptr, nullptr, 0);
    ibv_srq_init_attr init{nullptr, {16, 1, 0}};
    srq_ = ibv_create_srq(there_pd_, &init);
    ASSERT_TRUE(cq_ != nullptr && srq_ != nullptr);
    memory_ = std::make_unique<Memory>(there_pd_, 4096, '.', kWithWindows);
    landing_ = std::make_unique<Memory>(there_pd_, 4096);
    from_ = std::make_unique<Memory>(here_pd_, 4096, 'm');
    for (int i = 0; i < 2; ++i) {
      ibv_qp_init_attr attr{};
      attr.send_cq = attr.recv_cq = cq_;
      attr.srq = srq_;
      attr.cap = {16, 0, 1, 0, 0};
      attr.qp_type = IBV_QPT_RC;
      receivers_[i] = ibv_create_qp(there_pd_, &attr);
      ASSERT_NE(receivers_[i], nullptr);
      senders_[i] = std::make_unique<End>(here_.context, here_pd_);
      connect(receivers_[i], senders_[i]->qp);
      windows_[i] = std::make_unique<Window>(there_pd_, *memory_);
      rkeys_[i] = windows_[i]->bind(receivers_[i], cq_);
    }
  }
  void TearDown() override {
    for (int i = 0; i < 2; ++i) {
      windows_[i].reset();
      senders_[i].reset();
      EXPECT_EQ(ibv_destroy_qp(receivers_[i]), 0);
    }
    for (auto* memory : {&memory_, &landing_, &from_}) memory->reset();
    EXPECT_EQ(ibv_destroy_srq(srq_), 0);
    EXPECT_EQ(ibv_destroy_cq(cq_), 0);
    Apart::TearDown();
  }
  void receive(uint64_t id) {
    ibv_sge sge = landing_->sge(0, 4096);
    ibv_recv_wr wr{id, nullptr, &sge, 1}, *bad = nullptr;
    ASSERT_EQ(ibv_post_srq_recv(srq_, &wr, &bad), 0);
  }
  void send_inv(int from, uint32_t rkey, uint32_t length = 100) {
    ibv_sge sge = from_->sge(0, length);
    ibv_send_wr wr = send_wr(IBV_WR_SEND_WITH_INV, sge);
    wr.invalidate_rkey = rkey;
    ASSERT_EQ(post_wr(senders_[from]->qp, wr), 0);
  }
  ibv_wc_status write(int from, uint32_t rkey) {
    return senders_[from]->run(IBV_WR_RDMA_WRITE, from_->sge(0, 8), memory_->at(), rkey);
  }
  void expect_invalidated(int at, uint64_t id, uint32_t rkey, uint32_t length = 100) {
    const ibv_wc wc = End::completion_of(cq_);
    expect_success(wc, IBV_WC_RECV);
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.qp_num, receivers_[at]->qp_num);
    EXPECT_EQ(wc.byte_len, length);
    EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_INV));
    EXPECT_EQ(wc.invalidated_rkey, rkey);
  }

  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  ibv_qp* receivers_[2] = {};
  uint32_t rkeys_[2] = {};
  std::unique_ptr<Memory> memory_, landing_, from_;
  std::unique_ptr<End> senders_[2];
  std::unique_ptr<Window> windows_[2];
};

TEST_F(SharedReceives, bring_the_invalidation_of_each_connection) {
  for (uint64_t id = 0; id < 6; ++id) {
    const int which = static_cast<int>(id % 2);
    EXPECT_EQ(write(which, rkeys_[which]), IBV_WC_SUCCESS);
    const uint32_t length = id < 2 ? 0 : static_cast<uint32_t>(id * 500);
    receive(id);
    send_inv(which, rkeys_[which], length);
    expect_invalidated(which, id, rkeys_[which], length);
    EXPECT_EQ(senders_[which]->completion().status, IBV_WC_SUCCESS);
    rkeys_[which] = windows_[which]->bind(receivers_[which], cq_);
  }
}

TEST_F(SharedReceives, that_come_late_are_invalidated_all_the_same) {
  send_inv(0, rkeys_[0]);
  EXPECT_EQ(senders_[0]->completion(50).wr_id, ~uint64_t{0}) << "nobody has received it";
  receive(7);
  expect_invalidated(0, 7, rkeys_[0]);
  EXPECT_EQ(senders_[0]->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(write(0, rkeys_[0]), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(SharedReceives, of_one_connection_do_not_end_the_window_of_the_other) {
  receive(1);
  receive(2);
  send_inv(0, rkeys_[1]);
  EXPECT_NE(senders_[0]->completion().status, IBV_WC_SUCCESS);
  EXPECT_EQ(write(1, rkeys_[1]), IBV_WC_SUCCESS);
  send_inv(1, rkeys_[1]);
  EXPECT_EQ(senders_[1]->completion().status, IBV_WC_SUCCESS);
  ibv_wc wc = End::completion_of(cq_);
  if (wc.qp_num == receivers_[0]->qp_num) {  // the receive that the refused one had taken
    EXPECT_NE(wc.status, IBV_WC_SUCCESS);
    wc = End::completion_of(cq_);
  }
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.invalidated_rkey, rkeys_[1]);
  EXPECT_EQ(write(1, rkeys_[1]), IBV_WC_REM_ACCESS_ERR);
}

}  // namespace
}  // namespace aperture::test
