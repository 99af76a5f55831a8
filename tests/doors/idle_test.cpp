// Who waits sleeps: no thread of a process with open endpoints wakes up until something comes,
// whichever way it waits and however many peers there are.
//
// APERTURE_IDLE_PEERS: how many the many are (default 100; ./dev soak: 1000).
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/wakeups.hpp"
#include "doors/child.hpp"
#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

constexpr auto kSettling = std::chrono::seconds(2);  // the watch over dead peers rests by then
constexpr auto kLong = std::chrono::seconds(10);
constexpr int kPatience_ms = 60000;
constexpr uint32_t kMostEach = 100;  // peers of one process

struct Asked {
  Name names[3];
  uint32_t peers;
};

Options options(fi_wait_obj wait) {
  return {.caps = FI_MSG, .wait = wait, .threading = FI_THREAD_SAFE};
}

uint32_t many_peers() {
  const char* text = std::getenv("APERTURE_IDLE_PEERS");
  return text != nullptr ? static_cast<uint32_t>(std::atoi(text)) : 100;
}

}  // namespace

// Peers that send one message each to one of the three, and then are quiet. When they are told to,
// the first one sends to all three.
DOOR_ROLE(quiet_peers) {
  Asked asked;
  if (!control.get(&asked)) return 1;
  Node host(options(FI_WAIT_NONE));
  std::vector<std::unique_ptr<Node>> others;
  const auto send = [&](Node& from, const Name& to) {
    return from.run(fi_send, "hi", size_t{2}, nullptr, from.insert(to)) == 0;
  };
  for (uint32_t i = 0; i < asked.peers; ++i) {
    if (i != 0) others.push_back(std::make_unique<Node>(options(FI_WAIT_NONE), host));
    if (!send(i == 0 ? host : *others.back(), asked.names[i % 3])) return 2;
  }
  bool more = false;
  if (!control.put(true) || !control.get(&more)) return 3;
  for (uint32_t i = 0; more && i < 3; ++i) {
    if (!send(host, asked.names[i])) return 4;
  }
  return control.put(true) && control.get(&more) ? 0 : 5;
}

namespace {

// A thread that has nothing to do until a message comes, in one of the ways to wait for it.
class Waiter {
 public:
  enum class Way { inside_sread, in_poll };

  explicit Waiter(Way way) : way_(way), node_(options(FI_WAIT_FD)) {}
  ~Waiter() {
    if (thread_.joinable()) thread_.join();
  }
  Node& node() { return node_; }
  void start() {
    ASSERT_EQ(node_.post(fi_recv, room_, sizeof room_, nullptr, FI_ADDR_UNSPEC, &op_), 0);
    thread_ = std::thread([this] { came_ = way_ == Way::inside_sread ? sread() : poll(); });
  }
  // Whether it was woken by a message.
  bool join() {
    thread_.join();
    return came_;
  }

 private:
  bool sread() {
    fi_cq_tagged_entry entry{};
    return fi_cq_sread(node_.cq(), &entry, 1, nullptr, kPatience_ms) == 1;
  }
  bool poll() {
    int fd = -1;
    DOOR(fi_control(&node_.cq()->fid, FI_GETWAIT, &fd));
    for (;;) {
      fi_cq_tagged_entry entry{};
      const ssize_t got = fi_cq_read(node_.cq(), &entry, 1);
      if (got != -FI_EAGAIN) return got == 1;
      fid* queue[] = {&node_.cq()->fid};
      if (fi_trywait(node_.fabric(), queue, 1) != 0) continue;
      pollfd readable{fd, POLLIN, 0};
      if (::poll(&readable, 1, kPatience_ms) != 1) return false;
    }
  }

  const Way way_;
  char room_[8] = {};
  Op op_;
  Node node_;
  std::atomic<bool> came_{false};
  std::thread thread_;
};

// Three nodes of this process, of which one waits in each way and one has nobody who waits.
class Idle : public testing::Test {
 protected:
  void rest_beside(uint32_t peers);

