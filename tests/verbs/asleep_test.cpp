// What one thread posts while another one sleeps on a completion channel of the same context, with
// the engine put to sleep: what is left to be done goes on, and whoever sleeps hears of its end.
// Over shared memory, and over TCP (APERTURE_LINK=tcp).
#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <thread>

#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr size_t kBytes = 128 * 1024;  // four times what one look takes
constexpr int kWithWindows = kEverything | IBV_ACCESS_MW_BIND;

using Milliseconds = std::chrono::milliseconds;

void fall_asleep(Milliseconds while_ms = Milliseconds(100)) {
  std::this_thread::sleep_for(while_ms);
}

// A thread that waits for so many completions of a queue, by their events: inside ibv_get_cq_event,
// or for a descriptor that does not block.
class Sleeper {
 public:
  Sleeper(ibv_comp_channel* channel, ibv_cq* cq, int completions = 1)
      : channel_(channel), cq_(cq), left_(completions) {
    thread_ = std::thread([this] { run(); });
  }
  ~Sleeper() { thread_.join(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  bool sleeps() const { return !done_; }
  void poll() const { (void)ibv_poll_cq(cq_, 0, nullptr); }

 private:
  void run() {
    const bool blocks = (::fcntl(channel_->fd, F_GETFL) & O_NONBLOCK) == 0;
    while (true) {
      EXPECT_EQ(ibv_req_notify_cq(cq_, 0), 0);
      ibv_wc wc{};
      while (left_ != 0 && ibv_poll_cq(cq_, 1, &wc) != 0) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        --left_;
      }
      if (left_ == 0) break;
      if (take_event()) continue;
      EXPECT_FALSE(blocks);
      pollfd readable{channel_->fd, POLLIN, 0};
      (void)::poll(&readable, 1, -1);
      while (take_event()) {
      }
    }
    done_ = true;
  }
  bool take_event() {
    ibv_cq* cq = nullptr;
    void* its_context = nullptr;
    if (ibv_get_cq_event(channel_, &cq, &its_context) != 0) return false;
    ibv_ack_cq_events(cq, 1);
    return true;
  }

  ibv_comp_channel* channel_;
  ibv_cq* cq_;
  int left_;  // of the thread
  std::atomic<bool> done_{false};
  std::thread thread_;
};

// They are woken, and nobody polls but they. Who sleeps for ever is woken then, by polls, so that
// the test ends.
void expect_woken(std::initializer_list<const Sleeper*> sleepers) {
  const auto any_sleeps = [&] {
    return std::any_of(sleepers.begin(), sleepers.end(), [](auto* one) { return one->sleeps(); });
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (any_sleeps() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(Milliseconds(1));
  }
  for (const Sleeper* one : sleepers) EXPECT_FALSE(one->sleeps()) << "it sleeps for ever";
  while (any_sleeps()) {
    for (const Sleeper* one : sleepers) one->poll();
  }
}

// A queue pair with a channel of its own, and memory.
struct Half {
  Half(ibv_context* context, ibv_pd* pd, bool blocks, bool shares)
      : channel(ibv_create_comp_channel(context)),
        cq(ibv_create_cq(context, 64, nullptr, channel, 0)),
        memory(pd, kBytes, '.', kWithWindows) {
    if (!blocks) {
      EXPECT_EQ(::fcntl(channel->fd, F_SETFL, ::fcntl(channel->fd, F_GETFL) | O_NONBLOCK), 0);
    }
    ibv_srq_init_attr shared{nullptr, {16, 1, 0}};
    if (shares) srq = ibv_create_srq(pd, &shared);
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq;
    attr.srq = srq;
    attr.cap = {16, 16, 1, 1, 0};
    attr.qp_type = IBV_QPT_RC;
    qp = ibv_create_qp(pd, &attr);
    EXPECT_NE(qp, nullptr);
  }
  ~Half() {
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    if (srq != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(srq), 0);
    }
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
  }
  Half(const Half&) = delete;
  Half& operator=(const Half&) = delete;

  int receive(uint32_t length = kBytes) {
    ibv_sge sge = memory.sge(0, length);
    ibv_recv_wr wr{1, nullptr, &sge, 1}, *bad = nullptr;
    return srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
  }
  int send(uint32_t length = kBytes, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge sge = memory.sge(0, length);
    ibv_send_wr wr = send_wr(IBV_WR_SEND, sge);
    wr.send_flags = flags;
    return post_wr(qp, wr);
  }
  ibv_wc_status next_end() { return End::completion_of(cq).status; }
  void go_to(ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    ASSERT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
  }

  ibv_comp_channel* channel;
  ibv_cq* cq;
  Memory memory;
  ibv_srq* srq = nullptr;
  ibv_qp* qp = nullptr;
};

struct How {
  bool blocks;
  bool shares;
};

class Asleep : public TwoContexts, public testing::WithParamInterface<How> {
 protected:
  void SetUp() override {
    TwoContexts::SetUp();
    const auto [blocks, shares] = GetParam();
    here = std::make_unique<Half>(here_.context, here_pd_, blocks, shares);
    there = std::make_unique<Half>(there_.context, there_pd_, blocks, shares);
    connect(here->qp, there->qp);
    // the connection is made by the first message
    ASSERT_EQ(here->receive(8), 0);
    ASSERT_EQ(there->send(8), 0);
    ASSERT_EQ(here->next_end(), IBV_WC_SUCCESS);
    ASSERT_EQ(there->next_end(), IBV_WC_SUCCESS);
  }
  void TearDown() override {
    here.reset();
    there.reset();
    TwoContexts::TearDown();
  }

