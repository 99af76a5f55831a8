// Ports that endpoints with an index share: who is found under which address, who has to come
// again, and what an attacker can do to the others at his victim's port.
#include <dirent.h>

#include "nic/raw_client.hpp"
#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

using wire::Verdict;
using wire::Why;

constexpr uint64_t kMs = 1'000'000;

Address at(uint16_t port, uint8_t index, uint32_t ip = 0x7f000001) {
  Address a = Address::v4(ip, port);
  a.index = index;
  return a;
}

// An open port on 127.0.0.1 and 127.0.0.2, closed at the end of its scope.
class OpenPort {
 public:
  OpenPort() {
    const std::array ips{Address::v4(0x7f000001, 0), Address::v4(0x7f000002, 0)};
    auto opened = contact().open_port(ips, port_);
    EXPECT_TRUE(opened.ok()) << describe(opened.error());
    if (opened) id_ = opened.value();
  }
  ~OpenPort() { close(); }
  OpenPort(const OpenPort&) = delete;
  void close() {
    if (id_ != 0) contact().close_port(id_);
    id_ = 0;
  }
  uint16_t number() const { return port_; }
  Address operator[](uint8_t index) const { return at(port_, index); }

 private:
  PortId id_ = 0;
  uint16_t port_ = 0;
};

void expect_lane(Side& from, const Address& at, Side& to) {
  HeldLane here = from.lane_to(at);
  const HeldLane there = to.lane();
  ASSERT_TRUE(here && there);
  EXPECT_EQ(here->remote, at);
  EXPECT_EQ(there->remote, from.address());
  EXPECT_EQ(here->remote_domain, to.domain());
  here.reset();
  to.down(there.get());
}
void expect_lane(Side& from, Side& to) {
  expect_lane(from, to.address(), to);
}

size_t open_descriptors() {
  size_t n = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr) ++n;
  ::closedir(dir);
  return n;
}

class SharedPort : public ::testing::Test {
 protected:
  void TearDown() override {
    port.close();
    contact().listener_limits = {};
    EXPECT_EQ(contact().census().listeners, 0u);
    EXPECT_EQ(contact().census().doorways, 0u);
    EXPECT_EQ(contact().census().handshakes, 0u);
  }
  OpenPort port;
};

TEST_F(SharedPort, each_end_of_a_port_is_found_under_its_index) {
  OpenPort here, there;
  Side a(1, here[1]), b(2, here[255]), c(3, there[1]), d(4, there[9]);
  ASSERT_EQ(a.address(), here[1]);
  expect_lane(a, c);
  expect_lane(a, d);
  expect_lane(d, b);
  expect_lane(b, c);
}

TEST_F(SharedPort, ends_of_one_port_reach_each_other) {
  Side a(1, port[1]), b(2, port[2]);
  expect_lane(a, b);
  expect_lane(b, a);
}

TEST_F(SharedPort, two_ends_have_lanes_to_one_at_the_same_time) {
  Side hub(1, port[1]), a(2, port[2]), b(3, port[3]);
  a.connect(hub);
  b.connect(hub);
  auto at_a = a.lane(), at_b = b.lane(), first = hub.lane(), second = hub.lane();
  ASSERT_TRUE(at_a && at_b && first && second);
  EXPECT_NE(first->remote, second->remote);
}

TEST_F(SharedPort, crossing_connects_end_with_one_lane) {
  for (int i = 0; i < 200; ++i) {
    Side a(1, port[1]), b(2, port[2]);
    a.connect(b);
    b.connect(a);
    HeldLane at_a, at_b;
    ASSERT_NO_FATAL_FAILURE(settle(a, at_a));
    ASSERT_NO_FATAL_FAILURE(settle(b, at_b));
  }
}

TEST_F(SharedPort, whoever_comes_too_early_is_let_in_once_the_end_is_there) {
  Side early(1, port[1]);
  early.connect(port[2]);
  EXPECT_TRUE(early.silent(60));
  Side late(2, port[2]);
  auto at_early = early.lane();
  auto at_late = late.lane();
  ASSERT_TRUE(at_early && at_late);
  EXPECT_EQ(at_late->remote, early.address());
}

TEST_F(SharedPort, the_one_that_came_too_early_can_be_reached_meanwhile) {
  Side early(1, port[1]);
  early.connect(port[2]);
  EXPECT_TRUE(early.silent(30));
  Side late(2, port[2]);
  late.connect(early);
  auto at_early = early.lane();
  auto at_late = late.lane();
  ASSERT_TRUE(at_early && at_late);
}

TEST_F(SharedPort, an_index_that_nobody_takes_times_out_when_the_caller_says) {
  Side a(1, port[1]);
  const uint64_t began = now_ns();
  a.connect_within(port[2], 100 * kMs);
  EXPECT_EQ(a.failure(), Errc::timed_out);
  EXPECT_GE(now_ns() - began, 100 * kMs);
  contact().connector_limits.timeout_ns = 150 * kMs;
  a.connect(port[2]);
  EXPECT_EQ(a.failure(), Errc::timed_out) << "and by default at the usual time";
  contact().connector_limits = {};
}

