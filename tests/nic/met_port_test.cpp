// Lanes between processes that have met: who has given a lane to one of its ports is asked for the
// next one there without TCP, and whoever may not be asked so, or is not there, is found by TCP.
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>

#include "nic/child_process.hpp"
#include "nic/raw_client.hpp"
#include "nic/side.hpp"

namespace {

std::atomic<int> g_dials{0};

}  // namespace

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): as it is declared
extern "C" int connect(int fd, const sockaddr* to, socklen_t len) {
  if (to->sa_family != AF_UNIX) g_dials.fetch_add(1);
  return static_cast<int>(::syscall(SYS_connect, fd, to, len));
}

namespace aperture::nic::test {
namespace {

using wire::Why;

std::shared_ptr<const Secret> some_key() {
  auto made = Secret::copy_of(std::array<uint8_t, 4>{1, 2, 3, 4});
  EXPECT_TRUE(made.ok());
  return std::make_shared<const Secret>(*std::move(made));
}

// A port here and one of a child's, and what is asked of each.
class MetPort : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::array ips{loopback_v4()};
    const auto opened = contact().open_port(ips, here_.port);
    ASSERT_TRUE(opened.ok());
    port_ = opened.value();
    const std::string said = child.ask("port");
    ASSERT_EQ(said.substr(0, 5), "port ");
    there_ = loopback_v4(static_cast<uint16_t>(std::stoi(said.substr(5))));
  }
  void TearDown() override { contact().close_port(port_); }
  Address here(uint8_t index) const { return with(here_, index); }
  Address there(uint8_t index) const { return with(there_, index); }
  void share(uint8_t index) { ASSERT_EQ(child.ask("share " + std::to_string(index)), "sharing"); }
  // A lane from one of ours to one of theirs, which carries a word.
  void expect_lane(uint8_t ours, uint8_t theirs) {
    share(theirs);
    Side side(1, here(ours));
    HeldLane lane = side.lane_to(there(theirs));
    EXPECT_EQ(lane->remote, there(theirs));
    EXPECT_EQ(child.ask("lane").substr(0, 2), "up");
    send_word(*lane, theirs);
    EXPECT_EQ(child.ask("recv"), "got " + std::to_string(theirs));
  }

  ChildProcess child;

 private:
  static Address with(Address a, uint8_t index) {
    a.index = index;
    return a;
  }
  Address here_ = loopback_v4();
  Address there_;
  PortId port_ = 0;
};

TEST_F(MetPort, is_asked_for_further_lanes_without_tcp) {
  expect_lane(1, 1);
  const int dials = g_dials;
  EXPECT_GT(dials, 0) << "the first goes by TCP, to whoever has the port";
  for (uint8_t n = 2; n < 40; ++n) expect_lane(n, static_cast<uint8_t>(n + 1));
  EXPECT_EQ(g_dials, dials);
}

TEST_F(MetPort, is_asked_by_tcp_where_the_end_is_not_there_yet) {
  expect_lane(1, 1);
  Side side(1, here(2));
  side.connect(there(9));
  EXPECT_TRUE(side.silent(30)) << "nobody is there yet";
  share(9);
  HeldLane lane = side.lane();
  ASSERT_TRUE(lane);
  EXPECT_EQ(lane->remote, there(9));
}

// Who has met whom: that one is asked at once, and the other by TCP.
enum class Met : uint8_t { both, theirs, ours };
class CrossingAtMetPorts : public MetPort, public ::testing::WithParamInterface<Met> {};
INSTANTIATE_TEST_SUITE_P(, CrossingAtMetPorts, ::testing::Values(Met::both, Met::theirs, Met::ours),
                         [](const auto& p) -> std::string {
                           return p.param == Met::both     ? "both"
                                  : p.param == Met::theirs ? "theirs"
                                                           : "ours";
                         });

TEST_P(CrossingAtMetPorts, ends_with_one_lane) {
  if (GetParam() != Met::ours) expect_lane(1, 1);
  if (GetParam() != Met::theirs) {
    share(2);
    Side side(1, here(2));
    child.tell("connect " + std::to_string(here(2).port) + " 2");
    ASSERT_TRUE(side.lane());
  }
  uint64_t slowest_ns = 0;
  int slow = 0;
  constexpr int kRounds = 500;
  for (int i = 0; i < kRounds; ++i) {
    SCOPED_TRACE("round " + std::to_string(i));
    const auto ours = static_cast<uint8_t>(10 + i % 100);
    const auto theirs = static_cast<uint8_t>(10 + i % 77);
    share(theirs);
    Side side(1, here(ours));
    child.tell("connect " + std::to_string(here(ours).port) + " " + std::to_string(ours));
    // sweeps the moment at which the two meet
    const uint64_t until = now_ns() + static_cast<uint64_t>(i % 50) * 4'000;
    while (now_ns() < until) {
    }
    const uint64_t began = now_ns();
    side.connect(there(theirs));
    EXPECT_EQ(child.ask("settle"), "settled");
    HeldLane lane;
    ASSERT_NO_FATAL_FAILURE(settle(side, lane));
    const uint64_t took = now_ns() - began;
    slowest_ns = std::max(slowest_ns, took);
    if (took > contact().connector_limits.waiting_ns) ++slow;
    send_word(*lane, static_cast<uint64_t>(i));
    ASSERT_EQ(child.ask("recv"), "got " + std::to_string(i));
  }
  std::printf("slowest crossing: %.3f ms\n", static_cast<double>(slowest_ns) / 1e6);
  EXPECT_LT(slow, kRounds / 10) << "each has given way to the other";
}

