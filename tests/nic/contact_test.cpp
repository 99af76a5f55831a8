// First contact within one process: everything that two listeners of it can do to each other.
#include <netinet/in.h>
#include <sys/socket.h>

#include <fstream>
#include <set>
#include <thread>

#include "nic/side.hpp"
#include "nic/sockets.hpp"

namespace aperture::nic::test {
namespace {

TEST(Contact, two_endpoints_get_one_lane_that_carries_both_ways) {
  Side a(11), b(22);
  ASSERT_NE(a.address().port, 0);
  auto [at_a, at_b] = join(a, b);
  EXPECT_EQ(at_a->remote, b.address());
  EXPECT_EQ(at_b->remote, a.address());
  EXPECT_EQ(at_a->remote_domain, 22u);
  EXPECT_EQ(at_b->remote_domain, 11u);
  EXPECT_FALSE(at_a->lost());
  send_word(*at_a, 0x1234);
  EXPECT_EQ(receive_word(*at_b), 0x1234u);
  send_word(*at_b, 0x5678);
  EXPECT_EQ(receive_word(*at_a), 0x5678u);
  at_a->ring_doorbell();
  EXPECT_TRUE(b.rung());
  EXPECT_FALSE(a.rung());
  at_b->ring_doorbell();
  EXPECT_TRUE(a.rung());
}

TEST(Contact, nobody_listening_is_refused) {
  Side a;
  Address nowhere;
  {
    Side gone;
    nowhere = gone.address();
  }
  a.connect(nowhere);
  EXPECT_EQ(a.failure(), Errc::refused);
}

// Our ports that dial `to` and have no answer, as /proc says.
std::set<uint16_t> dialing(const Address& to) {
  std::set<uint16_t> ports;
  std::ifstream file("/proc/self/net/tcp");
  for (std::string line; std::getline(file, line);) {
    unsigned own = 0, remote = 0, state = 0;
    const char* format = "%*u: %*8x:%x %*8x:%x %x";
    if (std::sscanf(line.c_str(), format, &own, &remote, &state) != 3) continue;
    constexpr unsigned kSynSent = 2;
    if (remote == to.port && state == kSynSent) ports.insert(static_cast<uint16_t>(own));
  }
  return ports;
}

// The kernel drops what comes to a queue of connections that is full, and whoever dialled would not
// ask again for a second.
TEST(Contact, whose_dialing_is_not_answered_dials_anew) {
  const UniqueFd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage name;
  const socklen_t len = loopback_v4().to_sockaddr(name);
  ASSERT_EQ(::bind(full.get(), reinterpret_cast<sockaddr*>(&name), len), 0);
  ASSERT_EQ(::listen(full.get(), 0), 0);
  const Address there = local_address(full.get());
  std::vector<ParentOnlyFd> waiting;
  for (int i = 0; i < 100 && dialing(there).empty(); ++i) {
    auto one = connect_tcp(there);
    ASSERT_TRUE(one.ok());
    waiting.push_back(*std::move(one));
  }
  const std::set<uint16_t> before = dialing(there);
  ASSERT_FALSE(before.empty());
  Side side;
  side.connect(there);
  std::set<uint16_t> its_own;
  for (int ms = 0; ms < 4000 && its_own.size() < 3; ++ms) {
    for (const uint16_t port : dialing(there)) {
      if (!before.contains(port)) its_own.insert(port);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GE(its_own.size(), 3u);
}

TEST(Contact, crossing_connects_end_with_one_lane) {
  uint64_t slowest_ns = 0;
  for (int i = 0; i < 1000; ++i) {
    Side a(1), b(2);
    const uint64_t began = now_ns();
    a.connect(b);
    b.connect(a);
    HeldLane at_a, at_b;
    settle(a, at_a);
    settle(b, at_b);
    if (HasFatalFailure()) return;
    slowest_ns = std::max(slowest_ns, now_ns() - began);
    send_word(*at_a, static_cast<uint64_t>(i));
    ASSERT_EQ(receive_word(*at_b), static_cast<uint64_t>(i));
    send_word(*at_b, ~static_cast<uint64_t>(i));
    ASSERT_EQ(receive_word(*at_a), ~static_cast<uint64_t>(i));
  }
  std::printf("slowest crossing: %.3f ms\n", static_cast<double>(slowest_ns) / 1e6);
}

TEST(Contact, closing_tells_the_other_side_and_what_was_sent_stays_readable) {
  Side a, b;
  auto [at_a, at_b] = join(a, b);
  send_word(*at_a, 77);
  at_a.reset();
  EXPECT_EQ(b.down(at_b.get()), Errc::shut_down);
  EXPECT_TRUE(at_b->lost());
  EXPECT_EQ(receive_word(*at_b), 77u);
  at_b.reset();
  EXPECT_TRUE(a.silent(20));
}

TEST(Contact, asking_again_changes_nothing) {
  Side a, b;
  for (int i = 0; i < 10; ++i) a.connect(b);
  auto at_a = a.lane();
  auto at_b = b.lane();
  a.connect(b);
  b.connect(a);
  EXPECT_TRUE(a.silent(50));
  EXPECT_TRUE(b.silent(0));
}

TEST(Contact, a_lane_can_be_had_again_after_it_was_closed) {
  Side a, b;
  for (int i = 0; i < 200; ++i) {
    auto [at_a, at_b] = join(a, b);
    // a lane used before must not show what was sent in its last life
    ASSERT_FALSE(at_b->request_rx.cells.ready());
    send_word(*at_a, 1);
    at_a.reset();
    ASSERT_EQ(b.down(), Errc::shut_down);
  }
}

TEST(Contact, its_own_address_is_not_for_connecting) {
  Side a;
  a.connect(a);
  EXPECT_EQ(a.failure(), Errc::invalid);
}

TEST(Contact, an_address_in_use_is_refused) {
  Side a;
  Side b(1, a.address());
  EXPECT_EQ(b.listen_error(), Errc::addr_in_use);
}

TEST(Contact, an_address_of_nobody_here_is_refused) {
  Side a(1, Address::v4(0xc0000201, 0));  // 192.0.2.1, for documentation
  EXPECT_EQ(a.listen_error(), Errc::addr_not_avail);
}

TEST(Contact, a_wildcard_listener_is_reached_by_an_address_of_the_host) {
  Side any(5, Address::v4(0, 0));
  Side b(6);
  ASSERT_EQ(any.listen_error(), Errc::ok);
  const HeldLane at_b = b.lane_to(loopback_v4(any.address().port));
  const HeldLane at_any = any.lane();
  ASSERT_TRUE(at_b && at_any);
  EXPECT_EQ(at_any->remote, b.address());
}

// Whether this host lets a socket listen at ::1.
bool ipv6_works() {
  const UniqueFd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  at.sin6_addr = in6addr_loopback;
  return socket && ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
}

TEST(Contact, works_over_ipv6) {
  if (!ipv6_works()) GTEST_SKIP() << "no IPv6 here";
  Address localhost;
  localhost.ip[15] = 1;
  Side a(1, localhost), b(2, localhost);
  ASSERT_EQ(a.listen_error(), Errc::ok);
  ASSERT_EQ(b.listen_error(), Errc::ok);
  auto [at_a, at_b] = join(a, b);
  EXPECT_EQ(at_b->remote, a.address());
}

TEST(Contact, unlisten_ends_connects_under_way_in_silence) {
  for (int i = 0; i < 50; ++i) {
    Side b;
    Side a;
    a.connect(b);
    a.stop();
  }
  const auto c = contact().census();
  EXPECT_EQ(c.listeners, 0u);
  EXPECT_EQ(c.connectors, 0u);
}

TEST(Contact, many_pairs_share_the_segments_of_their_processes) {
  constexpr int kSides = 40;
  Side hub(1);
  std::vector<std::unique_ptr<Side>> spokes;
  std::vector<HeldLane> lanes;
  for (int i = 0; i < kSides; ++i) {
    spokes.push_back(std::make_unique<Side>(static_cast<uint32_t>(100 + i)));
    spokes.back()->connect(hub);
  }
  for (int i = 0; i < kSides; ++i) {
    lanes.push_back(hub.lane());
    lanes.push_back(spokes[i]->lane());
    ASSERT_TRUE(lanes[2 * i] && lanes[2 * i + 1]);
  }
  EXPECT_LE(contact().census().peers, 2u) << "both ends of one connection, in one process";
}

TEST(Contact, direct_copies_within_one_process_are_allowed) {
  Side a, b;
  auto [at_a, at_b] = join(a, b);
  EXPECT_TRUE(at_a->direct.allowed);
  EXPECT_TRUE(at_b->direct.allowed);
  EXPECT_EQ(at_a->direct.pid, ::getpid());
  EXPECT_NE(at_a->direct.keys, nullptr);
  EXPECT_NE(at_a->direct.slots, nullptr);
}

}  // namespace
}  // namespace aperture::nic::test