TEST_F(SharedPort, a_port_that_nobody_has_refuses_at_once) {
  Side a(1, port[1]);
  Address gone;
  {
    const OpenPort other;
    gone = other[1];
  }
  a.connect_within(gone, ~uint64_t{0});
  EXPECT_EQ(a.failure(), Errc::refused);
}

TEST_F(SharedPort, those_with_an_index_and_those_without_never_meet) {
  Side with(1, port[1]);
  Side without;
  with.connect(without);
  EXPECT_EQ(with.failure(), Errc::invalid);
  without.connect(with);
  EXPECT_EQ(without.failure(), Errc::invalid);
}

TEST_F(SharedPort, an_index_is_had_once_and_only_where_a_port_is_open) {
  std::optional<Side> first(std::in_place, 1, port[1]);
  EXPECT_EQ(Side(1, port[1]).listen_error(), Errc::addr_in_use);
  EXPECT_EQ(Side(1, at(port.number(), 1, 0x7f000002)).listen_error(), Errc::addr_in_use);
  EXPECT_EQ(Side(1, at(port.number(), 2, 0x7f000003)).listen_error(), Errc::addr_not_avail);
  Side alone;
  Address not_shared = alone.address();
  not_shared.index = 1;
  EXPECT_EQ(Side(1, not_shared).listen_error(), Errc::addr_not_avail);
  EXPECT_EQ(Side(1, at(0, 1)).listen_error(), Errc::addr_not_avail);
  first.reset();
  EXPECT_EQ(Side(1, port[1]).listen_error(), Errc::ok) << "free again";
}

TEST_F(SharedPort, passive_endpoints_do_not_share_ports) {
  Side events;
  ListenSpec spec;
  spec.local = port[1];
  spec.events = &events;
  Address bound;
  for (const ListenFor what : {ListenFor::requests, ListenFor::nobody}) {
    spec.what = what;
    spec.doorbell_fd = 0;
    EXPECT_EQ(contact().listen(spec, bound).error(), Errc::invalid);
  }
}

TEST_F(SharedPort, a_port_is_the_same_on_every_address) {
  Side first(1, at(port.number(), 1, 0x7f000001));
  Side second(2, at(port.number(), 2, 0x7f000002));
  expect_lane(first, second);
  expect_lane(second, first);
  Side any(3, at(port.number(), 3, 0));
  for (const uint32_t ip : {0x7f000001u, 0x7f000002u}) {
    expect_lane(first, at(port.number(), 3, ip), any);
  }
}

TEST_F(SharedPort, opening_says_what_it_cannot_do_and_keeps_nothing) {
  uint16_t number = 0;
  EXPECT_EQ(contact().open_port({}, number).error(), Errc::invalid);
  const std::array any{Address::v4(0, 0)};
  EXPECT_EQ(contact().open_port(any, number).error(), Errc::invalid);
  const size_t before = open_descriptors();
  const std::array nobodys{loopback_v4(), Address::v4(0xc0000201, 0)};  // 192.0.2.1
  EXPECT_EQ(contact().open_port(nobodys, number).error(), Errc::addr_not_avail);
  const std::array twice{loopback_v4(), loopback_v4()};
  EXPECT_EQ(contact().open_port(twice, number).error(), Errc::addr_in_use);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(number, 0);
}

TEST_F(SharedPort, a_port_that_is_closed_stays_for_those_that_listen_there) {
  const size_t before = open_descriptors();
  {
    OpenPort mine;
    OpenPort other;
    Side a(1, mine[1]);
    Side b(2, other[1]);
    mine.close();
    EXPECT_EQ(Side(1, mine[2]).listen_error(), Errc::addr_not_avail);
    expect_lane(b, a);
    a.stop();
    b.connect(a);
    EXPECT_EQ(b.failure(), Errc::refused);
  }
  contact().census();  // the control thread has done what it was asked to
  EXPECT_LE(open_descriptors(), before + 2) << "doorbells aside";
}