  std::unique_ptr<Half> here, there;
};

INSTANTIATE_TEST_SUITE_P(each, Asleep,
                         testing::Values(How{true, false}, How{false, false}, How{true, true},
                                         How{false, true}),
                         [](const auto& which) {
                           return std::string(which.param.blocks ? "inside" : "on_descriptor") +
                                  (which.param.shares ? "_shared" : "");
                         });

TEST_P(Asleep, a_receive_that_a_message_in_pieces_waits_for_takes_all_of_it) {
  there->memory.bytes.assign(kBytes, 'm');
  const Sleeper receives(here->channel, here->cq), sends(there->channel, there->cq);
  fall_asleep();
  ASSERT_EQ(there->send(), 0);
  fall_asleep();
  ASSERT_EQ(here->receive(), 0);
  expect_woken({&receives, &sends});
}

TEST_P(Asleep, receives_that_messages_wait_for_take_them_and_their_senders_are_told) {
  const Sleeper receives(here->channel, here->cq, 3), sends(there->channel, there->cq, 3);
  fall_asleep();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(there->send(8), 0);
  fall_asleep();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(here->receive(8), 0);
  expect_woken({&receives, &sends});
}

// The end of the send is nothing to anybody until the bind is posted, which completes after it.
TEST_P(Asleep, a_bind_is_told_of_when_what_is_before_it_has_ended) {
  ibv_mw* window = ibv_alloc_mw(there_pd_, IBV_MW_TYPE_1);
  ASSERT_NE(window, nullptr);
  {
    const Sleeper binds(there->channel, there->cq);
    ASSERT_EQ(there->send(8, 0), 0);
    fall_asleep(Milliseconds(2500));  // it is told to have no receive, and expects one no more
    ibv_mw_bind bind{};
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info = {there->memory.mr, there->memory.at(), 8, IBV_ACCESS_REMOTE_READ};
    ASSERT_EQ(ibv_bind_mw(there->qp, window, &bind), 0);
    EXPECT_TRUE(binds.sleeps());
    fall_asleep();
    ASSERT_EQ(here->receive(8), 0);
    expect_woken({&binds});
  }
  EXPECT_EQ(ibv_dealloc_mw(window), 0);
}

TEST_P(Asleep, what_is_queued_before_the_queue_pair_may_send_again_is_sent) {
  there->go_to(IBV_QPS_SQD);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(here->receive(8), 0);
    ASSERT_EQ(there->send(8), 0);
  }
  const Sleeper receives(here->channel, here->cq, 3), sends(there->channel, there->cq, 3);
  fall_asleep();
  ASSERT_TRUE(receives.sleeps() && sends.sleeps());
  there->go_to(IBV_QPS_RTS);
  expect_woken({&receives, &sends});
}

// More than is copied directly at one go.
TEST_P(Asleep, a_long_write_that_is_queued_before_the_queue_pair_may_send_again_is_done) {
  constexpr uint32_t kLong = 40 << 20;
  const Memory from(there_pd_, kLong, 'l'), to(here_pd_, kLong);
  there->go_to(IBV_QPS_SQD);
  ibv_sge sge = from.sge(0, kLong);
  ibv_send_wr wr = send_wr(IBV_WR_RDMA_WRITE, sge);
  wr.wr.rdma = {to.at(), to.mr->rkey};
  ASSERT_EQ(post_wr(there->qp, wr), 0);
  {
    const Sleeper writes(there->channel, there->cq);
    fall_asleep();
    ASSERT_TRUE(writes.sleeps());
    there->go_to(IBV_QPS_RTS);
    expect_woken({&writes});
  }
  // under the lock under which it was written, which ThreadSanitizer sees, as it does not see what
  // lies between: memory that is mapped twice, or a socket
  ibv_wc none;
  EXPECT_EQ(ibv_poll_cq(here->cq, 1, &none), 0);
  EXPECT_EQ(to.bytes, from.bytes);
}

}  // namespace
}  // namespace aperture::test
