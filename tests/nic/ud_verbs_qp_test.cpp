// Datagram queue pairs of the verbs door: between processes, progressed by the application or by
// the control thread, in groups, and after a fork.

#include <random>

#include "base/forked.hpp"
#include "nic/child_process.hpp"
#include "nic/datagram_end.hpp"
#include "nic/host_identity.hpp"

namespace aperture::nic::test {
namespace {

const Address kLoopback = Address::v4(0x7f000001, 0);

uint32_t number_of(ChildProcess& child) {
  const std::string said = child.ask("qpn");
  return said.empty() ? 0 : static_cast<uint32_t>(std::stoul(said));
}

std::string hex(const Address& group) {
  std::string out;
  for (const uint8_t byte : group.ip) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    out += digits;
  }
  return out;
}

// Of our own, so that several runs on one host do not hear each other.
Address some_group(bool v4) {
  std::random_device random;
  Address a = v4 ? Address::v4(0xef000000, 0) : Address{};
  if (!v4) a.ip = {0xff, 0x12, 0x40, 0x1b};
  for (size_t i = 13; i < 16; ++i) a.ip[i] = static_cast<uint8_t>(random());
  return a;
}

TEST(UdVerbsQp, two_processes_answer_each_other_at_every_address_of_the_host) {
  ChildProcess child;
  const uint32_t number = number_of(child);
  DatagramEnd here;
  ASSERT_TRUE(here.ok);
  EXPECT_EQ(number & 0xff, 0u);
  EXPECT_NE(number, here.qpn());
  for (const Address& ip : host_addresses()) {
    SCOPED_TRACE(ip.text());
    child.tell("echo 20");
    for (int i = 0; i < 20; ++i) {
      const std::string text = "message " + std::to_string(i);
      ASSERT_TRUE(here.send(ip, ip, number, text));
      const auto m = here.next();
      ASSERT_EQ(m.text, text);
      EXPECT_EQ(m.src_qpn, number);
      EXPECT_EQ(m.from, ip);
      EXPECT_EQ(m.to, ip);
    }
    EXPECT_EQ(child.hear(), "echoed");
  }
}

TEST(UdVerbsQp, a_message_reaches_who_does_not_poll) {
  ChildProcess child;
  const uint32_t number = number_of(child);
  DatagramEnd here;
  ASSERT_TRUE(here.ok);
  for (int i = 0; i < 20; ++i) {
    // by now its engine sleeps, and nothing but the datagram can wake it
    EXPECT_EQ(child.ask("silent 20"), "silent");
    ASSERT_TRUE(here.send(kLoopback, kLoopback, number, std::to_string(i)));
    EXPECT_EQ(child.ask("hear"), "heard " + std::to_string(i));
  }
}

// Who sleeps on the descriptor is woken by the socket, and the control thread leaves it to him.
TEST(UdVerbsQp, a_message_wakes_a_sleeper_without_the_control_thread) {
  DatagramEnd from, to;
  ASSERT_TRUE(from.ok && to.ok);
  Engine& engine = to.nic->engine();
  const auto is_readable = [&](int timeout_ms) {
    pollfd p{engine.wakers().sleep_fd(), POLLIN, 0};
    return ::poll(&p, 1, timeout_ms) == 1;
  };
  int left_alone = 0;
  for (int i = 0; i < 20; ++i) {
    {
      const EngineGuard guard(engine);
      while (!engine.sleep().prepare()) engine.poll();
      engine.auto_progress().leave_to_application();
    }
    ASSERT_TRUE(from.send(kLoopback, kLoopback, to.qpn(), std::to_string(i)));
    // or the control thread has taken it before we have looked
    const auto is_taken = [&] {
      const EngineGuard guard(engine);
      return !to.cq.empty();
    };
    bool woken = false, taken = false;
    for (int tries = 0; tries < 500 && !woken && !taken; ++tries) {
      woken = is_readable(10);
      taken = is_taken();
    }
    EXPECT_TRUE(woken || taken);
    pollfd bell{engine.wakers().doorbell_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&bell, 1, 0), 0) << "nobody has rung the doorbell";
    left_alone += taken ? 0 : 1;
    EXPECT_EQ(to.next().text, std::to_string(i));
  }
  // it steps in for who is late, and on a busy machine everybody is now and then
  EXPECT_GT(left_alone, 0) << "the control thread has polled each time";
}

TEST(UdVerbsQp, who_waits_for_messages_uses_no_processor) {
  ChildProcess child;
  number_of(child);
  EXPECT_EQ(child.ask("silent 50"), "silent");
  const long before = std::stol(child.ask("cpu"));
  EXPECT_EQ(child.ask("silent 1000"), "silent");
  const long used = std::stol(child.ask("cpu")) - before;
  EXPECT_LT(used, 500) << "milliseconds in a second, where a thread that spins uses all of them";
}