 private:
  void meet(uint32_t peers);
  Node& node(uint32_t i) { return i == 0 ? in_sread_.node() : i == 1 ? in_poll_.node() : unread_; }
  static bool take(Node& from) {
    char room[8];
    return from.run(fi_recv, room, sizeof room, nullptr, FI_ADDR_UNSPEC) == 0;
  }
  std::vector<std::pair<pid_t, test::Wakeups>> look() const {
    std::vector<std::pair<pid_t, test::Wakeups>> all;
    all.emplace_back(::getpid(), test::Wakeups(::getpid(), ::gettid()));
    for (const auto& child : peers_) all.emplace_back(child->pid(), test::Wakeups(child->pid()));
    return all;
  }

  Waiter in_sread_{Waiter::Way::inside_sread}, in_poll_{Waiter::Way::in_poll};
  Node unread_{options(FI_WAIT_NONE)};
  std::vector<std::unique_ptr<Child>> peers_;
};

void Idle::meet(uint32_t peers) {
  Asked asked{{node(0).name(), node(1).name(), node(2).name()}, 0};
  for (uint32_t left = peers; left > 0; left -= asked.peers) {
    asked.peers = std::min(left, kMostEach);
    peers_.push_back(std::make_unique<Child>("quiet_peers"));
    Control& control = peers_.back()->control();
    ASSERT_TRUE(control.put(asked));
    for (uint32_t i = 0; i < asked.peers; ++i) ASSERT_TRUE(take(node(i % 3)));
    bool ready = false;
    ASSERT_TRUE(control.get(&ready, kPatience_ms));
  }
}

void Idle::rest_beside(uint32_t peers) {
  ASSERT_NO_FATAL_FAILURE(meet(peers));
  in_sread_.start();
  in_poll_.start();
  std::this_thread::sleep_for(kSettling);
  const auto before = look();
  std::this_thread::sleep_for(kLong);
  const auto after = look();
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].second.since(before[i].second), "0") << (i == 0 ? "here" : "at a peer");
  }

  bool done = false;
  ASSERT_TRUE(peers_[0]->control().put(true));
  EXPECT_TRUE(in_sread_.join());
  EXPECT_TRUE(in_poll_.join());
  EXPECT_TRUE(take(unread_));
  ASSERT_TRUE(peers_[0]->control().get(&done, kPatience_ms));
  for (size_t i = 0; i < peers_.size(); ++i) {
    Control& control = peers_[i]->control();
    if (i != 0) {
      EXPECT_TRUE(control.put(false) && control.get(&done, kPatience_ms));
    }
    EXPECT_TRUE(control.put(false));
    EXPECT_EQ(peers_[i]->join(), 0);
  }
}

TEST(Wakeups, a_thread_that_sleeps_anew_is_counted_and_named) {
  std::atomic<int> told{0};
  std::thread sleeper([&] {
    ::pthread_setname_np(::pthread_self(), "sleeper");
    told = 1;
    told.notify_one();
    told.wait(1);
    for (int i = 0; i < 5; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    told = 3;
    told.notify_all();
    told.wait(3);
  });
  told.wait(0);
  ASSERT_TRUE(test::comes_to_rest(::getpid(), ::gettid()));  // it may still be on its way to sleep
  const test::Wakeups before(::getpid(), ::gettid());
  EXPECT_EQ(test::Wakeups(::getpid(), ::gettid()).since(before), "0");
  told = 2;
  told.notify_all();
  told.wait(2);
  EXPECT_NE(test::Wakeups(::getpid(), ::gettid()).since(before).find("sleeper"), std::string::npos);
  told = 4;
  told.notify_all();
  sleeper.join();
}

TEST_F(Idle, nobody_wakes_up_beside_one_peer) {
  rest_beside(1);
}

TEST_F(Idle, nobody_wakes_up_beside_many_peers) {
  rest_beside(many_peers());
}

}  // namespace
}  // namespace aperture::doors
