// What processes of other users may take of ours: bounded for each user, and never so much that the
// next one finds nothing. Hostile input 34 and its like.
#include "nic/shares.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "nic/child_process.hpp"
#include "nic/raw_client.hpp"
#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

TEST(Shares, each_user_gets_at_most_half_of_what_the_others_leave) {
  Shares shares(64);
  std::vector<std::unique_ptr<Shares::Share>> greedy;
  for (uid_t user = 1; user <= 5; ++user) {
    greedy.push_back(std::make_unique<Shares::Share>(shares, user));
    size_t got = 0;
    while (greedy.back()->take(1)) ++got;
    EXPECT_EQ(got, size_t{64} >> user) << user;
  }
  greedy.erase(greedy.begin());  // gives all of it back
  Shares::Share next(shares, 9);
  EXPECT_TRUE(next.take(17));
  EXPECT_FALSE(next.take(1));
}

TEST(Shares, two_processes_of_a_user_have_one_share) {
  Shares shares(64);
  Shares::Share one(shares, 1), other(shares, 1);
  EXPECT_TRUE(one.take(20));
  EXPECT_FALSE(other.take(13));
  EXPECT_TRUE(other.take(12));
}

size_t descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator{}));
}

// A process of another user that opens lane after lane, each in a segment of its own, and closes
// none. Exits with how many it got, up to 250.
[[noreturn]] void take_everything(const Address& victim) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::setresgid(4711, 4711, 4711) != 0 || ::setresuid(4711, 4711, 4711) != 0) ::_exit(251);
  Address own = loopback_v4();
  const auto listening = listen_tcp(own, own);  // the source must be its user's
  auto segment = link::shm::Segment::create();
  RawClient client(victim);
  client.hello.source = own;
  if (!listening.ok() || !segment.ok() || !client.greet() || !client.knock() ||
      !client.join(client.answer.nonce)) {
    ::_exit(252);
  }
  int lanes = 0;
  for (uint32_t number = 1; number <= 600; ++number) {
    if (number != 1) {
      RawClient ticket(victim);
      ticket.hello = client.hello;
      if (!ticket.greet()) break;
      client.answer = ticket.answer;
    }
    auto open = client.good_open();
    open.source = own;
    open.segment = Wild<uint32_t>(number);
    open.attempt = Wild<uint32_t>(number);
    const auto said = client.open(open, {(*segment)->fd()});
    if (!said) break;
    if (!said->accepted) break;
    ++lanes;
  }
  std::printf("a hostile process got %d lanes\n", lanes);
  std::fflush(stdout);
  ::kill(::getpid(), SIGSTOP);  // holds all of it until the test is over
  ::_exit(0);
}

TEST(Hostile, a_process_of_another_user_cannot_take_all_descriptors) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs processes of other users";
  constexpr size_t kLimit = 256;
  rlimit few{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &few), 0);
  few.rlim_cur = kLimit;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);  // before first contact looks
  Side victim;
  const size_t at_first = descriptors();
  const pid_t hostile = ::fork();
  if (hostile == 0) take_everything(victim.address());
  int status = 0;
  ASSERT_EQ(::waitpid(hostile, &status, WUNTRACED), hostile);
  ASSERT_TRUE(WIFSTOPPED(status)) << WEXITSTATUS(status);
  EXPECT_LT(descriptors() - at_first, kLimit / 4 + 8);
  // another user's process still finds its place, and so does one of ours
  for (const char* user : {"4712", "0"}) {
    ChildProcess honest(Environment{{"APERTURE_TEST_UID", user}});
    honest.new_endpoint();
    const uint64_t began = now_ns();
    honest.tell("connect " + std::to_string(victim.address().port));
    EXPECT_EQ(honest.ask("lane").substr(0, 2), "up") << user;
    std::printf("user %s connected in %.1f ms\n", user,
                static_cast<double>(now_ns() - began) / 1e6);
  }
  ::kill(hostile, SIGKILL);
  ::waitpid(hostile, nullptr, 0);
}

}  // namespace
}  // namespace aperture::nic::test