TEST_F(SharedPort, a_hello_must_name_the_address_that_it_came_to) {
  Side end(1, port[1]);
  Side alone;
  struct Case {
    Address to;           // where TCP goes
    Address destination;  // what the hello says
    uint16_t source_index;
    Verdict verdict;
  };
  Address with_index = alone.address();
  with_index.index = 1;
  const uint16_t p = port.number();
  const Case cases[] = {
      {port[1], port[1], 9, Verdict::offered},
      {port[1], port[2], 9, Verdict::not_yet},
      {port[1], port[0], 0, Verdict::wrong_destination},
      {port[1], port[0], 9, Verdict::wrong_destination},
      {port[1], port[1], 0, Verdict::wrong_destination},
      {port[1], at(p, 1, 0x7f000002), 9, Verdict::wrong_destination},
      {at(p, 1, 0x7f000002), port[1], 9, Verdict::wrong_destination},
      {at(p, 1, 0x7f000002), at(p, 1, 0x7f000002), 9, Verdict::not_yet},
      {port[1], at(static_cast<uint16_t>(p ^ 1), 1), 9, Verdict::wrong_destination},
      {alone.address(), with_index, 9, Verdict::wrong_destination},
      {alone.address(), with_index, 0, Verdict::wrong_destination},
      {alone.address(), alone.address(), 9, Verdict::wrong_destination},
      {alone.address(), alone.address(), 0, Verdict::offered},
      // contexts of endpoints meet endpoints, and no queue pairs
      {alone.address(), alone.address(), Address::kTxContexts, Verdict::offered},
      {alone.address(), alone.address().of_rx_context(3), 0, Verdict::wrong_destination},
      {port[1], port[1], Address::kTxContexts, Verdict::wrong_destination},
      {port[1], port[1].of_rx_context(3), Address::kTxContexts, Verdict::wrong_destination},
  };
  for (const Case& c : cases) {
    RawClient client(c.to);
    client.hello.destination = c.destination;
    client.hello.source.index = c.source_index;
    EXPECT_EQ(client.verdict(), c.verdict)
        << c.destination.text() << " by " << c.to.text() << " from /" << int{c.source_index};
  }
}

TEST(ContextPort, is_for_contexts_and_whoever_meets_them) {
  Address at_port;
  const auto opened = contact().open_context_port(Address::v4(0x7f000001, 0), at_port);
  ASSERT_TRUE(opened.ok());
  Side first(1, at_port, nullptr, true), third(2, at_port.of_rx_context(2), nullptr, true);
  struct Case {
    Address destination;
    uint16_t source_index;
    Verdict verdict;
  };
  Address queue_pair = at_port;
  queue_pair.index = 1;
  const Case cases[] = {
      {at_port, 0, Verdict::offered},
      {at_port, Address::kTxContexts, Verdict::offered},
      {at_port.of_rx_context(2), 0, Verdict::offered},
      {at_port.of_rx_context(1), 0, Verdict::not_yet},
      {at_port.of_tx_context(0), 0, Verdict::not_yet},
      {at_port, 9, Verdict::wrong_destination},
      {queue_pair, 0, Verdict::wrong_destination},
      {queue_pair, 9, Verdict::wrong_destination},
  };
  for (const Case& c : cases) {
    RawClient client(at_port);
    client.hello.destination = c.destination;
    client.hello.source.index = c.source_index;
    EXPECT_EQ(client.verdict(), c.verdict) << c.destination.text() << " from /" << c.source_index;
  }
  contact().close_port(opened.value());
}

TEST_F(SharedPort, somebody_on_another_host_stays_or_comes_again) {
  Side end(1, port[1]);
  for (const auto& [index, verdict] :
       {std::pair{uint8_t{1}, Verdict::stays}, std::pair{uint8_t{2}, Verdict::not_yet}}) {
    RawClient far(port[index]);
    far.hello.source.index = 9;
    far.hello.boot_id[0] ^= 1;
    EXPECT_EQ(far.verdict(), verdict);
  }
}

TEST_F(SharedPort, hostile_4_a_ticket_is_good_for_the_end_that_it_was_given_for) {
  Side one(1, port[1]), two(2, port[2]);
  RawClient thief(port[1]);
  thief.hello.source.index = 9;
  ASSERT_TRUE(thief.enter());
  wire::Open open = thief.good_open();
  open.destination = port[2];
  const auto outcome = thief.open(open, {});
  ASSERT_TRUE(outcome.has_value());
  EXPECT_FALSE(outcome->accepted);
  EXPECT_EQ(outcome->why, Why::bad_ticket);
  EXPECT_TRUE(two.silent(20));
}

TEST_F(SharedPort, tickets_end_with_the_end_that_gave_them) {
  std::optional<Side> one(std::in_place, 1, port[1]);
  Side two(2, port[2]);
  RawClient client(port[1]), other(port[2]);
  client.hello.source.index = other.hello.source.index = 9;
  ASSERT_TRUE(client.greet());
  ASSERT_TRUE(other.greet());
  one.reset();
  EXPECT_TRUE(closed_by_peer(client.tcp.get()));
  EXPECT_FALSE(client.knock());
  EXPECT_TRUE(other.knock()) << "those of the others stay";
  EXPECT_TRUE(other.join(other.answer.nonce));
}

TEST_F(SharedPort, hostile_31_strangers_at_one_end_do_not_keep_others_from_the_next) {
  contact().listener_limits.handshakes = 16;
  OpenPort limited, elsewhere;
  Side victim(1, limited[1]), other(2, limited[2]);
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 64; ++i) {
    strangers.push_back(std::make_unique<RawClient>(limited[1]));
    strangers.back()->hello.source.index = 9;
    const bool heard = i % 2 != 0 || strangers.back()->greet();
    ASSERT_TRUE(heard);
  }
  EXPECT_LE(contact().census().handshakes, 16u);
  Side honest(3, elsewhere[1]);
  expect_lane(honest, other);
  expect_lane(honest, victim);
}

}  // namespace
}  // namespace aperture::nic::test
