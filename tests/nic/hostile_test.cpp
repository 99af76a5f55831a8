// First contact with peers that mean no good, or are broken. The numbers are those of the project's
// list of hostile inputs.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "nic/raw_client.hpp"
#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

using wire::Verdict;
using wire::Why;

void set_timeouts(uint64_t ns) {
  contact().listener_limits.timeout_ns = ns;
  contact().connector_limits.timeout_ns = ns;
}

class Hostile : public ::testing::Test {
 protected:
  void SetUp() override { contact().listener_limits.handshakes = 64; }
  void TearDown() override {
    set_timeouts(5'000'000'000);
    EXPECT_EQ(contact().census().handshakes, 0u);
  }
  // The victim still serves honest peers.
  static void expect_well(Side& victim) {
    Side honest;
    join_and_part(honest, victim);
    honest.stop();
    victim.next(50);  // it may be told that the lane went down
  }
};

TEST_F(Hostile, hostile_31_a_slow_handshake_is_cut_off) {
  set_timeouts(200'000'000);
  Side victim;
  RawClient slow(victim.address());
  const auto bytes = wire::encode(slow.hello);
  const uint64_t began = now_ns();
  bool cut = false;
  for (size_t i = 0; i < bytes.size() && !cut; ++i) {
    cut = !slow.say({bytes.data() + i, 1}) || closed_by_peer(slow.tcp.get(), 10);
  }
  EXPECT_TRUE(cut);
  EXPECT_LT(now_ns() - began, 1'000'000'000u);
  expect_well(victim);
}

TEST_F(Hostile, hostile_31_a_handshake_that_stops_after_the_answer_is_cut_off) {
  set_timeouts(100'000'000);
  Side victim;
  RawClient idle(victim.address());
  ASSERT_TRUE(idle.greet());
  ASSERT_TRUE(idle.knock());
  EXPECT_TRUE(closed_by_peer(idle.tcp.get()));
  EXPECT_TRUE(closed_by_peer(idle.unix_socket.get()));
  expect_well(victim);
}

TEST_F(Hostile, hostile_31_who_asks_in_vain_is_cut_off_as_who_never_asks) {
  set_timeouts(300'000'000);
  Side victim;
  RawClient refused(victim.address());
  ASSERT_TRUE(refused.enter());
  auto wrong = refused.good_open();
  wrong.nonce[0] ^= 1;
  EXPECT_EQ(refused.refusal(wrong), Why::bad_ticket);
  EXPECT_TRUE(closed_by_peer(refused.unix_socket.get()));

  RawClient taken(victim.address());
  ASSERT_TRUE(taken.enter());
  const auto said = taken.open(taken.good_open(), {sealed_segment(), doorbell()});
  ASSERT_TRUE(said && said->accepted);
  const HeldLane lane = victim.lane();
  EXPECT_FALSE(readable(taken.unix_socket.get(), 700)) << "it has a lane";
  EXPECT_TRUE(victim.silent(0));
}

TEST_F(Hostile, hostile_24_rubbish_is_closed_at_once) {
  Side victim;
  for (const char* text : {"GET / HTTP/1.0\r\n\r\n", "x", "APERTURF"}) {
    RawClient rubbish(victim.address());
    ASSERT_TRUE(rubbish.say(std::as_bytes(std::span(text, std::strlen(text)))));
    EXPECT_TRUE(closed_by_peer(rubbish.tcp.get(), 1000)) << text;
  }
  expect_well(victim);
}

TEST_F(Hostile, hostile_25_reserved_bits_and_other_versions_are_not_understood) {
  Side victim;
  {
    RawClient reserved(victim.address());
    auto bytes = wire::encode(reserved.hello);
    bytes[110] = std::byte{2};  // an index has nine bits
    ASSERT_TRUE(reserved.say(bytes));
    EXPECT_TRUE(closed_by_peer(reserved.tcp.get()));
  }
  for (const bool whole : {true, false}) {
    RawClient newer(victim.address());
    auto bytes = wire::encode(newer.hello);
    bytes[8] = std::byte{wire::kVersion + 1};
    // whose length may be another, too
    ASSERT_TRUE(newer.say(std::span(bytes).first(whole ? bytes.size() : 64)));
    std::array<std::byte, wire::kAnswerBytes> answer;
    size_t got = 0;
    ASSERT_TRUE(readable(newer.tcp.get()));
    ASSERT_TRUE(receive_bytes(newer.tcp.get(), answer, got).ok());
    EXPECT_EQ(wire::decode_answer(answer).value().verdict, Verdict::wrong_version);
  }
  expect_well(victim);
}

TEST_F(Hostile, hostile_30_data_after_the_hello_ends_the_handshake) {
  Side victim;
  RawClient chatty(victim.address());
  EXPECT_EQ(chatty.verdict(), Verdict::offered);
  const std::byte more{1};
  ASSERT_TRUE(chatty.say({&more, 1}));
  EXPECT_TRUE(closed_by_peer(chatty.tcp.get()));
}

TEST_F(Hostile, a_hello_for_somebody_else_gets_no_offer_and_from_another_host_it_stays) {
  Side victim;
  RawClient lost(victim.address());
  lost.hello.destination = Address::v4(0x7f000002, victim.address().port);
  EXPECT_EQ(lost.verdict(), Verdict::wrong_destination);
  RawClient far(victim.address());
  far.hello.boot_id[0] ^= 1;
  EXPECT_EQ(far.verdict(), Verdict::stays);
  EXPECT_EQ(far.answer.socket_name, wire::Id128{});
  RawClient elsewhere(victim.address());
  elsewhere.hello.net_ns ^= 1;
  EXPECT_EQ(elsewhere.verdict(), Verdict::stays);
}

TEST_F(Hostile, hostile_4_and_5_the_name_without_the_nonce_lets_nobody_in) {
  Side victim;
  RawClient honest(victim.address());
  ASSERT_TRUE(honest.greet());
  RawClient thief(victim.address());
  thief.answer = honest.answer;
  ASSERT_TRUE(thief.knock());
  wire::Id128 wrong = honest.answer.nonce;
  wrong[15] ^= 1;
  EXPECT_FALSE(thief.join_as(wrong, honest.hello.incarnation));
  ASSERT_TRUE(thief.knock());
  EXPECT_FALSE(thief.join_as(honest.answer.nonce, random_id())) << "another incarnation";
  // each guess harmed only the guesser
  ASSERT_TRUE(honest.knock());
  EXPECT_TRUE(honest.join(honest.answer.nonce));
  // and a nonce that was used is worth nothing
  EXPECT_FALSE(thief.knock());
}

TEST_F(Hostile, hostile_5_a_ticket_opens_one_lane_once) {
  Side victim(5);
  RawClient client(victim.address());
  ASSERT_TRUE(client.enter());
  const auto good = client.good_open();
  auto wrong = good;
  wrong.nonce[0] ^= 1;
  EXPECT_EQ(client.refusal(wrong), Why::bad_ticket);
  wrong = good;
  wrong.source.port = 10;
  EXPECT_EQ(client.refusal(wrong), Why::bad_ticket);
  const auto said = client.open(good, {sealed_segment(), doorbell()});
  ASSERT_TRUE(said);
  EXPECT_TRUE(said->accepted);
  auto lane = victim.lane();
  ASSERT_TRUE(lane);
  EXPECT_FALSE(lane->direct.allowed);
  EXPECT_EQ(client.refusal(good), Why::bad_ticket) << "replayed";
  client.unix_socket.reset();
  EXPECT_EQ(victim.down(), Errc::peer_lost);
}

// Another user takes part in a handshake, as the owner of `source`; what comes of it, as an exit
// code.
int open_as_stranger(const Address& victim, const Address& source) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(90);
    Address own;
    auto listening = listen_tcp(loopback_v4(), own);
    RawClient client(victim);
    client.hello.source = source.port != 0 ? source : own;
    if (!client.greet()) ::_exit(91);
    if (!client.knock() || !client.join(client.answer.nonce)) ::_exit(92);
    const auto said = client.open(client.good_open(), {sealed_segment()});
    ::_exit(!said ? 93 : said->accepted ? 0 : static_cast<int>(said->why));
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(Hostile, hostile_4_another_user_cannot_speak_for_our_endpoint) {
  if (::getuid() != 0) GTEST_SKIP() << "needs two users, and we are not root";
  Side victim, named;
  sealed_segment();
  EXPECT_EQ(open_as_stranger(victim.address(), named.address()), static_cast<int>(Why::bad_ticket));
  EXPECT_EQ(open_as_stranger(victim.address(), loopback_v4(1)), static_cast<int>(Why::bad_ticket));
  EXPECT_TRUE(victim.silent(0));
  EXPECT_EQ(open_as_stranger(victim.address(), Address{}), 0) << "its own port is its own";
  ASSERT_TRUE(victim.lane());
}

// What comes with Open must be what it should be; a refused Open harms only who sent it.
TEST_F(Hostile, hostile_38_and_39_what_comes_with_open_is_checked) {
  Side victim;
  const UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 1 << 26), 0);
  auto tiny = make_sealed_memfd("tiny", 4096);
  auto blank = make_sealed_memfd("blank", size_t{1} << 26);
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd pipe_in(pipe_ends[0]), pipe_out(pipe_ends[1]);
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  struct Case {
    const char* what;
    std::vector<int> fds;
    uint32_t lane, segment;
  };
  const std::vector<Case> cases = {
      {"unsealed segment", {unsealed.get(), doorbell()}, 0, 1},
      {"segment too small", {tiny->get(), doorbell()}, 0, 1},
      {"segment without a header", {blank->get(), doorbell()}, 0, 1},
      {"a pipe for a segment", {pipe_in.get(), doorbell()}, 0, 1},
      {"an eventfd for a doorbell", {sealed_segment(), event.get()}, 0, 1},
      {"a lane that does not exist", {sealed_segment(), doorbell()}, link::shm::kLanes, 1},
      {"a huge lane", {sealed_segment(), doorbell()}, 0xffffffff, 1},
      {"a huge segment number", {sealed_segment(), doorbell()}, 0, 0xffffffff},
      {"no descriptors", {}, 0, 1},
      {"no doorbell", {sealed_segment()}, 0, 1},
  };
  for (const Case& c : cases) {
    RawClient client(victim.address());
    ASSERT_TRUE(client.enter());
    auto open = client.good_open();
    open.lane = Wild<uint32_t>(c.lane);
    open.segment = Wild<uint32_t>(c.segment);
    const auto said = client.open(open, c.fds);
    ASSERT_TRUE(said) << c.what;
    EXPECT_FALSE(said->accepted) << c.what;
    EXPECT_TRUE(victim.silent(0)) << c.what;
  }
  expect_well(victim);
}

