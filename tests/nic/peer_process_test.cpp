// First contact between two processes: lanes, crossing connects, the ways in which a peer ends.

#include <filesystem>
#include <fstream>
#include <map>

#include "base/forked.hpp"
#include "nic/child_process.hpp"
#include "nic/eventually.hpp"
#include "nic/side.hpp"
#include "protect/cma.hpp"

namespace aperture::nic::test {
namespace {

size_t count_of(const char* folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                           std::filesystem::directory_iterator{}));
}
size_t descriptors() {
  return count_of("/proc/self/fd");
}
size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t shared = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("aperture-lanes") != std::string::npos) ++shared;
  }
  return shared;
}

TEST(PeerProcess, a_lane_carries_words_between_two_processes) {
  Side here(3);
  ChildProcess child;
  HeldLane lane = here.lane_to(loopback_v4(child.new_endpoint(9)));
  EXPECT_EQ(lane->remote_domain, 9u);
  const std::string up = child.ask("lane");
  EXPECT_EQ(up.substr(0, 2), "up");
  EXPECT_EQ(lane->direct.allowed, up.find("direct") != std::string::npos);
  EXPECT_EQ(lane->direct.pid, lane->direct.allowed ? child.pid() : -1);
  send_word(*lane, 4711);
  EXPECT_EQ(child.ask("recv"), "got 4711");
  EXPECT_EQ(child.ask("send 815"), "sent");
  ASSERT_TRUE(eventually([&] { return lane->request_rx.cells.ready(); }));
  lane.reset();
  EXPECT_EQ(child.ask("next"), "down endpoint closed");
}

// Start times of threads differ there, by which a pin would name a thread that is not.
TEST(PeerProcess, nothing_is_copied_directly_between_time_namespaces) {
  if (::geteuid() != 0) GTEST_SKIP() << "a time namespace is root's to make";
  Side here;
  ChildProcess child(Environment{{"APERTURE_TEST_NAMESPACE", "time"}});
  const std::string said = child.ask("new 7");
  if (said == "no namespace") GTEST_SKIP() << "this kernel has no time namespaces";
  ASSERT_EQ(said.substr(0, 3), "at ");
  here.connect(loopback_v4(static_cast<uint16_t>(std::stoi(said.substr(3)))));
  auto lane = here.lane();
  ASSERT_TRUE(lane);
  EXPECT_FALSE(lane->direct.allowed);
  EXPECT_EQ(lane->direct.watched, nullptr);
  EXPECT_EQ(child.ask("lane").substr(0, 8), "up owner");
  send_word(*lane, 4711);
  EXPECT_EQ(child.ask("recv"), "got 4711");
  EXPECT_TRUE(here.silent(100)) << "a living peer was taken for a dead one";
}

// Each of the two sees the other as user 65534, and itself.
TEST(PeerProcess, users_without_a_number_are_strangers_to_each_other) {
  if (::geteuid() != 0) GTEST_SKIP() << "the two need to be two users";
  ChildProcess one(Environment{{"APERTURE_TEST_UID", "4711"}, {"APERTURE_TEST_NAMESPACE", "user"}});
  ChildProcess other(
      Environment{{"APERTURE_TEST_UID", "4712"}, {"APERTURE_TEST_NAMESPACE", "user"}});
  const std::string said = one.ask("new 7");
  if (said == "no namespace") GTEST_SKIP() << "no user namespaces here";
  ASSERT_EQ(said.substr(0, 3), "at ");
  other.new_endpoint();
  other.tell("connect " + said.substr(3));
  EXPECT_EQ(one.ask("lane").substr(0, 8), "up owner");
  EXPECT_EQ(other.ask("lane").substr(0, 8), "up owner");
  EXPECT_EQ(one.ask("send 1"), "sent");
  EXPECT_EQ(other.ask("recv"), "got 1");
  // no doorbell of the other is rung: Ring goes through the socket
  EXPECT_EQ(one.ask("ring"), "rung");
  EXPECT_EQ(other.ask("rang"), "rang");
}

// Whoever holds a descriptor of the doorbell may clear O_NONBLOCK on it.
TEST(PeerProcess, a_doorbell_that_a_peer_has_made_blocking_blocks_nobody) {
  Side here;
  ChildProcess child;
  here.connect(loopback_v4(child.new_endpoint()));
  auto lane = here.lane();
  ASSERT_TRUE(lane);
  EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
  EXPECT_EQ(child.ask("block"), "blocked");
  EXPECT_FALSE(here.rung()) << "a read of ours would have blocked for ever";
  EXPECT_EQ(child.ask("flood"), "flooded");
  lane->ring_doorbell();
  EXPECT_TRUE(here.rung());
  EXPECT_EQ(child.ask("rang"), "rang");
}

