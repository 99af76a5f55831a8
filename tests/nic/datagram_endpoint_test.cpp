// Datagram endpoints: what strangers send to their port changes nothing, whoever sleeps is woken,
// and a forked child holds nothing.
#include "nic/datagram_endpoint.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "base/clock.hpp"
#include "base/forked.hpp"
#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

const Address kLoopback = Address::v4(0x7f000001, 0);
constexpr uint64_t kGroupFlag = 0x10;

// An endpoint with an engine and a queue, and receives of 64 bytes that can be told apart.
struct End {
  explicit End(bool receives = true, bool threaded = true) {
    engine = *Engine::create({.threaded = threaded});
    EndpointOptions options;
    options.engine = engine.get();
    options.addresses = &addresses;
    options.tx_cq = options.rx_cq = &cq;
    options.local = kLoopback;
    options.report_source = true;
    auto made = DatagramEndpoint::create(options, {.receives = receives, .group_flag = kGroupFlag});
    EXPECT_TRUE(made.ok()) << describe(made.error());
    endpoint = *std::move(made);
  }
  ~End() { endpoint.reset(); }

  void post(size_t n) {
    const EngineGuard guard(*engine);
    const iovec iov{memory[n], sizeof memory[n]};
    ASSERT_TRUE(endpoint->recv(
        {.iov = &iov, .iov_count = 1, .len = sizeof memory[n], .context = memory[n]}));
  }
  Status send(uint64_t to, const char* text) {
    const EngineGuard guard(*engine);
    const iovec iov{const_cast<char*>(text), std::strlen(text)};
    return endpoint->send(
        {.iov = &iov, .iov_count = 1, .len = iov.iov_len, .dest = to, .completion = false});
  }
  uint64_t insert(const End& other) {
    const EngineGuard guard(*engine);
    return *addresses.insert(other.endpoint->address());
  }
  template <typename So>
  bool until(So so) {
    for (const uint64_t end = now_ns() + 5'000'000'000; now_ns() < end;) {
      const EngineGuard guard(*engine);
      if (so()) return true;
      engine->poll();
    }
    return false;
  }
  bool received() {
    return until([&] { return !cq.empty(); });
  }
  const DatagramEndpoint::Drops& drops() const { return endpoint->drops(); }

  std::unique_ptr<Engine> engine;
  AddressTable addresses;
  qp::Cq cq{64};
  std::unique_ptr<DatagramEndpoint> endpoint;
  char memory[8][64] = {};
};

// Somebody with a socket.
struct Stranger {
  Stranger() : fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}
  void send(const Address& to, std::span<const std::byte> bytes) {
    sockaddr_storage addr;
    const socklen_t len = to.to_sockaddr(addr);
    ASSERT_EQ(
        ::sendto(fd.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&addr), len),
        static_cast<ssize_t>(bytes.size()));
  }
  static std::vector<std::byte> sound(size_t len, const Address& group = {}) {
    wire::MessageHead head;
    head.length = Wild(static_cast<uint16_t>(len));
    if (wire::is_group(group)) {
      head.group = Wild(wire::group_tag(group));
      head.group_port = Wild(group.port);
    }
    std::vector<std::byte> out(wire::kMessageHeaderBytes + len, std::byte{'s'});
    wire::encode(head, std::span(out).first<wire::kMessageHeaderBytes>());
    return out;
  }
  UniqueFd fd;
};

class DatagramHostile : public testing::Test {
 protected:
  void SetUp() override { victim.post(0); }
  // It went in, nothing came of it, and what is sent properly arrives.
  void expect_untouched(uint64_t DatagramEndpoint::Drops::*counter, uint64_t times) {
    EXPECT_TRUE(victim.until([&] { return victim.drops().*counter >= times; }));
    {
      const EngineGuard guard(*victim.engine);  // the control thread polls, too
      EXPECT_EQ(victim.drops().*counter, times);
      EXPECT_TRUE(victim.cq.empty());
      for (const char c : victim.memory[0]) EXPECT_EQ(c, 0);
    }
    ASSERT_TRUE(neighbour.send(to_victim, "proper"));
    ASSERT_TRUE(victim.received());
    EXPECT_STREQ(victim.memory[0], "proper");
  }
  const Address& at() const { return victim.endpoint->address(); }

  End victim, neighbour;
  const uint64_t to_victim = neighbour.insert(victim);
  Stranger stranger;
};

TEST_F(DatagramHostile, a_sound_datagram_of_a_stranger_arrives_from_nobody_known) {
  stranger.send(at(), Stranger::sound(5));
  ASSERT_TRUE(victim.received());
  EXPECT_EQ(victim.cq.front().len, 5u);
  EXPECT_EQ(victim.cq.front().source, qp::kNoSource);
}

TEST_F(DatagramHostile, every_cut_of_a_datagram_is_dropped) {
  const auto sound = Stranger::sound(10);
  for (size_t n = 0; n < sound.size(); ++n) stranger.send(at(), std::span(sound).first(n));
  expect_untouched(&DatagramEndpoint::Drops::malformed, sound.size());
}