TEST_F(Hostile, rubbish_on_the_unix_socket_ends_that_peer_only) {
  Side victim;
  for (int i = 0; i < 3; ++i) {
    RawClient client(victim.address());
    ASSERT_TRUE(client.enter());
    std::vector<std::byte> rubbish(i == 0 ? 3 : i == 1 ? 64 : 4096, std::byte{0xee});
    ASSERT_TRUE(send_packet(client.unix_socket.get(), rubbish, {}).ok());
    EXPECT_TRUE(closed_by_peer(client.unix_socket.get())) << i;
  }
  expect_well(victim);
}

TEST_F(Hostile, a_lane_that_was_never_opened_cannot_be_closed) {
  Side victim;
  RawClient client(victim.address());
  ASSERT_TRUE(client.enter());
  wire::LaneClose close;
  ASSERT_TRUE(send_packet(client.unix_socket.get(), wire::encode(close).view(), {}).ok());
  EXPECT_TRUE(closed_by_peer(client.unix_socket.get()));
}

TEST_F(Hostile, checksums_are_of_frames_and_refused_where_memory_is_shared) {
  Side victim;
  RawClient client(victim.address());
  ASSERT_TRUE(client.enter());
  wire::Open open = client.good_open();
  open.checksums = true;
  EXPECT_EQ(client.refusal(open), Why::bad_lane);
}

