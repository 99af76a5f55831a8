// What processes of other users may take of ours: bounded for each user, and never so much that the
// next one finds nothing. Hostile input 34 and its like.
#include "nic/shares.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "nic/child_process.hpp"
#include "nic/raw_client.hpp"
#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

TEST(Shares, each_user_gets_at_most_half_of_what_the_others_leave) {
  Shares shares({64, 6400});
  std::vector<std::unique_ptr<Shares::Share>> greedy;
  for (uid_t user = 1; user <= 5; ++user) {
    greedy.push_back(std::make_unique<Shares::Share>(shares, user));
    size_t got = 0;
    while (greedy.back()->take({1, 0})) ++got;
    EXPECT_EQ(got, size_t{64} >> user) << user;
  }
  greedy.erase(greedy.begin());  // gives all of it back
  Shares::Share next(shares, 9);
  EXPECT_TRUE(next.take({17, 0}));
  EXPECT_FALSE(next.take({1, 0}));
}

TEST(Shares, two_processes_of_a_user_have_one_share) {
  Shares shares({64, 6400});
  Shares::Share one(shares, 1), other(shares, 1);
  EXPECT_TRUE(one.take({20, 0}));
  EXPECT_FALSE(other.take({13, 0}));
  EXPECT_TRUE(other.take({12, 0}));
}

TEST(Shares, mapped_memory_is_shared_out_likewise) {
  Shares shares({64, 6400});
  Shares::Share one(shares, 1), other(shares, 2);
  EXPECT_TRUE(one.take({1, 3200}));
  EXPECT_FALSE(one.take({1, 1})) << "more than half";
  EXPECT_TRUE(one.take({1, 0})) << "its descriptors are another matter";
  EXPECT_FALSE(other.take({1, 1601})) << "more than half of what is left";
  EXPECT_TRUE(shares.has_room(2, {31, 1600}));
  EXPECT_FALSE(shares.has_room(2, {32, 1600}));
  EXPECT_TRUE(other.take({1, 1600}));
}

size_t descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator{}));
}

void become_another_user() {
  if (::setresgid(4711, 4711, 4711) != 0 || ::setresuid(4711, 4711, 4711) != 0) ::_exit(251);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the change of user would take it back
}

// A process of another user that opens lane after lane, each in a segment of its own, and closes
// none. Exits with how many it got, up to 250.
[[noreturn]] void take_everything(const Address& victim) {
  become_another_user();
  // The source must be its user's; and one that comes after the victim's is told that it crosses as
  // soon as it has a lane (AcceptingSide::is_first).
  Address own = victim;
  auto listening = Result<ParentOnlyFd>(Errc::addr_in_use);
  while (!listening.ok() && --own.port != 0) listening = listen_tcp(own, own);
  auto segment = link::shm::Segment::create();
  RawClient client(victim);
  client.hello.source = own;
  if (!listening.ok() || !segment.ok() || !client.greet() || !client.knock() ||
      !client.join(client.answer.nonce)) {
    ::_exit(252);
  }
  int lanes = 0;
  for (uint32_t number = 1; number <= 600; ++number) {
    std::optional<RawClient> ticket;  // good for as long as its connection stands
    if (number != 1) {
      ticket.emplace(victim);
      ticket->hello = client.hello;
      if (!ticket->greet()) break;
      client.answer = ticket->answer;
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

// A child that has stopped where it holds what it has got, until this goes.
class Stopped {
 public:
  explicit Stopped(pid_t pid) : pid_(pid) {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status)) << WEXITSTATUS(status);
  }
  ~Stopped() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Stopped(const Stopped&) = delete;

 private:
  const pid_t pid_;
};

// First contact looks at the limits of its process once: so in a process of its own.
TEST(Hostile, a_process_of_another_user_cannot_take_all_memory_that_may_be_mapped) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs processes of other users";
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the memory that the sanitizer maps is above the limit";
#endif
  constexpr rlim_t kMay = rlim_t{2} << 30;
  const auto outcome = [] {
    const rlimit limit{kMay, RLIM_INFINITY};
    ::setrlimit(RLIMIT_AS, &limit);
    Side victim;
    const pid_t hostile = ::fork();
    if (hostile == 0) take_everything(victim.address());
    const Stopped holds(hostile);
    const size_t lanes = contact().census().lanes;
    std::printf("it holds %zu segments of %zu MiB\n", lanes, link::shm::Segment::kBytes >> 20);
    if (lanes != kMay / 4 / link::shm::Segment::kBytes) return 1;
    Side honest;  // of our own user, which is not counted
    return honest.lane_to(victim.address()) == nullptr || testing::Test::HasFailure() ? 2 : 0;
  };
  const pid_t alone = ::fork();
  if (alone == 0) {
    const int code = outcome();
    std::fflush(stdout);
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(alone, &status, 0), alone);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: it holds more or less than its share";
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
  const Stopped holds(hostile);
  EXPECT_GT(contact().census().lanes, 20u) << "it has been given what it can take";
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
}