TEST_F(DatagramHostile, whatever_is_longer_than_it_says_is_dropped) {
  auto longer = Stranger::sound(10);
  longer.push_back({});
  stranger.send(at(), longer);
  auto full = Stranger::sound(wire::kDatagramMtu);
  full.resize(full.size() + 1);
  stranger.send(at(), full);
  full.resize(65'000);
  stranger.send(at(), full);
  expect_untouched(&DatagramEndpoint::Drops::malformed, 3);
}

TEST_F(DatagramHostile, every_changed_byte_of_the_header_is_noticed) {
  const auto sound = Stranger::sound(10);
  uint64_t sent = 0;
  for (size_t i = 0; i < wire::kMessageHeaderBytes; ++i) {
    auto changed = sound;
    changed[i] ^= std::byte{0x10};
    stranger.send(at(), changed);
    ++sent;
  }
  EXPECT_TRUE(
      victim.until([&] { return victim.drops().malformed + victim.drops().not_for_us == sent; }));
  EXPECT_EQ(victim.drops().not_for_us, 4u) << "for a group that it does not say";
  expect_untouched(&DatagramEndpoint::Drops::no_receive, 0);
}

TEST_F(DatagramHostile, a_group_is_no_way_in_to_one_endpoint_nor_the_other_way_round) {
  const Address group = Address::v4(0xefc1'0000 | (std::random_device{}() & 0xffff), 5000);
  auto joined = victim.endpoint->groups().join(group, {});
  ASSERT_TRUE(joined.ok());
  Address place = group;
  place.port = wire::kGroupPort;
  const int loopback = static_cast<int>(htonl(INADDR_LOOPBACK));
  ASSERT_EQ(::setsockopt(stranger.fd.get(), IPPROTO_IP, IP_MULTICAST_IF, &loopback, 4), 0);
  stranger.send(at(), Stranger::sound(5, group));  // for a group, but to one
  stranger.send(place, Stranger::sound(5));        // for one, but to a group
  Address other = group;
  other.port = 5001;
  stranger.send(place, Stranger::sound(5, other));
  expect_untouched(&DatagramEndpoint::Drops::not_for_us, 3);
  {
    const EngineGuard guard(*victim.engine);
    victim.cq.pop();
  }
  victim.post(1);
  stranger.send(place, Stranger::sound(5, group));
  ASSERT_TRUE(victim.received());
  EXPECT_EQ(victim.cq.front().flags, kGroupFlag);
  victim.endpoint->groups().leave(*joined);
}

TEST_F(DatagramHostile, a_flood_does_not_keep_others_out) {
  const std::vector<std::byte> rubbish(3000, std::byte{0xee});
  uint64_t got = 0;
  for (int i = 0; i < 2000; ++i) {
    stranger.send(at(), rubbish);
    if (i % 100 == 0) {
      ASSERT_TRUE(neighbour.send(to_victim, "proper"));
    }
    const EngineGuard guard(*victim.engine);
    victim.engine->poll();
    if (victim.cq.empty()) continue;
    ++got;
    victim.cq.pop();
    const iovec iov{victim.memory[0], 64};
    ASSERT_TRUE(victim.endpoint->recv({.iov = &iov, .iov_count = 1, .len = 64}));
  }
  victim.until([&] { return !victim.cq.empty() || got >= 20; });
  EXPECT_GE(got + victim.cq.size(), 19u);
}

TEST(DatagramEndpoint, one_that_only_sends_drops_what_comes) {
  End sends(false), other;
  const uint64_t to_sends = other.insert(sends);
  ASSERT_TRUE(other.send(to_sends, "nobody listens"));
  EXPECT_TRUE(sends.until([&] { return sends.drops().no_receive == 1; }));
}

TEST(DatagramEndpoint, a_message_wakes_a_sleeping_engine) {
  End from, to(true, false);  // the control thread does nothing for it
  const uint64_t there = from.insert(to);
  to.post(0);
  {
    const EngineGuard guard(*to.engine);
    while (!to.engine->sleep().prepare()) to.engine->poll();
  }
  ASSERT_TRUE(from.send(there, "wake"));
  pollfd p{to.engine->wakers().sleep_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 5000), 1);
  EXPECT_TRUE(to.received());
}

TEST(DatagramEndpoint, a_port_that_is_taken_is_refused) {
  End first;
  AddressTable addresses;
  EndpointOptions options;
  options.engine = first.engine.get();
  options.addresses = &addresses;
  options.local = first.endpoint->address();
  EXPECT_EQ(DatagramEndpoint::create(options, {}).error(), Errc::addr_in_use);
  options.local = Address::v4(0x0a000001, 1);  // hardly one of this host's
  EXPECT_FALSE(DatagramEndpoint::create(options, {}).ok());
}

TEST(DatagramEndpoint, a_forked_child_holds_no_port_and_opens_none) {
  End here;
  const uint64_t myself = here.insert(here);
  EXPECT_TRUE(aperture::test::holds_in_child([&] {
    const int udp = aperture::test::count_sockets(SOCK_DGRAM);
    EndpointOptions options;
    options.engine = here.engine.get();
    options.addresses = &here.addresses;
    options.local = kLoopback;
    return udp == 0 && DatagramEndpoint::create(options, {}).error() == Errc::not_supported;
  }));
  here.post(0);
  ASSERT_TRUE(here.send(myself, "to myself"));
  EXPECT_TRUE(here.received());
}

}  // namespace
}  // namespace aperture::nic::test
