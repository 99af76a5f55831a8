// What goes on steadily over verbs costs few heavy barriers: base/steady.hpp. Each party is a child
// of the test, which opens no device itself.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include "base/steady.hpp"
#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr size_t kRegion = 4 << 20;
constexpr int kPatience_ms = 60000;

struct Told {
  uint32_t qpns[kMostPeers];  // for each of the others, in their order
  uint64_t addr;
  uint32_t rkey;
};
struct Plan {
  Doing doing;
  uint32_t size;
  bool in_poll;
  uint32_t peers;
  struct Peer {
    uint32_t qpn, rkey;
    uint64_t addr;
  } others[kMostPeers];
};

template <typename T>
void tell(int fd, const T& what) {
  ASSERT_EQ(::send(fd, &what, sizeof what, MSG_NOSIGNAL), ssize_t{sizeof what});
}
template <typename T>
void hear(int fd, T* what) {
  ASSERT_EQ(::recv(fd, what, sizeof *what, 0), ssize_t{sizeof *what});
}
class Party {
 public:
  Party(int conductor, uint32_t peers) : conductor_(conductor) {
    const int flags = ::fcntl(channel_->fd, F_GETFL);
    EXPECT_EQ(::fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK), 0);
    for (uint32_t i = 0; i < peers; ++i) {
      ends_.push_back(std::make_unique<End>(device_.context, pd_, channel_));
    }
  }
  ~Party() {
    ends_.clear();
    EXPECT_EQ(ibv_destroy_comp_channel(channel_), 0);
    memory_.reset();
    EXPECT_EQ(ibv_dealloc_pd(pd_), 0);
  }
  Party(const Party&) = delete;
  Party& operator=(const Party&) = delete;

  Told told() const {
    Told out{{}, memory_->at(), memory_->mr->rkey};
    for (size_t i = 0; i < ends_.size(); ++i) out.qpns[i] = ends_[i]->qp->qp_num;
    return out;
  }
  void meet(const Plan& plan) {
    plan_ = plan;
    for (uint32_t i = 0; i < plan.peers; ++i) bring_up(ends_[i]->qp, plan.others[i].qpn);
  }
  Counted run() { return SteadyWork(*this, plan_.size).run(plan_.doing); }
  void linger() {
    while (!is_called()) {
      for (int i = 0; i < 64; ++i) (void)take();
    }
  }

  bool is_called() const {
    pollfd readable{conductor_, POLLIN, 0};
    return ::poll(&readable, 1, 0) != 0;
  }
  uint32_t take() { return poll_all().all; }
  bool post_next() {
    const uint32_t peer = next_ % plan_.peers;
    const uint64_t at = uint64_t{next_} * plan_.size % kRegion;
    const Plan::Peer& to = plan_.others[peer];
    const auto opcode = plan_.doing == Doing::writes ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    ++next_;
    const int error =
        ends_[peer]->post(opcode, memory_->sge(at, plan_.size), 0, to.addr + at, to.rkey);
    EXPECT_EQ(error, 0);
    return error == 0;
  }
  void post_receive() { EXPECT_EQ(ends_[0]->receive(memory_->sge(0, 64)), 0); }
  void send(bool last) {
    memory_->bytes[64] = last ? 1 : 0;
    EXPECT_EQ(ends_[0]->post(IBV_WR_SEND, memory_->sge(64, 64), 0, 0, 0,
                             IBV_SEND_SIGNALED | IBV_SEND_INLINE),
              0);
  }
  bool message() {
    while (poll_all().messages == 0) {
      if (plan_.in_poll && sleep()) break;
    }
    return memory_->bytes[0] != 0;
  }

 private:
  // Completions that there were, and how many of them are messages.
  struct Taken {
    uint32_t all = 0, messages = 0;
  };
  Taken poll_all() {
    Taken taken;
    for (const auto& end : ends_) {
      ibv_wc some[kWindow];
      const int n = ibv_poll_cq(end->cq, kWindow, some);
      for (int i = 0; i < n; ++i) {
        EXPECT_EQ(some[i].status, IBV_WC_SUCCESS);
        taken.messages += some[i].opcode == IBV_WC_RECV;
      }
      taken.all += static_cast<uint32_t>(n);
    }
    return taken;
  }
  // True: the message was there before it slept.
  bool sleep() {
    EXPECT_EQ(ibv_req_notify_cq(ends_[0]->cq, 0), 0);
    if (poll_all().messages != 0) return true;
    pollfd readable{channel_->fd, POLLIN, 0};
    EXPECT_EQ(::poll(&readable, 1, kPatience_ms), 1) << "nobody wakes it";
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(channel_, &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
    return false;
  }

  const int conductor_;
  Device device_;
  ibv_pd* const pd_ = ibv_alloc_pd(device_.context);
  ibv_comp_channel* const channel_ = ibv_create_comp_channel(device_.context);
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>(pd_, kRegion);
  std::vector<std::unique_ptr<End>> ends_;
  Plan plan_{};
  uint32_t next_ = 0;
};