TEST(PeerProcess, the_other_process_may_connect_to_us) {
  Side here;
  ChildProcess child;
  child.new_endpoint();
  child.tell("connect " + std::to_string(here.address().port));
  EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
  auto lane = here.lane();
  ASSERT_TRUE(lane);
  EXPECT_EQ(child.ask("send 1"), "sent");
  EXPECT_TRUE(lane->request_rx.cells.ready());
  EXPECT_EQ(child.ask("close"), "closed");
  EXPECT_EQ(here.down(), Errc::shut_down);
}

TEST(PeerProcess, ends_that_share_ports_find_each_other_also_when_one_is_early) {
  const std::array ips{loopback_v4()};
  Address own = loopback_v4();
  const auto opened = contact().open_port(ips, own.port);
  ASSERT_TRUE(opened.ok());
  own.index = 200;
  ChildProcess child;
  const std::string said = child.ask("port");
  ASSERT_EQ(said.substr(0, 5), "port ");
  Address theirs = loopback_v4(static_cast<uint16_t>(std::stoi(said.substr(5))));
  theirs.index = 3;
  {
    Side here(1, own);
    here.connect(theirs);
    EXPECT_TRUE(here.silent(30)) << "nobody is there yet";
    EXPECT_EQ(child.ask("share 3"), "sharing");
    auto lane = here.lane();
    ASSERT_TRUE(lane);
    EXPECT_EQ(lane->remote, theirs);
    EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
    send_word(*lane, 4711);
    EXPECT_EQ(child.ask("recv"), "got 4711");
    lane.reset();
    EXPECT_EQ(child.ask("next"), "down endpoint closed");
  }
  EXPECT_EQ(child.ask("share 4"), "sharing");
  child.tell("connect " + std::to_string(own.port) + " 200");
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  Side here(1, own);
  auto lane = here.lane();
  ASSERT_TRUE(lane);
  EXPECT_EQ(lane->remote.index, 4);
  EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
  child.kill(SIGKILL);
  EXPECT_EQ(here.down(), Errc::peer_lost);
  lane.reset();
  contact().close_port(opened.value());
}

TEST(PeerProcess, crossing_connects_end_with_one_lane) {
  ChildProcess child;
  uint64_t slowest_ns = 0;
  for (int i = 0; i < 1000; ++i) {
    Side here;
    const uint16_t port = child.new_endpoint();
    child.tell("connect " + std::to_string(here.address().port));
    // sweeps the moment at which the two meet
    const uint64_t until = now_ns() + static_cast<uint64_t>(i % 50) * 5'000;
    while (now_ns() < until) {
    }
    const uint64_t began = now_ns();
    here.connect(loopback_v4(port));
    EXPECT_EQ(child.ask("settle"), "settled") << i;
    HeldLane lane;
    SCOPED_TRACE("round " + std::to_string(i));
    ASSERT_NO_FATAL_FAILURE(settle(here, lane));
    slowest_ns = std::max(slowest_ns, now_ns() - began);
    send_word(*lane, static_cast<uint64_t>(i));
    ASSERT_EQ(child.ask("recv"), "got " + std::to_string(i));
  }
  std::printf("slowest crossing: %.3f ms\n", static_cast<double>(slowest_ns) / 1e6);
}

TEST(PeerProcess, many_processes_may_come_at_once) {
  constexpr size_t kChildren = 12;
  std::vector<std::unique_ptr<ChildProcess>> children;
  std::vector<uint16_t> ports;
  for (size_t i = 0; i < kChildren; ++i) {
    children.push_back(std::make_unique<ChildProcess>());
    ports.push_back(children.back()->new_endpoint());
  }
  for (int round = 0; round < 20; ++round) {
    Side here;
    for (auto& child : children) child->tell("connect " + std::to_string(here.address().port));
    for (const uint16_t port : ports) here.connect(loopback_v4(port));
    std::map<uint16_t, HeldLane> lanes;
    while (lanes.size() < kChildren || !here.silent(0)) {
      auto t = here.next(8000);
      ASSERT_TRUE(t) << "round " << round << ": " << lanes.size() << " lanes";
      ASSERT_EQ(t->what, Told::What::up) << describe(t->why);
      ASSERT_FALSE(lanes[t->remote.port]) << "a second lane while one is up";
      lanes[t->remote.port] = std::move(t->lane);
    }
    for (size_t i = 0; i < kChildren; ++i) {
      ASSERT_EQ(children[i]->ask("settle"), "settled");
      send_word(*lanes[ports[i]], i);
      ASSERT_EQ(children[i]->ask("recv"), "got " + std::to_string(i));
      lanes[ports[i]].reset();
      ASSERT_EQ(children[i]->ask("next"), "down endpoint closed");
      ASSERT_EQ(children[i]->ask("close"), "closed");
    }
  }
}

