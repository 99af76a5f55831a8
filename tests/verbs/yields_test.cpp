// Who polls a completion queue gives the core to the peer that it waits for: two processes on one
// core that both poll take turns of microseconds. And who polls alone loses next to nothing by
// that. Yields and polls in vain are counted, and no time is checked.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include "base/counted_calls.hpp"
#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr uint32_t kRounds = 2000, kSettling = 200;
// Of one round: some hundred is what a wait of microseconds takes, and a tick is 30,000 and more.
constexpr uint64_t kMostPollsInVain = 5000;

struct Seen {
  uint64_t polls_in_vain = 0;
  uint64_t long_rounds = 0;  // with more than kMostPollsInVain of them
  Yields yields;
  uint64_t yields_inside = 0;  // ibv_get_cq_event
  int64_t ns = 0;
};

class Poller {
 public:
  explicit Poller(int peer, bool waits = false) : peer_(peer) {
    if (waits) channel_ = ibv_create_comp_channel(device_.context);
    end_ = std::make_unique<End>(device_.context, pd_, channel_);
    const uint32_t ours = end_->qp->qp_num;
    uint32_t theirs = 0;
    tell(ours);
    hear(&theirs);
    bring_up(end_->qp, theirs);
    EXPECT_EQ(end_->receive(memory_->sge(0, 8)), 0);
    meet();
  }
  ~Poller() {
    end_.reset();
    if (channel_ != nullptr) {
      EXPECT_EQ(ibv_destroy_comp_channel(channel_), 0);
    }
    memory_.reset();
    EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
  }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  Seen play(bool begins) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (round == kSettling) begin_to_count();
      if (begins) send();
      const uint64_t before = polls_in_vain_;
      while (!has_message()) {
        if (channel_ != nullptr && wait()) break;
      }
      long_rounds_ += polls_in_vain_ - before > kMostPollsInVain;
      EXPECT_EQ(end_->receive(memory_->sge(0, 8)), 0);
      if (!begins) send();
    }
    return seen();
  }
  Seen poll_in_vain(int64_t ns) {
    begin_to_count();
    while (monotonic_ns() - begun_ns_ < ns) (void)has_message();
    return seen();
  }
  // Both are as far.
  void meet() const {
    uint32_t word = 0;
    tell(uint32_t{1});
    hear(&word);
  }
  template <typename T>
  void tell(const T& what) const {
    EXPECT_EQ(::send(peer_, &what, sizeof what, MSG_NOSIGNAL), ssize_t{sizeof what});
  }
  template <typename T>
  void hear(T* what) const {
    EXPECT_EQ(::recv(peer_, what, sizeof *what, 0), ssize_t{sizeof *what});
  }

 private:
  void send() const {
    EXPECT_EQ(
        end_->post(IBV_WR_SEND, memory_->sge(8, 8), 0, 0, 0, IBV_SEND_SIGNALED | IBV_SEND_INLINE),
        0);
  }
  // False: the queue is empty.
  bool has_message() {
    ibv_wc wc;
    int n = 0;
    while ((n = ibv_poll_cq(end_->cq, 1, &wc)) == 1) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode == IBV_WC_RECV) return true;
    }
    EXPECT_EQ(n, 0);
    ++polls_in_vain_;
    return false;
  }
  // Inside ibv_get_cq_event, whose yields are counted. True: the message was there before.
  bool wait() {
    EXPECT_EQ(ibv_req_notify_cq(end_->cq, 0), 0);
    if (has_message()) return true;
    const uint64_t before = yields.taken + yields.vain;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    EXPECT_EQ(ibv_get_cq_event(channel_, &cq, &context), 0);
    ibv_ack_cq_events(cq, 1);
    yields_inside_ += yields.taken + yields.vain - before;
    return false;
  }
  void begin_to_count() {
    yields = {};
    yields_inside_ = 0;
    polls_in_vain_ = long_rounds_ = 0;
    begun_ns_ = monotonic_ns();
  }
  Seen seen() const {
    return {polls_in_vain_, long_rounds_, yields, yields_inside_, monotonic_ns() - begun_ns_};
  }

  const int peer_;
  Device device_;
  ibv_pd* const pd_ = ibv_alloc_pd(device_.context);
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>(pd_, 16);
  ibv_comp_channel* channel_ = nullptr;
  std::unique_ptr<End> end_;
  uint64_t polls_in_vain_ = 0;
  uint64_t long_rounds_ = 0;
  uint64_t yields_inside_ = 0;
  int64_t begun_ns_ = 0;
};

