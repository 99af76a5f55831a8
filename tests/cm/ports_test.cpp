// Ports: spaces of their own, who holds one, who may share it, and names that peers have made up.
#include "cm/ports.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "cm/both_sides.hpp"
#include "nic/host_identity.hpp"

namespace aperture::cm::test {
namespace {

constexpr PortSpace kSpaces[] = {PortSpace::tcp, PortSpace::udp, PortSpace::ipoib, PortSpace::ib};
constexpr PortOptions kReuse{true, false};

Address loopback(uint16_t port) {
  return Address::v4(INADDR_LOOPBACK, port);
}
Address any(uint16_t port) {
  return Address::v4(INADDR_ANY, port);
}
Errc error_of(PortSpace space, const Address& at, const PortOptions& options = {}) {
  return Port::take(space, at, options).error();
}

// What the program itself has: a socket of TCP or UDP at every address.
UniqueFd bind_socket(int type, uint16_t port) {
  UniqueFd fd(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
  sockaddr_storage sa;
  const socklen_t len = any(port).to_sockaddr(sa);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&sa), len) != 0) fd.reset();
  if (fd && type == SOCK_STREAM && ::listen(fd.get(), 1) != 0) fd.reset();
  return fd;
}

TEST(CmPorts, tcp_and_udp_have_their_numbers_for_themselves_before_and_after) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const UniqueFd before = bind_socket(type, 0);
    const uint16_t number = nic::local_address(before.get()).port;
    for (const PortSpace space : kSpaces) {
      auto port = Port::take(space, any(number), {});
      ASSERT_TRUE(port.ok());
      EXPECT_TRUE(port->listen().ok());
    }
  }
  for (const PortSpace space : kSpaces) {
    // another program of this host may have one of them, but not one after the other
    bool both = false;
    for (int tries = 0; tries < 10 && !both; ++tries) {
      auto port = Port::take(space, any(0), {});
      ASSERT_TRUE(port.ok());
      const auto sockets = port->listen();
      both = bind_socket(SOCK_STREAM, port->bound().port) &&
             bind_socket(SOCK_DGRAM, port->bound().port);
    }
    EXPECT_TRUE(both);
  }
}

TEST(CmPorts, the_spaces_do_not_meet_and_within_one_a_port_is_taken_once) {
  const Port first = *Port::take(PortSpace::tcp, loopback(0), {});
  const Address at = first.bound();
  for (const PortSpace space : kSpaces) {
    EXPECT_EQ(error_of(space, at), space == PortSpace::tcp ? Errc::addr_in_use : Errc::ok);
  }
}

TEST(CmPorts, a_port_is_free_again_when_its_holder_lets_go) {
  Address at;
  {
    Port first = *Port::take(PortSpace::tcp, any(0), {});
    at = first.bound();
    const auto sockets = first.listen();
    EXPECT_EQ(error_of(PortSpace::tcp, loopback(at.port)), Errc::addr_in_use);
  }
  EXPECT_EQ(error_of(PortSpace::tcp, at), Errc::ok);
}

TEST(CmPorts, a_port_can_listen_again_once_what_listened_is_gone_and_not_before) {
  Port port = *Port::take(PortSpace::tcp, any(0), {});
  {
    const auto sockets = port.listen();
    ASSERT_TRUE(sockets.ok());
    EXPECT_EQ(port.listen().error(), Errc::addr_in_use);
  }
  EXPECT_TRUE(port.listen().ok());
}

TEST(CmPorts, a_wildcard_meets_each_address_of_the_device_and_every_other_wildcard) {
  for (const bool wildcard_first : {false, true}) {
    for (Address gid : nic::host_addresses()) {
      Address wild = gid.is_v4() ? any(0) : Address{};
      Address& first = wildcard_first ? wild : gid;
      Address& second = wildcard_first ? gid : wild;
      const Port held = *Port::take(PortSpace::tcp, first, {});
      second.port = held.bound().port;
      EXPECT_EQ(error_of(PortSpace::tcp, second), Errc::addr_in_use) << second.text();
    }
  }
  const Port both = *Port::take(PortSpace::tcp, Address{}, {});
  EXPECT_EQ(error_of(PortSpace::tcp, any(both.bound().port)), Errc::addr_in_use);
  const Port six = *Port::take(PortSpace::tcp, Address{}, {false, true});
  EXPECT_EQ(error_of(PortSpace::tcp, any(six.bound().port)), Errc::ok);
}

TEST(CmPorts, another_process_has_it_until_it_ends_however_it_ends) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Port port = *Port::take(PortSpace::udp, any(0), {});
    const uint16_t number = port.bound().port;
    if (::write(fds[1], &number, sizeof number) == sizeof number) ::pause();
    ::_exit(1);
  }
  uint16_t number = 0;
  ASSERT_EQ(::read(fds[0], &number, sizeof number), static_cast<ssize_t>(sizeof number));
  EXPECT_EQ(error_of(PortSpace::udp, loopback(number)), Errc::addr_in_use);
  EXPECT_TRUE(bind_socket(SOCK_DGRAM, number));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(error_of(PortSpace::udp, loopback(number)), Errc::ok);
  ::close(fds[0]);
  ::close(fds[1]);
}

