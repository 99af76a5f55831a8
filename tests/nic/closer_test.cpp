// Descriptors of strangers whose end keeps waiting whoever closes them: nobody waits but a thread
// that has nothing else to do.
#include "nic/closer.hpp"

#include <sys/eventfd.h>
#include <sys/mman.h>

#include <future>

#include "base/value_of.hpp"
#include "nic/eventually.hpp"
#include "nic/side.hpp"
#include "nic/stranger.hpp"

namespace aperture::nic::test {
namespace {

using aperture::test::value_of;

constexpr uid_t kStranger = 4711;
constexpr int kLingers_s = 30;

// A TCP connection with more in it than the other end takes. Whoever is the last to close `sends`
// waits for kLingers_s, or until `takes_none` is closed.
struct Lingering {
  UniqueFd sends, takes_none;

  Lingering() {
    Address at;
    const ParentOnlyFd door = value_of(listen_tcp(loopback_v4(), at));
    UniqueFd to(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_storage name;
    const socklen_t len = at.to_sockaddr(name);
    if (::connect(to.get(), reinterpret_cast<sockaddr*>(&name), len) != 0) ::abort();
    takes_none = UniqueFd(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::vector<char> much(1 << 16);
    while (::send(to.get(), much.data(), much.size(), MSG_DONTWAIT) > 0) {
    }
    const linger waits{1, kLingers_s};
    if (::setsockopt(to.get(), SOL_SOCKET, SO_LINGER, &waits, sizeof waits) != 0) ::abort();
    sends = std::move(to);
  }
};

// The control thread does nothing in the meantime.
class Pause {
 public:
  Pause() {
    ControlThread::instance().value()->post([this] {
      paused_.set_value();
      until_.get_future().wait();
      over_.set_value();
    });
    paused_.get_future().wait();
  }
  ~Pause() {
    until_.set_value();
    over_.get_future().wait();
  }

 private:
  std::promise<void> paused_, until_, over_;
};

// The victim still serves honest peers, and at once.
void expect_awake(Side& victim) {
  const uint64_t began = now_ns();
  Side honest;
  honest.connect(victim);
  EXPECT_TRUE(honest.lane(2000)) << "the control thread waits for a stranger";
  EXPECT_LT(now_ns() - began, 2'000'000'000u);
  EXPECT_TRUE(victim.lane());
}

std::array<std::byte, 3> rubbish() {
  return {std::byte{0xee}, std::byte{0xee}, std::byte{0xee}};
}

TEST(Closer, knows_what_closes_at_once) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]), in(ends[1]);
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd memory(::memfd_create("plain", MFD_CLOEXEC));
  for (const int fd :
       {out.get(), in.get(), event.get(), memory.get(), doorbell(), sealed_segment()})
    EXPECT_TRUE(closes_at_once(fd)) << fd;
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UniqueFd device(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd file(::open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  for (const int fd : {socket.get(), device.get(), file.get(), -1})
    EXPECT_FALSE(closes_at_once(fd)) << fd;
}

TEST(Closer, a_packet_is_asked_for_descriptors_without_taking_it) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  EXPECT_FALSE(next_packet_brings_descriptors(to.get()));
  ASSERT_TRUE(send_packet(from.get(), rubbish(), {}).ok());
  const std::array fds{doorbell()};
  ASSERT_TRUE(send_packet(from.get(), rubbish(), fds).ok());
  EXPECT_FALSE(next_packet_brings_descriptors(to.get()));
  Packet first, second;
  ASSERT_TRUE(receive_packet(to.get(), first).ok());
  EXPECT_EQ(first.fd_count, 0u);
  EXPECT_TRUE(next_packet_brings_descriptors(to.get()));
  ASSERT_TRUE(receive_packet(to.get(), second).ok());
  EXPECT_EQ(second.fd_count, 1u);
}

TEST(Closer, what_no_honest_side_sends_is_not_taken) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  const std::array fds{sealed_segment(), from.get()};
  ASSERT_TRUE(send_packet(from.get(), rubbish(), fds).ok());
  ASSERT_TRUE(send_packet(from.get(), rubbish(), fds).ok());
  Packet strange, trusted;
  EXPECT_EQ(receive_packet(to.get(), strange).error(), Errc::protocol);
  ASSERT_TRUE(receive_packet(to.get(), trusted, Expect::anything).ok());
  EXPECT_EQ(trusted.fd_count, 2u);
}

TEST(Closer, a_socket_that_lingers_keeps_nobody_waiting_who_gets_it_for_a_segment) {
  Side victim;
  RawClient client(victim.address());
  ASSERT_TRUE(client.enter());
  Lingering lingering;
  {
    const Pause pause;
    const std::array fds{lingering.sends.get(), doorbell()};
    ASSERT_TRUE(
        send_packet(client.unix_socket.get(), wire::encode(client.good_open()).view(), fds).ok());
    lingering.sends.reset();  // the victim is the last who has it
  }
  expect_awake(victim);
  EXPECT_TRUE(closed_by_peer(client.unix_socket.get()));
}

// A stranger does as `enters` says, and, while the victim's control thread is paused, sends as
// `sends` does, which may give its own copy of what lingers away. Then the thread goes on.
template <typename Enters, typename Sends>
void expect_awake_beside_stranger(Enters enters, Sends sends) {
  Side victim;
  Stranger stranger(kStranger, [&](Stranger::Line line) {
    RawClient client(victim.address());
    line.say(enters(client) ? 1 : 2);
    line.hear();
    Lingering lingering;
    line.say(sends(client, lingering) ? 1 : 2);
    for (;;) ::pause();
  });
  ASSERT_EQ(stranger.hear(), 1);
  {
    const Pause pause;
    stranger.say(1);
    ASSERT_EQ(stranger.hear(), 1);
  }
  expect_awake(victim);
}

TEST(Closer, nor_whoever_closes_a_connection_in_which_it_lies_unread) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users, and we are not root";
  expect_awake_beside_stranger([](RawClient& client) { return client.enter(); },
                               [](RawClient& client, Lingering& lingering) {
                                 const int fd = client.unix_socket.get();
                                 const std::array fds{lingering.sends.get()};
                                 const bool sent = send_packet(fd, rubbish(), {}).ok() &&
                                                   send_packet(fd, rubbish(), fds).ok();
                                 lingering.sends.reset();
                                 return sent;
                               });
}

// Where the kernel lets it be sent at all: from Linux 6.16 on it need not.
TEST(Closer, nor_whoever_hears_a_knock_that_brings_it) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users, and we are not root";
  expect_awake_beside_stranger([](RawClient& client) { return client.greet() && client.knock(); },
                               [](RawClient& client, Lingering& lingering) {
                                 const std::array fds{lingering.sends.get()};
                                 if (send_packet(client.unix_socket.get(), rubbish(), fds).ok())
                                   lingering.sends.reset();
                                 return true;
                               });
}