TEST(PeerProcess, connecting_is_quick) {
  ChildProcess child;
  std::vector<uint64_t> first, again;
  for (int i = 0; i < 50; ++i) {
    Side here;
    const uint16_t port = child.new_endpoint();
    const uint64_t began = now_ns();
    here.connect(loopback_v4(port));
    auto up = here.next();
    ASSERT_TRUE(up && up->what == Told::What::up);
    (i == 0 ? first : again).push_back(up->at_ns - began);
  }
  std::sort(again.begin(), again.end());
  std::printf("connect: first %.0f us, median %.0f us, slowest %.0f us\n",
              static_cast<double>(first[0]) / 1e3,
              static_cast<double>(again[again.size() / 2]) / 1e3,
              static_cast<double>(again.back()) / 1e3);
}

// Kills a child that has `hog_mb` of memory while something is pending; how long until we are told.
uint64_t death_seen_after_ns(int hog_mb, bool pending) {
  Side here;
  ChildProcess child;
  const HeldLane lane = here.lane_to(loopback_v4(child.new_endpoint()));
  EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
  EXPECT_EQ(child.ask("send 42"), "sent");
  EXPECT_EQ(child.ask("hog " + std::to_string(hog_mb)), "hogged");
  if (pending) lane->pending.store(1, std::memory_order_relaxed);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const uint64_t killed = now_ns();
  child.kill(SIGKILL);
  auto down = here.next();
  EXPECT_TRUE(down.has_value());
  if (!down) return ~uint64_t{0};
  EXPECT_EQ(down->what, Told::What::down);
  EXPECT_EQ(down->why, Errc::peer_lost);
  EXPECT_TRUE(lane->lost());
  EXPECT_TRUE(lane->request_rx.cells.ready()) << "what it had published stays readable";
  return down->at_ns - killed;
}