TEST(UdVerbsQp, messages_that_wait_for_a_receive_use_no_processor) {
  ChildProcess child;
  const uint32_t number = number_of(child);
  DatagramEnd here;
  ASSERT_TRUE(here.ok);
  // all its receives, whose completions nobody takes, and more
  for (int i = 0; i < 80; ++i) {
    ASSERT_TRUE(here.send(kLoopback, kLoopback, number, std::to_string(i)));
    here.next(true, 1);
  }
  child.tell("rest 100");
  EXPECT_EQ(child.hear(), "rested");
  const long before = std::stol(child.ask("cpu"));
  EXPECT_EQ(child.ask("rest 1000"), "rested");
  const long used = std::stol(child.ask("cpu")) - before;
  EXPECT_LT(used, 300) << "milliseconds in a second, where a thread that spins uses all of them";
  EXPECT_EQ(child.ask("hear"), "heard 0");
}

TEST(UdVerbsQp, a_group_reaches_all_processes_that_have_joined) {
  for (const bool v4 : {true, false}) {
    SCOPED_TRACE(v4 ? "an IPv4 group" : "an MGID of InfiniBand");
    const Address group = some_group(v4);
    ChildProcess first, second, other;
    for (ChildProcess* child : {&first, &second}) {
      ASSERT_EQ(child->ask("attach " + hex(group)), "attached");
    }
    number_of(other);
    DatagramEnd here, also_here;
    ASSERT_TRUE(here.ok && also_here.ok);
    ASSERT_TRUE(also_here.verbs_qp->attach_group(group, {}).ok());
    for (const Address& local : host_addresses()) {
      SCOPED_TRACE(local.text());
      ASSERT_TRUE(here.send(local, group, wire::kMulticastQpn, "to all"));
      EXPECT_EQ(first.ask("hear"), "heard to all");
      EXPECT_EQ(second.ask("hear"), "heard to all");
      const auto m = also_here.next();
      EXPECT_EQ(m.text, "to all");
      EXPECT_EQ(m.to, group);
    }
    ASSERT_EQ(second.ask("detach " + hex(group)), "detached");
    ASSERT_TRUE(here.send(kLoopback, group, wire::kMulticastQpn, "again"));
    EXPECT_EQ(first.ask("hear"), "heard again");
    EXPECT_EQ(second.ask("silent 100"), "silent");
    EXPECT_EQ(other.ask("silent 1"), "silent");
    EXPECT_EQ(first.ask("silent 1"), "silent") << "one copy of each";
  }
}

TEST(UdVerbsQp, a_killed_peer_is_no_error) {
  DatagramEnd here;
  ASSERT_TRUE(here.ok);
  uint32_t gone = 0;
  {
    ChildProcess child;
    gone = number_of(child);
    child.kill(SIGKILL);
    child.reap();
  }
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(here.send(kLoopback, kLoopback, gone, "anybody?"));
    EXPECT_FALSE(here.next(true, 1).there);
  }
  ChildProcess child;
  const uint32_t number = number_of(child);
  child.tell("echo 1");
  ASSERT_TRUE(here.send(kLoopback, kLoopback, number, "you"));
  EXPECT_EQ(here.next().text, "you");
}

TEST(UdVerbsQp, several_of_one_context_have_ports_of_their_own_and_give_them_back) {
  const auto descriptors = [] {
    size_t n = 0;
    for (int fd = 0; fd < 8192; ++fd) n += ::fcntl(fd, F_GETFD) != -1 ? 1 : 0;
    return n;
  };
  DatagramEnd here;
  ASSERT_TRUE(here.ok);
  const size_t before = descriptors();
  {
    std::vector<std::unique_ptr<DatagramEnd>> ends;
    for (int i = 0; i < 20; ++i) {
      ends.push_back(std::make_unique<DatagramEnd>(here.nic));
      ASSERT_TRUE(ends.back()->ok);
      ASSERT_TRUE(ends.back()->verbs_qp->attach_group(some_group(i % 2 == 0), {}).ok());
    }
    for (auto& end : ends) {
      ASSERT_TRUE(here.send(kLoopback, kLoopback, end->qpn(), "hello"));
      EXPECT_EQ(end->next().text, "hello");
    }
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(UdVerbsQp, a_forked_child_holds_no_port_and_closes_nothing) {
  DatagramEnd here;
  ASSERT_TRUE(here.ok);
  EXPECT_TRUE(aperture::test::holds_in_child([&] {
    const int udp = aperture::test::count_sockets(SOCK_DGRAM);
    ib::QpSpec spec;
    spec.type = ib::QpType::ud;
    const bool refused = here.nic->make_qp(spec).error() == Errc::not_supported;
    return udp == 0 && refused;
  }));
  ASSERT_TRUE(here.send(kLoopback, kLoopback, here.qpn(), "to myself"));
  EXPECT_EQ(here.next().text, "to myself");
}

TEST(UdVerbsQp, connected_queue_pairs_have_no_groups) {
  DatagramEnd here;
  ASSERT_TRUE(here.ok);
  auto made = here.nic->make_qp(here.rc_spec());
  ASSERT_TRUE(made.ok());
  EXPECT_EQ((*made)->attach_group(some_group(true), {}).error(), Errc::not_supported);
  EXPECT_EQ((*made)->detach_group(some_group(true)).error(), Errc::not_supported);
}

}  // namespace
}  // namespace aperture::nic::test
