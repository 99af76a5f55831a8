// Multicast: fi_join, fi_close and fi_mc_addr of fi_cm(3), FI_MULTICAST of fi_msg(3) and
// fi_endpoint(3). Groups are those of IP multicast, on the loopback interface.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/system_call.hpp"
#include "doors/dgram.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kCaps = FI_MSG | FI_MULTICAST | FI_SOURCE;

// A group of our own, so that several runs on one host do not hear each other.
sockaddr_in some_group(uint16_t port = 5000) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(
      0xef000000u | static_cast<uint32_t>(seed_of(static_cast<uint64_t>(getpid())) & 0xffffff));
  return at;
}

// A datagram endpoint with an event queue.
struct Member {
  explicit Member(uint64_t caps = kCaps, uint64_t tx_op_flags = 0, bool enable = true)
      : node([&] {
          Options options = dgram_options(caps);
          options.tx_op_flags = tx_op_flags;
          options.enable = false;
          return options;
        }()) {
    fi_eq_attr attr{.wait_obj = FI_WAIT_UNSPEC};
    eq = DOOR_MADE(fi_eq_open, node.fabric(), &attr);
    DOOR(fi_ep_bind(node.ep(), &eq->fid, 0));
    if (enable) DOOR(fi_enable(node.ep()));
  }
  ~Member() {
    mc.reset();
    node.close_endpoint();
  }

  int join(const sockaddr_in& group, uint64_t flags = 0) {
    fid_mc* joined = nullptr;
    const int rc = fi_join(node.ep(), &group, flags, &joined, this);
    mc.reset(joined);
    return rc;
  }
  // FI_JOIN_COMPLETE of `mc`.
  bool is_told() {
    uint32_t event = 0;
    fi_eq_entry entry{};
    return fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0) == sizeof entry &&
           event == FI_JOIN_COMPLETE && entry.fid == &mc->fid && entry.context == this;
  }
  bool is_told_nothing() {
    uint32_t event = 0;
    fi_eq_entry entry{};
    return fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0) == -FI_EAGAIN;
  }
  int64_t send(const char* text, uint64_t flags = FI_MULTICAST | FI_COMPLETION) {
    return send_to(fi_mc_addr(mc.get()), text, flags);
  }
  int64_t send_to(fi_addr_t addr, const char* text, uint64_t flags = FI_MULTICAST | FI_COMPLETION) {
    const iovec iov{const_cast<char*>(text), std::strlen(text)};
    Op op;
    const fi_msg msg{&iov, nullptr, 1, addr, &op, 0};
    const int64_t rc = fi_sendmsg(node.ep(), &msg, flags);
    if (rc != 0) return rc;
    const Completion c = node.wait(&op);
    EXPECT_EQ(c.flags, FI_SEND | FI_MSG | (flags & FI_MULTICAST));
    return c.err;
  }

  Node node;
  Fid<fid_eq> eq;
  Fid<fid_mc> mc;
};

bool hears(Receiving& r, const char* text) {
  const Completion c = r.wait(5000);
  return c.err == 0 && c.len == std::strlen(text) && std::memcmp(r.memory.data(), text, c.len) == 0;
}

TEST(Multicast, a_group_reaches_all_who_have_joined_and_nobody_else) {
  Member a, b, outside;
  const sockaddr_in group = some_group();
  for (Member* m : {&a, &b}) {
    ASSERT_EQ(m->join(group), 0);
    EXPECT_TRUE(m->is_told());
  }
  const fi_addr_t from_a = b.node.insert(a.node.name());
  Receiving at_a(a.node, 64), at_b(b.node, 64), at_outside(outside.node, 64);
  ASSERT_EQ(a.send("to all"), 0);
  const Completion c = at_b.wait();
  ASSERT_EQ(c.err, 0);
  EXPECT_EQ(c.flags, FI_RECV | FI_MSG | FI_MULTICAST);
  EXPECT_EQ(c.source, from_a);
  EXPECT_EQ(c.len, 6u);
  EXPECT_TRUE(hears(at_a, "to all")) << "who sends is a member too";
  EXPECT_TRUE(outside.node.quiet(50));
  Receiving alone(b.node, 64);
  ASSERT_EQ(a.send_to(a.node.insert(b.node.name()), "to one", FI_COMPLETION), 0);
  EXPECT_EQ(alone.wait().flags, FI_RECV | FI_MSG);
  EXPECT_TRUE(a.node.quiet()) << "one copy of each";
}

TEST(Multicast, is_that_of_the_network) {
  Member a;
  const sockaddr_in group = some_group();
  ASSERT_EQ(a.join(group, FI_SEND), 0);
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
  sockaddr_in place = group;
  place.sin_port = htons(4791);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&place), sizeof place), 0);
  const ip_mreq wish{group.sin_addr, {htonl(INADDR_LOOPBACK)}};
  ASSERT_EQ(::setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &wish, sizeof wish), 0);
  ASSERT_EQ(a.send("all hear"), 0);
  pollfd ready{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 5000), 1);
  char bytes[128];
  const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
  ASSERT_GT(n, 8);
  EXPECT_EQ(std::string(bytes + n - 8, 8), "all hear");
  ::close(fd);
}