// As before Linux 6.16: whoever comes may bring some.
TEST(Closer, nor_whoever_closes_a_door_at_which_it_was_left) {
  const wire::Id128 name = random_id();
  ParentOnlyFd door = value_of(listen_abstract(name));
  ASSERT_TRUE(allow_descriptors(door.get()).ok());
  std::vector<ParentOnlyFd> knocks;
  Lingering lingering;
  for (int i = 0; i < 4; ++i) {
    knocks.push_back(value_of(connect_abstract(name)));
    const std::array fds{lingering.sends.get()};
    ASSERT_TRUE(send_packet(knocks.back().get(), rubbish(), fds).ok());
  }
  ParentOnlyFd heard = value_of(accept_one(door.get()));
  lingering.sends.reset();
  const uint64_t began = now_ns();
  close_listening(std::move(door));
  close_stranger(std::move(heard));
  EXPECT_LT(now_ns() - began, 1'000'000'000u);
  EXPECT_EQ(connect_abstract(name).error(), Errc::refused);
  for (const ParentOnlyFd& knock : knocks) EXPECT_TRUE(closed_by_peer(knock.get()));
}

TEST(Closer, a_user_of_whom_too_much_cannot_be_closed_brings_no_more_and_others_do) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users, and we are not root";
  Side victim;
  Lingering lingering;
  const auto add = [&](uid_t whose, int brings, UniqueFd* last_but_one = nullptr) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd from(ends[0]);
    ParentOnlyFd to{UniqueFd(ends[1])};
    const std::array fds{brings};
    ASSERT_TRUE(send_packet(from.get(), rubbish(), fds).ok());
    if (last_but_one != nullptr) last_but_one->reset();  // before: the last close is theirs
    close_aside(std::move(to), whose);
  };
  add(kStranger, lingering.sends.get(), &lingering.sends);
  const uint64_t began = now_ns();
  for (int i = 0; i < 63; ++i) add(kStranger, doorbell());
  for (int i = 0; i < 200; ++i) add(kStranger + 1, doorbell());
  EXPECT_LT(now_ns() - began, 2'000'000'000u);
  EXPECT_TRUE(is_behind_with(kStranger));
  EXPECT_TRUE(eventually([] { return !is_behind_with(kStranger + 1); }));
  const auto verdict_of = [&](uid_t uid) {
    Stranger asks(uid, [&](Stranger::Line line) {
      RawClient client(victim.address());
      line.say(
          static_cast<uint16_t>(client.greet() ? 1 + static_cast<int>(client.answer.verdict) : 0));
    });
    return static_cast<int>(asks.hear()) - 1;
  };
  EXPECT_EQ(verdict_of(kStranger), static_cast<int>(wire::Verdict::busy));
  EXPECT_EQ(verdict_of(kStranger + 1), static_cast<int>(wire::Verdict::offered));
  expect_awake(victim);
  lingering.takes_none.reset();  // and the last one is closed
  EXPECT_TRUE(eventually([] { return !is_behind_with(kStranger); }));
  EXPECT_EQ(verdict_of(kStranger), static_cast<int>(wire::Verdict::offered));
}

}  // namespace
}  // namespace aperture::nic::test