TEST(MetPorts, a_port_that_another_process_has_now_is_found_by_tcp) {
  ChildProcess one, other;
  const uint16_t port = one.new_endpoint();
  Side first;
  HeldLane lane = first.lane_to(loopback_v4(port));
  lane.reset();
  one.new_endpoint();  // and the port is free
  ASSERT_EQ(other.ask("listen " + std::to_string(port)), "listening");
  Side second;
  lane = second.lane_to(loopback_v4(port));
  EXPECT_EQ(other.ask("lane").substr(0, 2), "up");
  send_word(*lane, 42);
  EXPECT_EQ(other.ask("recv"), "got 42");
}

TEST(MetPorts, a_port_that_nobody_has_any_more_refuses) {
  ChildProcess one;
  const uint16_t port = one.new_endpoint();
  Side first;
  first.lane_to(loopback_v4(port));
  one.new_endpoint();
  Side second;
  second.connect(loopback_v4(port));
  EXPECT_EQ(second.failure(), Errc::refused);
}

TEST(MetPorts, an_end_with_a_key_is_asked_by_tcp) {
  const auto key = some_key();
  Side to(1, loopback_v4(), key), one(1, loopback_v4(), key), other(1, loopback_v4(), key);
  const Ends first = join(one, to);
  const int dials = g_dials;
  const Ends second = join(other, to);
  EXPECT_EQ(g_dials, dials + 1);
  Side keyless;
  keyless.connect(to);
  EXPECT_EQ(keyless.failure(), Errc::access_denied);
}

// --- whoever comes without a ticket --------------------------------------------------------------

wire::Open without_ticket(const RawClient& client, const Address& to) {
  wire::Open open = client.good_open();
  open.nonce = {};
  open.ticket = Wild<uint64_t>(wire::kNoTicket);
  open.destination = to;
  return open;
}

TEST(MetPorts, hostile_5_without_a_ticket_what_is_not_there_is_refused) {
  Side victim, closed, anywhere(1, Address::v4(0, 0));
  const Address gone = closed.address();
  closed.stop();
  RawClient client(victim.address());
  ASSERT_TRUE(client.enter());
  EXPECT_EQ(client.refusal(without_ticket(client, gone)), Why::no_endpoint);
  EXPECT_EQ(client.refusal(without_ticket(client, Address::v4(0, victim.address().port))),
            Why::no_endpoint)
      << "an address of no one's";
  EXPECT_EQ(client.refusal(without_ticket(client, Address::v4(0, anywhere.address().port))),
            Why::no_endpoint)
      << "also where somebody listens at all";
  EXPECT_EQ(client.refusal(without_ticket(client, Address::v4(0x7f000002, victim.address().port))),
            Why::no_endpoint)
      << "another address of the host";
  wire::Open of_queue_pair = without_ticket(client, victim.address());
  of_queue_pair.source.index = 1;
  EXPECT_EQ(client.refusal(of_queue_pair), Why::no_endpoint) << "the two kinds never meet";
  of_queue_pair = without_ticket(client, victim.address());
  of_queue_pair.destination.index = 1;
  EXPECT_EQ(client.refusal(of_queue_pair), Why::no_endpoint);
  wire::Open with_nonce = without_ticket(client, victim.address());
  with_nonce.nonce = client.answer.nonce;
  EXPECT_EQ(client.refusal(with_nonce), Why::bad_ticket) << "a nonce of no ticket";
  EXPECT_TRUE(victim.silent(0));
  const auto said =
      client.open(without_ticket(client, victim.address()), {sealed_segment(), doorbell()});
  ASSERT_TRUE(said);
  EXPECT_TRUE(said->accepted) << "of the same user, as it could have had by TCP";
}

TEST(MetPorts, hostile_5_without_a_ticket_nobody_comes_to_an_end_with_a_key) {
  Side victim, keyed(1, loopback_v4(), some_key());
  RawClient client(victim.address());
  ASSERT_TRUE(client.enter());
  EXPECT_EQ(client.refusal(without_ticket(client, keyed.address())), Why::wrong_key);
  EXPECT_TRUE(keyed.silent(0));
}

TEST(MetPorts, hostile_4_another_user_needs_a_ticket) {
  if (::getuid() != 0) GTEST_SKIP() << "needs two users, and we are not root";
  Side victim, other;
  sealed_segment();
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(90);
    Address own;
    auto listening = listen_tcp(loopback_v4(), own);
    RawClient client(victim.address());
    client.hello.source = own;
    if (!client.greet()) ::_exit(91);
    if (!client.knock() || !client.join(client.answer.nonce)) ::_exit(92);
    const auto said = client.open(without_ticket(client, other.address()), {sealed_segment()});
    if (!said || said->accepted) ::_exit(93);
    if (said->why != Why::bad_ticket) ::_exit(94);
    const auto good = client.open(client.good_open(), {sealed_segment()});
    ::_exit(good && good->accepted ? 0 : 95);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(other.silent(0));
}

}  // namespace
}  // namespace aperture::nic::test