TEST(CmPorts, those_who_share_a_port_do_so_with_each_other_alone_and_one_listens) {
  Port first = *Port::take(PortSpace::tcp, any(0), kReuse);
  const Address at = first.bound();
  auto second = Port::take(PortSpace::tcp, at, kReuse);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(error_of(PortSpace::tcp, at), Errc::addr_in_use);
  {
    const auto sockets = first.listen();
    ASSERT_TRUE(sockets.ok());
    EXPECT_EQ(second->listen().error(), Errc::addr_in_use);
    EXPECT_EQ(error_of(PortSpace::tcp, at, kReuse), Errc::addr_in_use);
  }
  EXPECT_TRUE(second->listen().ok());
  const Port alone = *Port::take(PortSpace::tcp, any(0), {});
  EXPECT_EQ(error_of(PortSpace::tcp, alone.bound(), kReuse), Errc::addr_in_use);
}

TEST(CmPorts, who_shares_a_port_is_known_by_it_and_can_connect_more_than_once) {
  RawPeer server;
  Port shared = *Port::take(PortSpace::tcp, loopback(0), kReuse);
  for (int i = 0; i < 2; ++i) {
    const auto client = shared.connect(shared.bound(), server.address);
    ASSERT_TRUE(client.ok());
    server.accept();
    const auto from = connected_from(server.fd(), PortSpace::tcp);
    ASSERT_TRUE(from.ok());
    EXPECT_EQ(from.value(), shared.bound());
    EXPECT_EQ(connected_from(server.fd(), PortSpace::udp).error(), Errc::addr_not_avail);
  }
}

TEST(CmPorts, addresses_that_are_no_host_of_ours_are_not_reached_and_connect_from_nowhere) {
  const Address elsewhere = Address::v4(0xcb007109, 7471);  // 203.0.113.9
  Port port = *Port::take(PortSpace::tcp, loopback(0), {});
  // somebody has the name of that address here: it is not asked
  Port squatter = *Port::take(PortSpace::tcp, elsewhere, {});
  EXPECT_EQ(port.connect(port.bound(), elsewhere).error(), Errc::unreachable);
  RawPeer server;
  const auto client = squatter.connect(elsewhere, server.address);
  ASSERT_TRUE(client.ok());
  server.accept();
  EXPECT_EQ(connected_from(server.fd(), PortSpace::tcp).error(), Errc::addr_not_avail);
}

TEST(CmPorts, a_forked_child_keeps_no_port) {
  ASSERT_TRUE(guard_against_fork());
  Address at;
  pid_t child;
  {
    const Port port = *Port::take(PortSpace::tcp, loopback(0), {});
    at = port.bound();
    child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  Errc error = Errc::addr_in_use;
  for (int i = 0; i < 1000 && error == Errc::addr_in_use; ++i) {  // until the child has run at all
    error = error_of(PortSpace::tcp, at);
    ::usleep(1000);
  }
  EXPECT_EQ(error, Errc::ok);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

// --- names ---

std::optional<PortName> parsed(const std::string& text) {
  sockaddr_un sa{};
  sa.sun_family = AF_UNIX;
  std::memcpy(sa.sun_path + 1, text.data(), text.size());
  return PortName::parse(sa,
                         static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size()));
}

TEST(CmPortName, what_is_printed_is_read_again) {
  Address six;
  for (int i = 0; i < 16; ++i) six.ip[i] = static_cast<uint8_t>(0xf0 + i);
  six.port = 65535;
  six.index = Port::kShares;
  for (const PortSpace space : kSpaces) {
    for (const Address& a : {loopback(1), any(7471), Address{}, six}) {
      sockaddr_un sa;
      const socklen_t len = PortName{space, a}.to_sockaddr(sa);
      const auto name = PortName::parse(sa, len);
      ASSERT_TRUE(name.has_value());
      EXPECT_EQ(*name, (PortName{space, a}));
    }
  }
  EXPECT_TRUE(parsed("aperture/rdma_cm/tcp/127.0.0.1:7471").has_value());
}

TEST(CmPortName, what_would_not_be_printed_so_is_no_name) {
  for (const char* text : {"",
                           "aperture/rdma_cm/",
                           "aperture/rdma_cm/tcp",
                           "aperture/rdma_cm/tcp/",
                           "aperture/rdma_cm/sctp/127.0.0.1:1",
                           "aperture/rdma_cm/tcp/127.0.0.1",
                           "aperture/rdma_cm/tcp/127.0.0.1:",
                           "aperture/rdma_cm/tcp/127.0.0.1:65536",
                           "aperture/rdma_cm/tcp/127.0.0.1:01",
                           "aperture/rdma_cm/tcp/127.0.0.1:-1",
                           "aperture/rdma_cm/tcp/127.0.0.1:1/",
                           "aperture/rdma_cm/tcp/127.0.0.1:1/0",
                           "aperture/rdma_cm/tcp/127.0.0.1:1/256",
                           "aperture/rdma_cm/tcp/127.0.0.1:1x",
                           "aperture/rdma_cm/tcp/127.1:1",
                           "aperture/rdma_cm/tcp/[::ffff:127.0.0.1]:1",
                           "aperture/rdma_cm/tcp/[0:0::1]:1",
                           "aperture/rdma_cm/tcp/[::1:1",
                           "aperture/rdma_cm/tcp/::1:1",
                           "Aperture/rdma_cm/tcp/127.0.0.1:1"}) {
    EXPECT_FALSE(parsed(text).has_value()) << text;
  }
  sockaddr_un sa{};
  sa.sun_family = AF_UNIX;
  EXPECT_FALSE(PortName::parse(sa, sizeof(sa_family_t)).has_value());  // an unbound socket
  EXPECT_FALSE(PortName::parse(sa, sizeof sa).has_value());
}

}  // namespace
}  // namespace aperture::cm::test
