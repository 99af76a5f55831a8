// Several threads with one device: one queue pair, one completion queue, objects that come and go,
// and a process that forks.
#include <sys/wait.h>

#include <atomic>
#include <functional>
#include <thread>

#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr int kThreads = 4;

class Threads : public Verbs {
 protected:
  // Runs `post(t)` and a poller of the first completion queue in kThreads threads each, until there
  // are that many completions with the ids from 0 on, each once.
  void expect_each_once(size_t completions, const std::function<void(int)>& post);
};

// Polls the completion queue and counts what it finds, until all are in.
void poll_until(ibv_cq* cq, std::vector<std::atomic<int>>& seen, std::atomic<size_t>& found) {
  ibv_wc wc[8];
  while (found < seen.size()) {
    const int count = ibv_poll_cq(cq, 8, wc);
    ASSERT_GE(count, 0);
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(wc[i].status, IBV_WC_SUCCESS);
      ASSERT_LT(wc[i].wr_id, seen.size());
      ++seen[wc[i].wr_id];
      ++found;
    }
    if (count == 0) std::this_thread::yield();
  }
}

void Threads::expect_each_once(size_t completions, const std::function<void(int)>& post) {
  std::vector<std::atomic<int>> seen(completions);
  std::atomic<size_t> found{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { post(t); });
    threads.emplace_back([&] { poll_until(here_->cq, seen, found); });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& times : seen) {
    EXPECT_EQ(times, 1);
  }
}

TEST_F(Threads, post_to_one_queue_pair_and_poll_one_completion_queue) {
  constexpr size_t kEach = 1000;
  Memory from(pd_, kThreads * 8), to(pd_, kThreads * 8);
  expect_each_once(kThreads * kEach, [&](int t) {
    const ibv_sge sge = from.sge(t * 8, 8);
    for (size_t i = 0; i < kEach; ++i) {
      while (here_->post(IBV_WR_RDMA_WRITE, sge, t * kEach + i, to.at(t * 8), to.mr->rkey) != 0) {
        std::this_thread::yield();  // full: the pollers make room
      }
    }
  });
  EXPECT_EQ(to.text(0, kThreads * 8), from.text(0, kThreads * 8));
}

TEST_F(Threads, batches_of_several_threads_are_not_mixed) {
  constexpr size_t kEach = 300;
  Memory to(pd_, 64);
  expect_each_once(kThreads * kEach, [&](int t) {
    ibv_qp_ex* ex = here_->ex();
    std::string text(32, static_cast<char>('a' + t));
    for (size_t i = 0; i < kEach; ++i) {
      do {
        ibv_wr_start(ex);
        for (int half = 0; half < 2; ++half) {
          ex->wr_id = t * kEach + i;
          ex->wr_flags = half == 1 ? IBV_SEND_SIGNALED : 0;
          ibv_wr_rdma_write(ex, to.mr->rkey, to.at(half * 32));
          ibv_wr_set_inline_data(ex, text.data(), text.size());
        }
      } while (ibv_wr_complete(ex) != 0);
    }
  });
  // the last batch wrote both halves
  EXPECT_EQ(to.text(0, 32), to.text(32, 32));
  EXPECT_EQ(to.text(0, 32), std::string(32, to.bytes[0]));
}

void make_and_destroy(ibv_context* context) {
  ibv_pd* pd = ibv_alloc_pd(context);
  ASSERT_NE(pd, nullptr);
  {
    Memory memory(pd, 4096);
    End one(context, pd), other(context, pd);
    connect(one.qp, other.qp);
    ibv_mw* window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    ASSERT_NE(window, nullptr);
    EXPECT_EQ(one.run(IBV_WR_RDMA_WRITE, memory.sge(0, 8), memory.at(64), memory.mr->rkey),
              IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_dealloc_mw(window), 0);
  }
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

TEST_F(Threads, make_and_destroy_objects_while_others_work) {
  std::atomic<bool> stop{false};
  std::thread working([&] {
    Memory from(pd_, 8), to(pd_, 8);
    while (!stop) {
      EXPECT_EQ(here_->run(IBV_WR_RDMA_WRITE, from.sge(0, 8), to.at(), to.mr->rkey),
                IBV_WC_SUCCESS);
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) make_and_destroy(device_.context);
    });
  }
  for (auto& thread : threads) thread.join();
  stop = true;
  working.join();
}

// Either a bind comes before ibv_rereg_mr, which refuses then, or it meets the region as it is now.
TEST_F(Threads, bind_no_window_to_what_another_one_registers_anew) {
  constexpr int kRounds = 100;
  constexpr size_t kSize = 4096;
  Memory region(pd_, kSize, '.', kEverything | IBV_ACCESS_MW_BIND);
  std::vector<char> elsewhere(kSize);
  const auto move_to = [&](char* to) {
    errno = 0;
    return ibv_rereg_mr(region.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, to, kSize, 0);
  };
  int both = 0;
  for (int round = 0; round < kRounds; ++round) {
    ibv_mw* window = ibv_alloc_mw(pd_, IBV_MW_TYPE_1);
    ASSERT_NE(window, nullptr);
    std::atomic<bool> begun{false};
    std::thread binder([&] {
      ibv_mw_bind bind{};
      bind.send_flags = IBV_SEND_SIGNALED;
      bind.bind_info = {region.mr, region.at(), 64, IBV_ACCESS_REMOTE_READ};
      begun = true;
      for (int i = 0; i < 50 * (round % 20); ++i) (void)begun.load();  // at different times
      ASSERT_EQ(ibv_bind_mw(here_->qp, window, &bind), 0);
    });
    while (!begun) {
    }
    const bool moved = move_to(elsewhere.data()) == 0;
    if (!moved) {
      EXPECT_EQ(errno, EBUSY);
    }
    binder.join();
    const bool bound = here_->completion().status == IBV_WC_SUCCESS;
    both += moved && bound ? 1 : 0;
    ASSERT_EQ(ibv_dealloc_mw(window), 0);
    if (moved) {
      ASSERT_EQ(move_to(region.bytes.data()), 0);
    }
    if (bound) continue;
    ibv_qp_attr attr{};  // a bind that fails brings its queue pair into the error state
    ASSERT_EQ(ibv_modify_qp(here_->qp, &attr, IBV_QP_STATE), 0);
    bring_up(here_->qp, there_->qp->qp_num);
  }
  EXPECT_EQ(both, 0) << "of " << kRounds;
}

TEST_F(Threads, a_forked_child_may_become_another_program) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::execl("/proc/self/exe", "again", "--gtest_filter=Threads.batches_*", nullptr);
    ::_exit(127);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace aperture::test