// Who stands by is called when the others are done; all are when everybody has counted.
void take_part(int conductor, const SteadyCase& c) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (c.cores != 0) keep_to_cores(c.cores);
  Party party(conductor, c.parties - 1);
  Plan plan;
  bool called = false;
  tell(conductor, party.told());
  hear(conductor, &plan);
  party.meet(plan);
  tell(conductor, true);
  hear(conductor, &called);
  const Counted counted = party.run();
  EXPECT_NE(registrations.load(), 0u) << "then barriers would not be seen, either";
  if (stands_by(plan.doing)) hear(conductor, &called);
  tell(conductor, counted);
  party.linger();
}

struct Place {
  pid_t pid = -1;
  int fd = -1;
};

Place start(const SteadyCase& c) {
  int sockets[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    take_part(sockets[1], c);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(sockets[1]);
  return {child, sockets[0]};
}

// Of two parties a < b, b is the (b - 1)th of a's others, and a the ath of b's.
uint32_t place_among_others(uint32_t of, uint32_t whose) {
  return of < whose ? of : of - 1;
}

void introduce(const SteadyCase& c, const std::vector<Place>& parties) {
  std::vector<Told> told(c.parties);
  for (uint32_t i = 0; i < c.parties; ++i) hear(parties[i].fd, &told[i]);
  for (uint32_t i = 0; i < c.parties; ++i) {
    Plan plan{i == 0 ? c.first : c.others, c.size, c.in_poll, c.parties - 1, {}};
    for (uint32_t other = 0; other < c.parties; ++other) {
      if (other == i) continue;
      plan.others[place_among_others(other, i)] = {told[other].qpns[place_among_others(i, other)],
                                                   told[other].rkey, told[other].addr};
    }
    tell(parties[i].fd, plan);
  }
  bool there = false;
  for (const Place& party : parties) hear(party.fd, &there);
  for (const Place& party : parties) tell(party.fd, true);
}

class Steady : public ::testing::TestWithParam<SteadyCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Steady, kSteadyCases,
                         [](const auto& one) { return std::string(one.param.name); });

void work(const SteadyCase& c, SecondOfAll& all) {
  std::vector<Place> parties;
  for (uint32_t i = 0; i < c.parties; ++i) parties.push_back(start(c));
  ASSERT_NO_FATAL_FAILURE(introduce(c, parties));
  for (uint32_t i = 0; i < c.parties; ++i) {
    if (i != 0 && stands_by(c.others)) tell(parties[i].fd, true);
    Counted counted;
    ASSERT_NO_FATAL_FAILURE(hear(parties[i].fd, &counted));
    judge(i, counted, all);
  }
  for (const Place& party : parties) tell(party.fd, true);
  for (const Place& party : parties) {
    int status = -1;
    EXPECT_EQ(::waitpid(party.pid, &status, 0), party.pid);
    EXPECT_EQ(status, 0);
    ::close(party.fd);
  }
}

TEST_P(Steady, work_costs_few_heavy_barriers) {
  ::alarm(60);
  expect_few_barriers(GetParam(), [] {
    SecondOfAll all;
    work(GetParam(), all);
    return all;
  });
  ::alarm(0);
}

}  // namespace
}  // namespace aperture::test
