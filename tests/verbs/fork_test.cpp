// Processes that fork: what the parent had open stays with it, and the child opens the device anew
// and talks with its parent, with a sibling and with itself.
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "base/forked.hpp"
#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

// One side of a conversation between two processes, and what it tells the other.
struct Side {
  Side(int its_fd, ibv_context* context, ibv_pd* pd, char fill)
      : fd(its_fd), memory(pd, 64, fill), end(context, pd) {}
  struct Card {
    uint32_t qpn, rkey;
    uint64_t addr;
  };
  bool tell(const void* bytes, size_t size) const {
    return ::send(fd, bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
  }
  bool hear(void* bytes, size_t size) const {
    return ::recv(fd, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
  }
  // Both sides are here.
  void meet() const {
    char byte = 'm';
    ASSERT_TRUE(tell(&byte, 1));
    ASSERT_TRUE(hear(&byte, 1));
  }
  int fd;
  Memory memory;
  End end;
};

// Both sides call it: each sends the other 8 of its letters, writes 8 into its memory and reads 8.
void talk(int fd, ibv_context* context, ibv_pd* pd, char ours, char theirs) {
  Side side(fd, context, pd, ours);
  ASSERT_NE(side.end.qp, nullptr);
  const Side::Card card{side.end.qp->qp_num, side.memory.mr->rkey, side.memory.at()};
  Side::Card peer{};
  ASSERT_TRUE(side.tell(&card, sizeof card) && side.hear(&peer, sizeof peer));
  EXPECT_NE(peer.qpn, card.qpn);
  EXPECT_NE(peer.rkey, card.rkey);
  bring_up(side.end.qp, peer.qpn);
  ASSERT_EQ(side.end.receive(side.memory.sge(32, 8), 1), 0);
  side.meet();
  ASSERT_EQ(side.end.post(IBV_WR_SEND, side.memory.sge(0, 8), 2), 0);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(side.end.completion().status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(side.memory.text(32, 8), std::string(8, theirs));
  EXPECT_EQ(side.end.run(IBV_WR_RDMA_WRITE, side.memory.sge(0, 8), peer.addr + 48, peer.rkey),
            IBV_WC_SUCCESS);
  EXPECT_EQ(side.end.run(IBV_WR_RDMA_READ, side.memory.sge(16, 8), peer.addr, peer.rkey),
            IBV_WC_SUCCESS);
  EXPECT_EQ(side.memory.text(16, 8), std::string(8, theirs));
  side.meet();
  EXPECT_EQ(side.memory.text(48, 8), std::string(8, theirs));
}

// A forked child with one end of a pair of sockets; it must find nothing wrong.
class Child {
 public:
  template <typename Body>
  explicit Child(Body body) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
    pid_ = test::fork_beside_threads();
    EXPECT_GE(pid_, 0);
    if (pid_ == 0) {
      ::alarm(50);
      ::close(ends_[0]);
      body(ends_[1]);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    ::close(ends_[1]);
  }
  ~Child() {
    ::close(ends_[0]);
    int status = -1;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  int fd() const { return ends_[0]; }

 private:
  int ends_[2] = {-1, -1};
  pid_t pid_ = -1;
};

struct OpenedAnew {
  OpenedAnew() : pd(ibv_alloc_pd(device.context)) { EXPECT_NE(pd, nullptr); }
  ~OpenedAnew() { EXPECT_EQ(ibv_dealloc_pd(pd), 0); }
  Device device;
  ibv_pd* pd;
};

void open_and_talk(int fd, char ours, char theirs) {
  OpenedAnew own;
  talk(fd, own.device.context, own.pd, ours, theirs);
}

// It talks with itself, through two queue pairs.
void open_and_talk_alone() {
  OpenedAnew own;
  Memory from(own.pd, 8, 's'), to(own.pd, 8);
  End one(own.device.context, own.pd), other(own.device.context, own.pd);
  connect(one.qp, other.qp);
  EXPECT_EQ(one.run(IBV_WR_RDMA_WRITE, from.sge(0, 8), to.at(), to.mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(to.text(0, 8), "ssssssss");
}

class Fork : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    expect_undisturbed();
  }
  void TearDown() override {
    expect_undisturbed();
    Verbs::TearDown();
  }
  void expect_undisturbed() {
    Memory from(pd_, 8, 'p'), to(pd_, 8);
    ASSERT_EQ(here_->run(IBV_WR_RDMA_WRITE, from.sge(0, 8), to.at(), to.mr->rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(to.text(0, 8), "pppppppp");
  }
  // In a child: nothing can be done with what it has inherited, and giving it up does no harm.
  void expect_turned_away() {
    EXPECT_EQ(refusal_of(ibv_alloc_pd(device_.context)), EOPNOTSUPP);
    char bytes[8];
    EXPECT_EQ(refusal_of(ibv_reg_mr(pd_, bytes, sizeof bytes, 0)), EOPNOTSUPP);
    EXPECT_EQ(refusal_of(ibv_create_cq(device_.context, 8, nullptr, nullptr, 0)), EOPNOTSUPP);
    ibv_sge sge{reinterpret_cast<uint64_t>(bytes), 8, 1};
    EXPECT_EQ(here_->post(IBV_WR_SEND, sge), EOPNOTSUPP);
    EXPECT_EQ(here_->receive(sge), EOPNOTSUPP);
    ibv_wc wc;
    EXPECT_LT(ibv_poll_cq(here_->cq, 1, &wc), 0);
    EXPECT_EQ(ibv_req_notify_cq(here_->cq, 0), EOPNOTSUPP);
    ibv_wr_start(here_->ex());
    ibv_wr_send(here_->ex());
    EXPECT_EQ(ibv_wr_complete(here_->ex()), EOPNOTSUPP);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    EXPECT_EQ(ibv_modify_qp(here_->qp, &attr, IBV_QP_STATE), EOPNOTSUPP);
    EXPECT_EQ(ibv_destroy_qp(there_->qp), 0);
  }
};

TEST_F(Fork, a_child_opens_the_device_anew_and_talks_with_its_parent) {
  const Child child([&](int fd) {
    expect_turned_away();
    open_and_talk(fd, 'c', 'p');
    expect_turned_away();
  });
  talk(child.fd(), device_.context, pd_, 'p', 'c');
}

// Its bytes are not there in a child, and are the parent's as before when the child has gone.
TEST_F(Fork, device_memory_of_the_parent_is_out_of_reach) {
  ibv_alloc_dm_attr attr{.length = 64, .log_align_req = 0, .comp_mask = 0};
  ibv_dm* dm = ibv_alloc_dm(device_.context, &attr);
  ASSERT_NE(dm, nullptr);
  ibv_mr* mr = ibv_reg_dm_mr(pd_, dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(mr, nullptr);
  char bytes[8] = "of_here";
  ASSERT_EQ(ibv_memcpy_to_dm(dm, 8, bytes, 8), 0);
  {
    const Child child([&](int) {
      char other[8] = "another";
      EXPECT_EQ(ibv_memcpy_to_dm(dm, 8, other, 8), EOPNOTSUPP);
      EXPECT_EQ(ibv_memcpy_from_dm(other, dm, 8, 8), EOPNOTSUPP);
      EXPECT_STREQ(other, "another");
      EXPECT_EQ(refusal_of(ibv_alloc_dm(device_.context, &attr)), EOPNOTSUPP);
      EXPECT_EQ(refusal_of(ibv_reg_dm_mr(pd_, dm, 0, 64, IBV_ACCESS_ZERO_BASED)), EOPNOTSUPP);
      EXPECT_EQ(ibv_dereg_mr(mr), 0);
      EXPECT_EQ(ibv_free_dm(dm), 0);
      OpenedAnew own;
      ibv_dm* mine = ibv_alloc_dm(own.device.context, &attr);
      ASSERT_NE(mine, nullptr);
      EXPECT_EQ(ibv_memcpy_to_dm(mine, 8, other, 8), 0);
      EXPECT_EQ(ibv_free_dm(mine), 0);
    });
  }
  char back[8] = {};
  EXPECT_EQ(ibv_memcpy_from_dm(back, dm, 8, 8), 0);
  EXPECT_STREQ(back, "of_here");
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(Fork, the_parents_queues_are_none_of_the_childs) {
  const Child child([&](int) {
    OpenedAnew own;
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = here_->cq;  // inherited
    attr.cap = {1, 1, 1, 1, 0};
    attr.qp_type = IBV_QPT_RC;
    EXPECT_NE(refusal_of(ibv_create_qp(own.pd, &attr)), 0);
    const ibv_context* inherited = device_.context;
    EXPECT_NE(own.device.context->device, inherited->device);
    EXPECT_STREQ(ibv_get_device_name(own.device.context->device), "aperture0");
    EXPECT_EQ(ibv_get_device_guid(own.device.context->device),
              ibv_get_device_guid(inherited->device));
    // a device is not an object of the parent's: the one of its list can be opened as well
    ibv_context* again = ibv_open_device(inherited->device);
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(ibv_close_device(again), 0);
  });
}

TEST_F(Fork, two_children_talk_with_each_other) {
  int between[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, between), 0);
  {
    const Child one([&](int) { open_and_talk(between[0], 'a', 'b'); });
    const Child other([&](int) { open_and_talk(between[1], 'b', 'a'); });
  }
  ::close(between[0]);
  ::close(between[1]);
}

TEST_F(Fork, twenty_children_in_turn_open_the_device_and_talk_with_their_parent) {
  for (int i = 0; i < 20; ++i) {
    const Child child([](int fd) { open_and_talk(fd, 'c', 'p'); });
    talk(child.fd(), device_.context, pd_, 'p', 'c');
  }
}

TEST_F(Fork, a_grandchild_opens_the_device_anew_and_talks_with_both) {
  const Child child([&](int fd) {
    OpenedAnew own;
    talk(fd, own.device.context, own.pd, 'c', 'p');
    const Child grandchild([&](int to_child) {
      expect_turned_away();
      EXPECT_EQ(refusal_of(ibv_alloc_pd(own.device.context)), EOPNOTSUPP);
      open_and_talk(to_child, 'g', 'c');
      open_and_talk(fd, 'g', 'p');
    });
    talk(grandchild.fd(), own.device.context, own.pd, 'c', 'g');
  });
  talk(child.fd(), device_.context, pd_, 'p', 'c');
  talk(child.fd(), device_.context, pd_, 'p', 'g');
}

TEST(ForkAfterClosing, a_child_opens_the_device_that_its_parent_had_open_and_closed) {
  ::alarm(60);
  open_and_talk_alone();
  {
    const Child child([](int) { open_and_talk_alone(); });
  }
  open_and_talk_alone();
}

TEST_F(Fork, keys_of_a_child_are_not_those_that_its_parent_gives_out_next) {
  constexpr size_t kKeys = 64;
  const auto draw = [](ibv_pd* pd, std::set<uint32_t>& keys) {
    char bytes[8];
    for (size_t i = 0; i < kKeys; ++i) {
      ibv_mr* mr = ibv_reg_mr(pd, bytes, sizeof bytes, 0);
      ASSERT_NE(mr, nullptr);
      keys.insert(mr->rkey >> 8);  // the number; the rest is a tag
      EXPECT_EQ(ibv_dereg_mr(mr), 0);
    }
  };
  std::set<uint32_t> ours, theirs;
  {
    const Child child([&](int fd) {
      OpenedAnew own;
      draw(own.pd, theirs);
      for (const uint32_t key : theirs) ::send(fd, &key, sizeof key, MSG_NOSIGNAL);
    });
    draw(pd_, ours);
    uint32_t key;
    while (::recv(child.fd(), &key, sizeof key, MSG_WAITALL) == sizeof key) theirs.insert(key);
  }
  ASSERT_GT(theirs.size(), kKeys / 2);
  std::vector<uint32_t> both;
  std::set_intersection(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                        std::back_inserter(both));
  EXPECT_LT(both.size(), 4U);  // of 16 million, drawn at random
}

// Threads of the parent's are anywhere, with our locks held, when one of them forks.
TEST_F(Fork, a_child_of_a_process_with_busy_threads_opens_the_device_anew) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer's own locks may be held when the process is forked";
#endif
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int t = 0; t < 3; ++t) {
    busy.emplace_back([&] {
      while (!stop) open_and_talk_alone();
    });
  }
  for (int i = 0; i < 20; ++i) {
    const Child child([](int) { open_and_talk_alone(); });
  }
  stop = true;
  for (auto& thread : busy) thread.join();
}

}  // namespace
}  // namespace aperture::test