TEST(PeerProcess, a_killed_peer_takes_its_lanes_down_soon) {
  std::vector<uint64_t> small;
  for (int i = 0; i < 20; ++i) small.push_back(death_seen_after_ns(0, true));
  std::sort(small.begin(), small.end());
  std::vector<uint64_t> big;
  for (int i = 0; i < 3; ++i) big.push_back(death_seen_after_ns(512, true));
  std::sort(big.begin(), big.end());
  std::printf("death seen: median %.2f ms, slowest %.2f ms; with 512 MiB %.2f ms, %.2f ms\n",
              static_cast<double>(small[10]) / 1e6, static_cast<double>(small.back()) / 1e6,
              static_cast<double>(big[1]) / 1e6, static_cast<double>(big.back()) / 1e6);
  // on a busy machine the dying process itself waits for its turn: the median is ours, the rest not
  EXPECT_LT(small[10], 50'000'000u);
  EXPECT_LT(small.back(), 1'000'000'000u);
  EXPECT_LT(big.back(), 1'000'000'000u);
}

TEST(PeerProcess, a_killed_peer_takes_idle_lanes_down_too) {
  EXPECT_LT(death_seen_after_ns(0, false), 1'000'000'000u);
}

TEST(PeerProcess, a_stopped_peer_is_not_dead) {
  Side here;
  ChildProcess child;
  const HeldLane lane = here.lane_to(loopback_v4(child.new_endpoint()));
  lane->pending.store(1, std::memory_order_relaxed);
  child.kill(SIGSTOP);
  EXPECT_TRUE(here.silent(300));
  EXPECT_FALSE(lane->lost());
  child.kill(SIGCONT);
  EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
}

TEST(PeerProcess, orderly_exit_looks_like_death_and_keeps_what_was_sent) {
  Side here;
  ChildProcess child;
  const HeldLane lane = here.lane_to(loopback_v4(child.new_endpoint()));
  EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
  EXPECT_EQ(child.ask("send 5"), "sent");
  child.tell("quit");
  ASSERT_NE(here.down(), Errc::ok);
  EXPECT_TRUE(lane->request_rx.cells.ready());
}

TEST(PeerProcess, nothing_leaks_over_many_peers_and_lanes) {
  {  // whatever is made once is made now
    Side here;
    ChildProcess child;
    here.lane_to(loopback_v4(child.new_endpoint()));
  }
  ASSERT_TRUE(eventually([] { return contact().census().peers == 0; }));
  const size_t fds = descriptors();
  const size_t maps = mappings();
  for (int i = 0; i < 30; ++i) {
    Side here;
    ChildProcess child;
    const uint16_t port = child.new_endpoint();
    for (int n = 0; n < 20; ++n) {
      HeldLane lane = here.lane_to(loopback_v4(port));
      EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
      lane.reset();
      ASSERT_EQ(child.ask("next"), "down endpoint closed");
      EXPECT_EQ(child.ask("close"), "closed");
    }
    if (i % 2 == 0) {
      HeldLane lane = here.lane_to(loopback_v4(port));
      child.kill(SIGKILL);
      ASSERT_NE(here.down(), Errc::ok);
    }
  }
  ASSERT_TRUE(eventually([] {
    const auto c = contact().census();
    return c.peers == 0 && c.resting == 0 && c.lanes == 0 && c.handshakes == 0;
  }));
  EXPECT_TRUE(eventually([&] { return descriptors() <= fds; })) << descriptors() << " > " << fds;
  EXPECT_TRUE(eventually([&] { return mappings() <= maps; })) << mappings() << " > " << maps;
}

TEST(PeerProcess, a_new_process_at_the_same_address_is_a_new_peer) {
  Side here;
  for (int i = 0; i < 20; ++i) {
    ChildProcess child;
    child.new_endpoint();
    child.tell("connect " + std::to_string(here.address().port));
    auto lane = here.lane();
    ASSERT_TRUE(lane) << i;
    child.kill(SIGKILL);
    ASSERT_NE(here.down(lane.get()), Errc::ok);
  }
}

TEST(PeerProcess, a_process_that_takes_over_the_port_of_a_dead_one_is_reached) {
  Side here;
  uint16_t port = 0;
  for (int i = 0; i < 20; ++i) {
    ChildProcess child;
    if (port == 0) {
      port = child.new_endpoint();
    } else {
      ASSERT_EQ(child.ask("listen " + std::to_string(port)), "listening") << i;
    }
    HeldLane lane = here.lane_to(loopback_v4(port));
    EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
    send_word(*lane, static_cast<uint64_t>(i));
    EXPECT_EQ(child.ask("recv"), "got " + std::to_string(i));
    child.kill(SIGKILL);
    child.reap();
    ASSERT_NE(here.down(lane.get()), Errc::ok);
  }
}

TEST(PeerProcess, direct_copies_can_be_denied_by_either_side) {
  if (!aperture::test::cma_works()) GTEST_SKIP() << "process_vm_readv is not to be had here";
  Side here;
  ChildProcess willing;
  HeldLane lane = here.lane_to(loopback_v4(willing.new_endpoint()));
  const bool by_kernel = lane->direct.allowed;  // Yama may deny it between siblings
  lane.reset();
  ChildProcess denying(Environment{{"APERTURE_CMA", "deny"}});
  lane = here.lane_to(loopback_v4(denying.new_endpoint()));
  EXPECT_FALSE(lane->direct.allowed);
  EXPECT_EQ(lane->direct.keys, nullptr);
  EXPECT_EQ(denying.ask("lane").substr(0, 8), "up owner");
  lane.reset();
  EXPECT_TRUE(by_kernel || ::getuid() != 0);
}

TEST(PeerProcess, another_user_is_served_without_keys_and_without_descriptors_that_could_block) {
  if (::getuid() != 0) GTEST_SKIP() << "needs two users, and we are not root";
  Side here;
  ChildProcess stranger(Environment{{"APERTURE_TEST_UID", "65534"}});
  for (const bool we_connect : {true, false}) {
    const uint16_t port = stranger.new_endpoint();
    if (we_connect) {
      here.connect(loopback_v4(port));
    } else {
      stranger.tell("connect " + std::to_string(here.address().port));
    }
    auto lane = here.lane();
    ASSERT_TRUE(lane);
    EXPECT_FALSE(lane->direct.allowed);
    EXPECT_EQ(lane->direct.keys, nullptr);
    EXPECT_EQ(stranger.ask("lane").substr(0, 8), "up owner");
    send_word(*lane, 99);
    lane->ring_doorbell();
    EXPECT_EQ(stranger.ask("rang"), "rang");
    EXPECT_EQ(stranger.ask("recv"), "got 99");
    EXPECT_EQ(stranger.ask("ring"), "rung");
    EXPECT_TRUE(eventually([&] { return here.rung(); }));
    EXPECT_EQ(stranger.ask("close"), "closed");
    ASSERT_NE(here.down(), Errc::ok);
  }
}

TEST(PeerProcess, a_forked_child_has_a_contact_of_its_own_and_does_not_disturb_us) {
  Side here;
  ChildProcess child;
  HeldLane lane = here.lane_to(loopback_v4(child.new_endpoint()));
  Contact* const ours = Contact::instance().value();
  EXPECT_TRUE(aperture::test::holds_in_child([&] {
    const auto own = Contact::instance();
    Address bound;
    return own.ok() && own.value() != ours && &own.value()->keys() != &ours->keys() &&
           ours->listen({}, bound).error() == Errc::not_supported;
  }));
  EXPECT_TRUE(here.silent(50));
  EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
  send_word(*lane, 3);
  EXPECT_EQ(child.ask("recv"), "got 3");
}

}  // namespace
}  // namespace aperture::nic::test
