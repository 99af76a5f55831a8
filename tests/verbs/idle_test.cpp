// Who waits on a completion channel sleeps: no thread wakes up until something comes, whether it
// waits in poll(2) or inside ibv_get_cq_event, and however many peers there are.
//
// APERTURE_IDLE_PEERS: how many the many are (default 100; ./dev soak: 1000).
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "base/wakeups.hpp"
#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

constexpr auto kSettling = std::chrono::seconds(2);  // the watch over dead peers rests by then
constexpr auto kLong = std::chrono::seconds(10);
constexpr int kPatience_ms = 60000;

uint32_t many_peers() {
  const char* text = std::getenv("APERTURE_IDLE_PEERS");
  return text != nullptr ? static_cast<uint32_t>(std::atoi(text)) : 100;
}

void tell(int fd, uint32_t word) {
  ASSERT_EQ(::send(fd, &word, sizeof word, MSG_NOSIGNAL), ssize_t{sizeof word});
}
void hear(int fd, uint32_t* word) {
  ASSERT_EQ(::recv(fd, word, sizeof *word, 0), ssize_t{sizeof *word});
}

// Queue pairs of one side, each connected to one of the other process.
struct Side {
  Side(int fd, uint32_t count, ibv_comp_channel* (*channel_of)(Side&, uint32_t)) : socket(fd) {
    for (ibv_comp_channel*& one : channels) one = ibv_create_comp_channel(device.context);
    for (uint32_t i = 0; i < count; ++i) {
      ends.push_back(std::make_unique<End>(device.context, pd, channel_of(*this, i)));
      tell(socket, ends.back()->qp->qp_num);
      uint32_t peer = 0;
      hear(socket, &peer);
      bring_up(ends.back()->qp, peer);
    }
    meet();
  }
  ~Side() {
    ends.clear();
    for (ibv_comp_channel* one : channels) EXPECT_EQ(ibv_destroy_comp_channel(one), 0);
    memory.reset();
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  }
  // Both sides are as far.
  void meet() const {
    uint32_t word = 0;
    tell(socket, 1);
    hear(socket, &word);
  }

  const int socket;
  Device device;
  ibv_pd* pd = ibv_alloc_pd(device.context);
  std::unique_ptr<Memory> memory = std::make_unique<Memory>(pd, 8);
  ibv_comp_channel* channels[2] = {};
  std::vector<std::unique_ptr<End>> ends;
};

void send_from(const Side& side, const End& end) {
  ASSERT_EQ(end.run(IBV_WR_SEND, side.memory->sge(0, 8)), IBV_WC_SUCCESS);
}

// Sends one message from each queue pair, is quiet, and sends another from the first two.
void be_peers(int fd, uint32_t count) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Side side(fd, count, [](Side&, uint32_t) -> ibv_comp_channel* { return nullptr; });
  side.meet();  // their receives are posted
  for (const auto& end : side.ends) send_from(side, *end);
  side.meet();
  side.meet();  // they have rested
  for (uint32_t i = 0; i < 2; ++i) send_from(side, *side.ends[i]);
  side.meet();
}

// Waits for one event of a channel, in poll(2) first or not.
bool await_event(ibv_comp_channel* channel, bool in_poll) {
  pollfd readable{channel->fd, POLLIN, 0};
  if (in_poll && ::poll(&readable, 1, kPatience_ms) != 1) return false;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(channel, &cq, &context) != 0) return false;
  ibv_ack_cq_events(cq, 1);
  return true;
}

void rest_beside(uint32_t peers) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  const pid_t child = ::fork();  // before either has opened the device
  if (child == 0) {
    be_peers(sockets[1], peers);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ::close(sockets[1]);
  Side side(sockets[0], peers, [](Side& s, uint32_t i) { return s.channels[i % 2]; });
  for (const auto& end : side.ends) ASSERT_EQ(end->receive(side.memory->sge(0, 8)), 0);
  side.meet();
  for (const auto& end : side.ends) ASSERT_EQ(end->completion().status, IBV_WC_SUCCESS);
  side.meet();
  for (const auto& end : side.ends) {
    ASSERT_EQ(end->receive(side.memory->sge(0, 8)), 0);
    ASSERT_EQ(ibv_req_notify_cq(end->cq, 0), 0);
  }
  std::atomic<bool> polled{false}, got{false};
  std::thread in_poll([&] { polled = await_event(side.channels[0], true); });
  std::thread in_get([&] { got = await_event(side.channels[1], false); });

  std::this_thread::sleep_for(kSettling);
  const Wakeups here(::getpid(), ::gettid()), there(child);
  std::this_thread::sleep_for(kLong);
  EXPECT_EQ(Wakeups(::getpid(), ::gettid()).since(here), "0") << "here";
  EXPECT_EQ(Wakeups(child).since(there), "0") << "at the peers";

  side.meet();
  in_poll.join();
  in_get.join();
  EXPECT_TRUE(polled) << "it sleeps for ever";
  EXPECT_TRUE(got) << "it sleeps for ever";
  side.meet();
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(sockets[0]);
}

TEST(Idle, nobody_wakes_up_beside_two_peers) {
  ::alarm(60);
  rest_beside(2);
  ::alarm(0);
}

TEST(Idle, nobody_wakes_up_beside_many_peers) {
  ::alarm(100);
  rest_beside(many_peers());
  ::alarm(0);
}

}  // namespace
}  // namespace aperture::test