// A process of another user that begins handshake after handshake, four times as many as there may
// be, and holds on to what it is left of them.
[[noreturn]] void begin_many_handshakes(const Address& victim, size_t how_many) {
  become_another_user();
  std::vector<std::unique_ptr<RawClient>> all;
  for (size_t i = 0; i < how_many; ++i) {
    all.push_back(std::make_unique<RawClient>(victim));
    if (i % 2 == 0) all.back()->greet();  // some as far as they come, some without a word
  }
  ::kill(::getpid(), SIGSTOP);
  ::_exit(0);
}

TEST(Hostile, hostile_33_the_handshakes_of_one_user_do_not_end_those_of_another) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs processes of other users";
  constexpr size_t kHandshakes = 32;
  contact().listener_limits.handshakes = kHandshakes;
  Side victim;
  RawClient slow(victim.address());  // is there, and does not hurry
  RawClient answered(victim.address());
  ASSERT_EQ(answered.verdict(), wire::Verdict::offered);
  const pid_t hostile = ::fork();
  if (hostile == 0) begin_many_handshakes(victim.address(), 4 * kHandshakes);
  const Stopped holds(hostile);
  EXPECT_EQ(contact().census().handshakes, kHandshakes);
  EXPECT_EQ(slow.verdict(), wire::Verdict::offered);
  for (RawClient* one : {&slow, &answered}) {
    ASSERT_TRUE(one->knock());
    EXPECT_TRUE(one->join(one->answer.nonce));
  }
  // and among its own kind the oldest makes room, as ever
  std::vector<std::unique_ptr<RawClient>> ours;
  for (size_t i = 0; i < kHandshakes; ++i) {
    ours.push_back(std::make_unique<RawClient>(victim.address()));
  }
  EXPECT_TRUE(closed_by_peer(ours.front()->tcp.get()));
  EXPECT_EQ(ours.back()->verdict(), wire::Verdict::offered);
  EXPECT_EQ(contact().census().handshakes, kHandshakes);
}

// Goes on beginning handshakes, twice as many at once as there may be, and each as far as it comes.
// The pauses leave time to others: this is about the doorway, and not about the scheduler.
[[noreturn]] void go_on_beginning(const Address& victim, size_t at_once) {
  become_another_user();
  std::deque<ParentOnlyFd> open;
  for (uint64_t i = 0;; ++i, ::usleep(2000)) {
    auto tcp = connect_tcp(victim);
    if (!tcp) continue;
    wire::Hello hello = RawClient::hello_to(victim);
    if (i % 2 == 0) (void)send_bytes(tcp->get(), wire::encode(hello));
    open.push_back(*std::move(tcp));
    if (open.size() <= at_once) continue;
    close_without_waiting(open.front().get());
    open.pop_front();
  }
}

TEST(Hostile, hostile_33_a_newcomer_gets_in_beside_twenty_processes_that_go_on_beginning) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs processes of other users";
  constexpr size_t kHandshakes = 32;
  contact().listener_limits.handshakes = kHandshakes;
  Side victim;
  std::vector<pid_t> flood;
  for (int i = 0; i < 20; ++i) {
    flood.push_back(::fork());
    if (flood.back() == 0) go_on_beginning(victim.address(), 2 * kHandshakes);
  }
  for (int ms = 0; ms < 5000 && contact().census().handshakes < kHandshakes; ++ms) ::usleep(1000);
  std::vector<double> took;
  for (int i = 0; i < 10; ++i) {
    ChildProcess honest(Environment{{"APERTURE_TEST_UID", i % 2 == 0 ? "4712" : "0"}});
    honest.new_endpoint();
    const uint64_t began = now_ns();
    honest.tell("connect " + std::to_string(victim.address().port));
    EXPECT_EQ(honest.ask("lane").substr(0, 2), "up");
    took.push_back(static_cast<double>(now_ns() - began) / 1e6);
  }
  EXPECT_LE(contact().census().handshakes, kHandshakes);
  std::sort(took.begin(), took.end());
  std::printf("a newcomer connected in %.1f ms (middle of %zu), %.1f ms at most\n",
              took[took.size() / 2], took.size(), took.back());
  for (const pid_t pid : flood) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

}  // namespace
}  // namespace aperture::nic::test
