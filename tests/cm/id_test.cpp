// Two ids of one process: timeouts that expire, and what the commands above do not show.

#include "cm/both_sides.hpp"

namespace aperture::cm::test {
namespace {

TEST(CmId, a_connection_from_request_to_timewait) {
  Side server(PortSpace::tcp), client(PortSpace::tcp);
  const Address at = server.listen();
  client.resolve(at);
  Params params;
  params.qpn = 5;
  auto child = server.asked_by(client, params);
  EXPECT_EQ(child->run([](Id& id) { return id.agreed().remote_qpn; }), 5u);
  EXPECT_TRUE(child->run([&](Id& id) { return id.accept(params); }));
  EXPECT_EQ(client.next(), EventKind::connect_response);
  EXPECT_TRUE(client.run([](Id& id) { return id.establish(); }));
  EXPECT_EQ(child->next(), EventKind::established);
  EXPECT_TRUE(client.run([](Id& id) { return id.disconnect(); }));
  EXPECT_EQ(child->next(), EventKind::disconnected);
  EXPECT_EQ(client.next(), EventKind::disconnected);
  EXPECT_EQ(client.next(), EventKind::timewait_exit);
  EXPECT_EQ(client.run([](Id& id) { return id.state(); }), State::over);
}

TEST(CmId, the_numbers_that_each_side_sends_with_are_those_that_the_other_expects) {
  Side server(PortSpace::tcp), client(PortSpace::tcp);
  client.resolve(server.listen());
  auto child = server.asked_by(client);
  EXPECT_TRUE(child->run([](Id& id) { return id.accept({}); }));
  EXPECT_EQ(client.next(), EventKind::connect_response);
  const auto here = client.run([](Id& id) { return id.agreed(); });
  const auto there = child->run([](Id& id) { return id.agreed(); });
  EXPECT_EQ(here.rq_psn, there.sq_psn);
  EXPECT_EQ(here.sq_psn, there.rq_psn);
}

TEST(CmId, a_server_that_says_nothing_is_unreachable_after_a_while) {
  Silent silent;
  Side client(PortSpace::tcp);
  client.run([](Id& id) { id.timeouts().connect_ns = 50'000'000; });
  client.resolve(silent.address);
  EXPECT_TRUE(client.connect({}));
  EXPECT_EQ(client.next(), EventKind::unreachable);
  EXPECT_EQ(client.status(), -ETIMEDOUT);
}

TEST(CmId, an_application_that_never_answers_is_waited_for_longer_and_then_given_up) {
  Side server(PortSpace::tcp), client(PortSpace::tcp);
  client.run([](Id& id) {
    id.timeouts().connect_ns = 20'000'000;
    id.timeouts().answer_ns = 300'000'000;
  });
  client.resolve(server.listen());
  auto child = server.asked_by(client);
  EXPECT_EQ(client.next(), EventKind::unreachable);
  EXPECT_EQ(client.status(), -ETIMEDOUT);
}

TEST(CmId, a_peer_that_never_confirms_a_disconnect_is_given_up) {
  RawPeer peer;  // a server written by hand
  Side client(PortSpace::tcp);
  client.run([](Id& id) {
    id.timeouts().disconnect_ns = 50'000'000;
    id.timeouts().timewait_ns = 10'000'000;
  });
  client.resolve(peer.address);
  EXPECT_TRUE(client.connect({}));
  peer.accept();
  EXPECT_EQ(peer.receive(wire::kReqBytes).size(), wire::kReqBytes);
  peer.send(wire::encode(wire::Rep{}).view());
  EXPECT_EQ(client.next(), EventKind::connect_response);
  EXPECT_TRUE(client.run([](Id& id) { return id.establish(); }));
  EXPECT_TRUE(client.run([](Id& id) { return id.disconnect(); }));
  EXPECT_EQ(client.next(), EventKind::disconnected);
  EXPECT_EQ(client.status(), -ETIMEDOUT);
  EXPECT_EQ(client.next(), EventKind::timewait_exit);
}

TEST(CmId, an_answer_and_the_end_at_once_let_go_of_a_connection_once) {
  for (int i = 0; i < 20; ++i) {
    RawPeer peer;
    {
      Side client(PortSpace::tcp);
      client.resolve(peer.address);
      EXPECT_TRUE(client.connect({}));
      peer.accept();
      EXPECT_EQ(peer.receive(wire::kReqBytes).size(), wire::kReqBytes);
      peer.send(wire::encode(wire::Rep{}).view());
      EXPECT_EQ(client.next(), EventKind::connect_response);
      EXPECT_TRUE(client.run([](Id& id) { return id.establish(); }));
      EXPECT_TRUE(client.run([](Id& id) { return id.disconnect(); }));
    }  // the id is gone, and its connection waits for the answer to its last words
    control().run([&] {  // both are there when it is looked at again
      peer.send(wire::encode_bare(wire::CmKind::drep).view());
      peer.close();
    });
    control().run([] {});
  }
}

TEST(CmId, a_question_that_nobody_answers_is_unreachable) {
  Side server(PortSpace::udp), client(PortSpace::udp);
  client.run([](Id& id) { id.timeouts().sidr_ns = 50'000'000; });
  client.resolve(server.listen());
  auto child = server.asked_by(client);
  EXPECT_EQ(client.next(), EventKind::unreachable);
  EXPECT_EQ(client.status(), -ETIMEDOUT);
  EXPECT_TRUE(child->run([](Id& id) { return id.accept({}); }));  // nobody is there to hear it
  EXPECT_TRUE(client.is_quiet(50));
}

TEST(CmId, a_question_is_asked_again_where_there_was_no_room_for_it) {
  Side server(PortSpace::udp), first(PortSpace::udp), second(PortSpace::udp);
  const Address at = server.listen(1);
  second.run([](Id& id) { id.timeouts().ask_again_ns = 5'000'000; });
  first.resolve(at);
  second.resolve(at);
  EXPECT_TRUE(first.connect({}));
  EXPECT_FALSE(server.is_quiet(10000));
  EXPECT_TRUE(second.connect({}));
  EXPECT_TRUE(second.is_quiet(50));
  auto child = server.request();  // its place is free again
  ASSERT_TRUE(child != nullptr);
  auto later = server.request();
  ASSERT_TRUE(later != nullptr);
  EXPECT_TRUE(later->run([](Id& id) { return id.accept({}); }));
  EXPECT_EQ(second.next(), EventKind::established);
}

TEST(CmId, a_port_that_has_no_room_for_more_is_tried_until_it_has) {
  RawPeer busy;
  std::vector<std::unique_ptr<RawClient>> crowd;
  ::listen(busy.listening.front().socket.get(), 0);
  crowd.push_back(std::make_unique<RawClient>(busy.address));
  Side client(PortSpace::tcp);
  client.run([](Id& id) { id.timeouts().refused_ns = 1'000'000; });
  client.resolve(busy.address);
  EXPECT_TRUE(client.connect({}));
  EXPECT_TRUE(client.is_quiet(50));
  busy.accept();
  busy.accept();
  EXPECT_EQ(busy.receive(wire::kReqBytes).size(), wire::kReqBytes);
}

TEST(CmId, commands_that_the_state_does_not_allow_change_nothing) {
  Side one(PortSpace::tcp);
  EXPECT_EQ(one.run([](Id& id) { return id.connect({}); }).error(), Errc::bad_state);
  EXPECT_EQ(one.run([](Id& id) { return id.accept({}); }).error(), Errc::bad_state);
  EXPECT_EQ(one.run([](Id& id) { return id.establish(); }).error(), Errc::bad_state);
  EXPECT_EQ(one.run([](Id& id) { return id.notify_established(); }).error(), Errc::bad_state);
  EXPECT_EQ(one.run([](Id& id) { return id.disconnect(); }).error(), Errc::bad_state);
  EXPECT_EQ(one.run([](Id& id) { return id.reject(28, {}); }).error(), Errc::bad_state);
  EXPECT_EQ(one.run([](Id& id) { return id.resolve_route(); }).error(), Errc::bad_state);
  EXPECT_EQ(one.run([](Id& id) { return id.state(); }), State::idle);
}

}  // namespace
}  // namespace aperture::cm::test
