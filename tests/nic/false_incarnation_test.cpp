// Processes that call themselves by another's incarnation, which is no secret: what is meant for
// the other one does not come to them, and keeps coming to it.
#include "nic/child_process.hpp"
#include "nic/eventually.hpp"
#include "nic/side.hpp"
#include "nic/stranger.hpp"

namespace aperture::nic::test {
namespace {

constexpr uid_t kLiar = 4711, kOther = 4712;

class FalseIncarnation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs several users, and we are not root";
  }
  static Environment as_user(uid_t uid) {
    if (uid == 0) return {};
    return {{"APERTURE_TEST_UID", std::to_string(uid)}};
  }
  // Anybody may ask.
  static wire::Id128 incarnation_at(uint16_t port) {
    RawClient asks(loopback_v4(port));
    EXPECT_TRUE(asks.greet());
    return asks.answer.incarnation;
  }
  static void expect_reached(Side& from, ChildProcess& to, uint16_t port) {
    from.connect(loopback_v4(port));
    const HeldLane lane = from.lane();
    ASSERT_TRUE(lane);
    ASSERT_EQ(to.ask("lane").substr(0, 2), "up");
    send_word(*lane, 4711);
    EXPECT_EQ(to.ask("recv"), "got 4711");
  }
};

enum Word : uint16_t { kNothing, kYes, kNo };

// Joins us by that incarnation, and says whether it was let in.
void come_as(const wire::Id128& incarnation, const Address& victim, Stranger::Line line) {
  Address own;
  const auto listening = listen_tcp(loopback_v4(), own);  // the source is its own
  RawClient client(victim);
  client.hello.source = own;
  client.hello.incarnation = incarnation;
  const bool greeted = listening.ok() && client.greet() && client.knock();
  line.say(greeted && client.join(client.answer.nonce) ? kYes : kNo);
  for (;;) ::pause();
}

// Is an endpoint that answers by that incarnation. Says its port, and then whether who came said
// Join; who did is answered, and no more.
void answer_as(const wire::Id128& incarnation, Stranger::Line line) {
  Impostor port;
  line.say(port.address.port);
  const ParentOnlyFd connection = port.accept();
  const wire::Hello hello = Impostor::hear(connection.get());
  wire::Answer answer = Impostor::offer_to(hello);
  answer.incarnation = incarnation;
  auto door = listen_abstract(answer.socket_name);
  if (!door || !send_bytes(connection.get(), wire::encode(answer)).ok() || !readable(door->get())) {
    return line.say(kNo);
  }
  auto socket = accept_one(door->get());
  Packet packet;
  if (!socket || !readable(socket->get()) || !receive_packet(socket->get(), packet).ok()) {
    return line.say(kNo);
  }
  wire::Join joined;
  joined.nonce = hello.nonce;
  joined.incarnation = incarnation;
  const bool said = send_packet(socket->get(), wire::encode_joined(joined).view(), {}).ok();
  line.say(said ? kYes : kNo);
  for (;;) ::pause();
}

TEST_F(FalseIncarnation, who_came_as_another_gets_nothing_that_is_for_that_one) {
  for (const uid_t uid : {uid_t{0}, kOther}) {
    Side here;
    ChildProcess real(as_user(uid));
    const uint16_t port = real.new_endpoint();
    const wire::Id128 incarnation = incarnation_at(port);
    Stranger liar(kLiar, [&](Stranger::Line line) { come_as(incarnation, here.address(), line); });
    ASSERT_EQ(liar.hear(), kYes);
    expect_reached(here, real, port);
  }
}

TEST_F(FalseIncarnation, whose_port_answers_as_another_gets_nothing_that_is_for_that_one) {
  for (const uid_t uid : {uid_t{0}, kOther}) {
    Side here, other;
    ChildProcess real(as_user(uid));
    const uint16_t port = real.new_endpoint();
    const wire::Id128 incarnation = incarnation_at(port);
    Stranger liar(kLiar, [&](Stranger::Line line) { answer_as(incarnation, line); });
    here.connect(loopback_v4(liar.hear()));
    ASSERT_EQ(liar.hear(), kYes);
    expect_reached(other, real, port);
  }
}

TEST_F(FalseIncarnation, nobody_else_is_this_process) {
  for (const uid_t uid : {uid_t{0}, kLiar}) {
    Side here;
    const wire::Id128 ours = incarnation_at(here.address().port);
    Stranger comes(uid, [&](Stranger::Line line) { come_as(ours, here.address(), line); });
    EXPECT_EQ(comes.hear(), kNo);
    Stranger answers(uid, [&](Stranger::Line line) { answer_as(ours, line); });
    here.connect(loopback_v4(answers.hear()));
    EXPECT_EQ(answers.hear(), kNo) << "it was told something";
  }
}

TEST_F(FalseIncarnation, a_process_of_another_user_is_joined_once_whichever_side_began) {
  ASSERT_TRUE(eventually([] { return contact().census().peers == 0; }));
  ChildProcess stranger(as_user(kOther));
  Side a, b, c, d;
  const uint16_t port = stranger.new_endpoint();
  const HeldLane to_a = a.lane_to(loopback_v4(port));
  const HeldLane to_b = b.lane_to(loopback_v4(port));
  EXPECT_EQ(contact().census().peers, 1u);
  stranger.tell("connect " + std::to_string(c.address().port));
  const HeldLane to_c = c.lane();
  ASSERT_TRUE(to_c);
  EXPECT_EQ(contact().census().peers, 1u);

  ChildProcess begins(as_user(kOther));
  const uint16_t its_port = begins.new_endpoint();
  begins.tell("connect " + std::to_string(a.address().port));
  const HeldLane from_it = a.lane();
  ASSERT_TRUE(from_it);
  const HeldLane to_it = d.lane_to(loopback_v4(its_port));
  EXPECT_EQ(contact().census().peers, 2u);
}

// Whom the kernel calls 65534 could be anybody: what he has is not used again, and he is reached.
TEST_F(FalseIncarnation, users_without_a_number_are_joined_anew) {
  Environment inside = as_user(kLiar);
  inside.push_back({"APERTURE_TEST_NAMESPACE", "user"});
  ChildProcess here(inside);
  const std::string said = here.ask("new 7");
  if (said == "no namespace") GTEST_SKIP() << "no user namespaces here";
  ChildProcess other(as_user(kOther));
  const uint16_t port = other.new_endpoint();
  for (int i = 0; i < 2; ++i) {
    here.new_endpoint();
    here.tell("connect " + std::to_string(port));
    EXPECT_EQ(here.ask("lane").substr(0, 8), "up owner");
    EXPECT_EQ(other.ask("lane").substr(0, 8), "up owner");
    EXPECT_EQ(here.ask("send 1"), "sent");
    EXPECT_EQ(other.ask("recv"), "got 1");
    EXPECT_EQ(here.ask("close"), "closed");
    EXPECT_EQ(other.ask("next"), "down endpoint closed");
    EXPECT_EQ(other.ask("close"), "closed");
  }
}

}  // namespace
}  // namespace aperture::nic::test