TEST_F(Hostile, who_never_answers_is_timed_out) {
  set_timeouts(200'000'000);
  Side honest;
  Impostor mute;
  honest.connect(mute.address);
  EXPECT_EQ(honest.failure(), Errc::timed_out);
}

TEST_F(Hostile, who_answers_something_else_is_no_endpoint) {
  Side honest;
  Impostor web;
  honest.connect(web.address);
  const ParentOnlyFd connection = web.accept();
  const std::string page(200, 'A');
  ASSERT_TRUE(send_bytes(connection.get(), std::as_bytes(std::span(page))).ok());
  EXPECT_EQ(honest.failure(), Errc::protocol);
}

TEST_F(Hostile, who_says_that_it_stays_and_then_talks_nonsense_is_no_endpoint) {
  set_timeouts(500'000'000);
  Side honest;
  Impostor far;
  honest.connect(far.address);
  const ParentOnlyFd connection = far.accept();
  Impostor::hear(connection.get());
  wire::Answer answer;
  answer.verdict = Verdict::stays;
  answer.nonce = random_id();
  ASSERT_TRUE(send_bytes(connection.get(), wire::encode(answer)).ok());
  const std::string page(200, 'A');
  ASSERT_TRUE(send_bytes(connection.get(), std::as_bytes(std::span(page))).ok());
  EXPECT_EQ(honest.failure(), Errc::timed_out);  // it has been tried again meanwhile
}