// Two processes, each with one end; neither has a device before.
template <typename First, typename Second>
void run_two(First&& first, Second&& second) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const auto start = [&](int which, auto&& play) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(50);
    ::close(sockets[1 - which]);
    play(sockets[which]);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  };
  const pid_t children[] = {start(0, first), start(1, second)};
  ::close(sockets[0]);
  ::close(sockets[1]);
  for (const pid_t child : children) {
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(Pollers, on_one_core_give_it_to_each_other) {
  ::alarm(60);
  const auto play = [](bool begins) {
    return [begins](int peer) {
      keep_to_cores(1);
      Poller poller(peer);
      const Seen seen = poller.play(begins);
      constexpr uint64_t kCounted = kRounds - kSettling;
      const uint64_t all = seen.yields.taken + seen.yields.vain;
      std::printf("%.2f yields and %.0f polls in vain a round\n",
                  static_cast<double>(all) / kCounted,
                  static_cast<double>(seen.polls_in_vain) / kCounted);
      std::fflush(stdout);  // the child ends by _exit
      EXPECT_GE(all, kCounted / 2);
      // not on average: tests/doors/yields_test.cpp says why
      EXPECT_LE(seen.long_rounds, kCounted / 10);
      poller.meet();
    };
  };
  run_two(play(true), play(false));
  ::alarm(0);
}

// Who looks for an event for some microseconds, before it sleeps, does so for the peer's sake.
TEST(Waiters, on_one_core_give_it_to_each_other_before_they_sleep) {
  ::alarm(60);
  const auto play = [](bool begins) {
    return [begins](int peer) {
      keep_to_cores(1);
      Poller poller(peer, true);
      if (begins) poller.poll_in_vain(20'000'000);  // it learns that nobody else wants the core
      const Seen seen = poller.play(begins);
      constexpr uint64_t kCounted = kRounds - kSettling;
      std::printf("%.2f yields inside ibv_get_cq_event a round of %lld us\n",
                  static_cast<double>(seen.yields_inside) / kCounted,
                  static_cast<long long>(seen.ns / 1000) / int64_t{kCounted});
      std::fflush(stdout);  // the child ends by _exit
      EXPECT_GE(seen.yields_inside, kCounted / 2);
      poller.meet();
    };
  };
  run_two(play(true), play(false));
  ::alarm(0);
}

// One yield in the longest patience, 64 us, where nobody takes the core; each time that somebody
// does, one more may come sooner.
TEST(Pollers, alone_yield_seldom) {
  ::alarm(60);
  const auto polls = [](int peer) {
    Poller poller(peer);
    const Seen seen = poller.poll_in_vain(300'000'000);
    std::printf("%llu yields that nobody took and %llu others in %lld us\n",
                static_cast<unsigned long long>(seen.yields.vain),
                static_cast<unsigned long long>(seen.yields.taken),
                static_cast<long long>(seen.ns / 1000));
    std::fflush(stdout);  // the child ends by _exit
    EXPECT_GE(seen.yields.vain + seen.yields.taken, 1u);
    EXPECT_LE(seen.yields.vain, static_cast<uint64_t>(seen.ns) / 50'000 + seen.yields.taken + 8);
    poller.meet();
  };
  run_two(polls, [](int peer) { Poller(peer).meet(); });
  ::alarm(0);
}

}  // namespace
}  // namespace aperture::test