TEST(Multicast, groups_of_one_ip_are_told_apart_by_their_ports) {
  Member a, same, other;
  ASSERT_EQ(a.join(some_group(5000), FI_SEND), 0);
  ASSERT_EQ(same.join(some_group(5000)), 0);
  ASSERT_EQ(other.join(some_group(5001)), 0);
  Receiving r(same.node, 64), never(other.node, 64);
  ASSERT_EQ(a.send("hello"), 0);
  EXPECT_TRUE(hears(r, "hello"));
  EXPECT_TRUE(other.node.quiet(50));
}

TEST(Multicast, members_may_send_or_receive_only) {
  Member sends, receives;
  const sockaddr_in group = some_group();
  ASSERT_EQ(sends.join(group, FI_SEND), 0);
  ASSERT_EQ(receives.join(group, FI_RECV), 0);
  Receiving r(receives.node, 64), never(sends.node, 64);
  ASSERT_EQ(sends.send("hello"), 0);
  EXPECT_TRUE(hears(r, "hello"));
  EXPECT_TRUE(sends.node.quiet(50));
  EXPECT_EQ(receives.send("no"), -FI_EACCES);
}

TEST(Multicast, address_and_flag_go_together) {
  Member a;
  ASSERT_EQ(a.join(some_group()), 0);
  const fi_addr_t myself = a.node.insert(a.node.name());
  EXPECT_EQ(a.send("x", FI_COMPLETION), -FI_EINVAL) << "its address, but not the flag";
  EXPECT_EQ(a.send_to(myself, "x"), -FI_EINVAL) << "the flag, but not its address";
  EXPECT_EQ(a.send_to(fi_mc_addr(a.mc.get()) + 1, "x"), -FI_EINVAL) << "of no group";
  const fi_addr_t group = fi_mc_addr(a.mc.get());
  Op op;
  EXPECT_EQ(fi_send(a.node.ep(), "x", 1, nullptr, group, &op), -FI_EINVAL);
  EXPECT_EQ(fi_inject(a.node.ep(), "x", 1, group), -FI_EINVAL);
  EXPECT_TRUE(a.node.quiet());
}

TEST(Multicast, op_flags_make_every_address_one_of_a_group) {
  Member a(kCaps, FI_MULTICAST), b;
  const sockaddr_in group = some_group();
  ASSERT_EQ(a.join(group, FI_SEND), 0);
  ASSERT_EQ(b.join(group), 0);
  const fi_addr_t to_group = fi_mc_addr(a.mc.get());
  for (int i = 0; i < 3; ++i) {
    Receiving r(b.node, 64);
    const int64_t rc = i == 0 ? a.node.run(fi_send, "hello", size_t{5}, nullptr, to_group)
                       : i == 1
                           ? a.node.post(fi_inject, "hello", size_t{5}, to_group)
                           : a.node.post(fi_injectdata, "hello", size_t{5}, uint64_t{1}, to_group);
    ASSERT_EQ(rc, 0);
    EXPECT_TRUE(hears(r, "hello"));
  }
  const fi_addr_t to_b = a.node.insert(b.node.name());
  EXPECT_EQ(fi_inject(a.node.ep(), "x", 1, to_b), -FI_EINVAL);
  EXPECT_EQ(a.send_to(to_b, "x", FI_COMPLETION), 0) << "the flags of a call are its own";
}

TEST(Multicast, who_has_left_hears_nothing_and_sends_nothing) {
  Member a, b;
  const sockaddr_in group = some_group();
  ASSERT_EQ(a.join(group, FI_SEND), 0);
  ASSERT_EQ(b.join(group), 0);
  const fi_addr_t left = fi_mc_addr(b.mc.get());
  EXPECT_EQ(fi_close(&b.node.ep()->fid), -FI_EBUSY) << "it is a member";
  Receiving r(b.node, 64);
  b.mc.reset();
  ASSERT_EQ(a.send("anybody?"), 0);
  EXPECT_TRUE(b.node.quiet(50));
  EXPECT_EQ(b.send_to(left, "x"), -FI_EINVAL);
  EXPECT_TRUE(b.is_told_nothing()) << "no event of it is left";
  ASSERT_EQ(b.join(group), 0);
  ASSERT_EQ(a.send("again"), 0);
  EXPECT_TRUE(hears(r, "again"));
}

TEST(Multicast, one_of_two_memberships_may_end) {
  Member a, b;
  const sockaddr_in group = some_group();
  ASSERT_EQ(a.join(group, FI_SEND), 0);
  ASSERT_EQ(b.join(group), 0);
  fid_mc* second = nullptr;
  ASSERT_EQ(fi_join(b.node.ep(), &group, FI_RECV, &second, nullptr), 0);
  b.mc.reset();
  const Fid<fid_mc> owner(second);
  Receiving r(b.node, 64), never(b.node, 64);
  ASSERT_EQ(a.send("still here"), 0);
  EXPECT_TRUE(hears(r, "still here"));
  EXPECT_TRUE(b.node.quiet()) << "one copy";
}