TEST_F(Hostile, hostile_4_a_squatter_on_the_socket_name_is_turned_away) {
  set_timeouts(500'000'000);
  Side honest;
  Impostor owner;
  honest.connect(owner.address);
  const ParentOnlyFd connection = owner.accept();
  const wire::Hello hello = Impostor::hear(connection.get());
  const wire::Answer answer = Impostor::offer_to(hello);
  const auto squatter = listen_abstract(answer.socket_name);
  ASSERT_TRUE(squatter.ok());
  ASSERT_TRUE(send_bytes(connection.get(), wire::encode(answer)).ok());
  ASSERT_TRUE(readable(const_cast<Result<ParentOnlyFd>&>(squatter)->get()));
  auto caught = accept_one(const_cast<Result<ParentOnlyFd>&>(squatter)->get());
  ASSERT_TRUE(caught.ok());
  wire::Join lie;
  lie.nonce = random_id();  // it has not heard the hello
  lie.incarnation = answer.incarnation;
  ASSERT_TRUE(send_packet(caught->get(), wire::encode_joined(lie).view(), {}).ok());
  Packet packet;
  while (readable(caught->get())) {  // nothing but Join is said to it, and no descriptor is given
    const Status s = receive_packet(caught->get(), packet);
    if (!s) break;
    EXPECT_TRUE(wire::decode_join(packet.view()).ok());
    EXPECT_EQ(packet.fd_count, 0u);
  }
  EXPECT_EQ(honest.failure(), Errc::timed_out);
}

TEST_F(Hostile, hostile_33_half_open_connections_do_not_keep_others_out) {
  // APERTURE_HALF_OPEN=100000 is the full count
  const char* wanted = std::getenv("APERTURE_HALF_OPEN");
  const int count = wanted != nullptr ? std::atoi(wanted) : 5000;
  Side victim;
  std::deque<ParentOnlyFd> open;
  for (int i = 0; i < count; ++i) {
    auto socket = connect_tcp(victim.address());
    if (socket) open.push_back(*std::move(socket));
    if (open.size() > 500) {
      close_without_waiting(open.front().get());
      open.pop_front();
    }
    if (i % 500 == 499) {
      EXPECT_LE(contact().census().handshakes, 64u);
      expect_well(victim);
    }
  }
  for (auto& socket : open) close_without_waiting(socket.get());
  open.clear();
  for (int i = 0; i < 3000 && contact().census().handshakes != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_F(Hostile, running_out_of_descriptors_is_an_error_that_passes) {
  set_timeouts(500'000'000);
  Side a, b;
  expect_well(b);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  for (int room = 0; room < 24; ++room) {
    // `room` more descriptors above those in use
    const UniqueFd probe(::dup(0));
    rlimit tight = before;
    tight.rlim_cur = 512;
    while (::fcntl(static_cast<int>(tight.rlim_cur), F_GETFD) >= 0) ++tight.rlim_cur;
    tight.rlim_cur += static_cast<rlim_t>(room);
    std::vector<UniqueFd> fillers;  // the low numbers are taken too
    for (int fd; (fd = ::dup(0)) >= 0 && fd < 512;) fillers.emplace_back(fd);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
    a.connect(b);
    auto told = a.next(2000);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_TRUE(told) << room;
    EXPECT_TRUE(told->what == Told::What::up || told->why == Errc::no_fds ||
                told->why == Errc::timed_out)
        << describe(told->why);
    told.reset();
    while (b.next(20)) {
    }
    while (a.next(1)) {
    }
  }
  expect_well(b);
}

}  // namespace
}  // namespace aperture::nic::test