TEST(Multicast, joins_that_cannot_be_are_refused) {
  const sockaddr_in group = some_group();
  fid_mc* mc = nullptr;
  {
    Member m;
    sockaddr_in single = group;
    single.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(m.join(single), -FI_EINVAL) << "no multicast address";
    EXPECT_EQ(m.join(group, FI_READ), -FI_EBADFLAGS);
    EXPECT_EQ(fi_join(m.node.ep(), nullptr, 0, &mc, nullptr), -FI_EINVAL);
    EXPECT_EQ(fi_join(m.node.ep(), &group, 0, nullptr, nullptr), -FI_EINVAL);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_addr.s6_addr[0] = 0xff;
    EXPECT_EQ(fi_join(m.node.ep(), &six, 0, &mc, nullptr), -FI_EINVAL);
    EXPECT_TRUE(m.is_told_nothing());
  }
  Member without(FI_MSG);
  EXPECT_EQ(without.join(group), -FI_EOPNOTSUPP);
  EXPECT_EQ(without.send_to(0, "x"), -FI_EBADFLAGS);
  Member sleeping(kCaps, 0, false);
  EXPECT_EQ(sleeping.join(group), -FI_EOPBADSTATE);
  Member sender(FI_MSG | FI_MULTICAST | FI_SEND);
  EXPECT_EQ(sender.join(group, FI_RECV), -FI_EOPNOTSUPP);
  EXPECT_EQ(sender.join(group), 0);
  Node no_events(dgram_options(kCaps));
  EXPECT_EQ(fi_join(no_events.ep(), &group, 0, &mc, nullptr), -FI_ENOEQ);
  Node reliable;
  EXPECT_EQ(fi_join(reliable.ep(), &group, 0, &mc, nullptr), -FI_EOPNOTSUPP);
  EXPECT_EQ(mc, nullptr);
}

TEST(Multicast, a_forked_child_is_turned_away_and_takes_nothing_with_it) {
  Member a;
  const sockaddr_in group = some_group();
  ASSERT_EQ(a.join(group), 0);
  Receiving r(a.node, 64);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(5);
    fid_mc* mc = nullptr;
    Op op;
    const fi_addr_t to_group = fi_mc_addr(a.mc.get());
    const bool turned_away =
        fi_join(a.node.ep(), &group, 0, &mc, nullptr) == -FI_EOPNOTSUPP &&
        fi_send(a.node.ep(), "x", 1, nullptr, to_group, &op) == -FI_EOPNOTSUPP &&
        fi_recv(a.node.ep(), &op, 1, nullptr, 0, &op) == -FI_EOPNOTSUPP &&
        fi_close(&a.mc->fid) == 0 && fi_close(&a.node.ep()->fid) == 0;
    ::_exit(turned_away ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(a.send("still a member"), 0);
  EXPECT_TRUE(hears(r, "still a member"));
}

// What fi_join had written when its event came to the queue, whose descriptor is written to then.
thread_local fid_mc* const* watched = nullptr;  // null: nothing is
thread_local fid_mc* at_event = nullptr;

// fi_cm(3): the event is that the join is over, so whoever reads it may close what it names.
TEST(Multicast, a_thread_that_hears_of_a_join_has_what_it_returns_and_may_close_it) {
  Member a;
  const sockaddr_in group = some_group();
  for (int i = 0; i < 20; ++i) {
    std::thread closer([&] {
      uint32_t event = 0;
      fi_eq_entry entry{};
      ASSERT_EQ(fi_eq_sread(a.eq.get(), &event, &entry, sizeof entry, 20000, 0),
                static_cast<ssize_t>(sizeof entry));
      EXPECT_EQ(fi_close(entry.fid), 0);
    });
    fid_mc* joined = nullptr;
    watched = &joined;
    EXPECT_EQ(fi_join(a.node.ep(), &group, 0, &joined, nullptr), 0);
    watched = nullptr;
    closer.join();
    EXPECT_NE(joined, nullptr);
    EXPECT_EQ(at_event, joined);
  }
}

TEST(Multicast, addresses_are_not_for_address_vectors) {
  for (const fi_ep_type type : {FI_EP_DGRAM, FI_EP_RDM}) {
    Options options = dgram_options();
    options.type = type;
    Node node(options);
    const sockaddr_in group = some_group();
    fi_addr_t addr = 0;
    EXPECT_EQ(fi_av_insert(node.av(), &group, 1, &addr, 0, nullptr), 0);
    EXPECT_EQ(addr, FI_ADDR_NOTAVAIL);
  }
}

}  // namespace
}  // namespace aperture::doors

long aperture::test::on_system_call(const SystemCall& call) noexcept {
  if (call.number == SYS_write && doors::watched != nullptr) doors::at_event = *doors::watched;
  return call.pass_on();
}
