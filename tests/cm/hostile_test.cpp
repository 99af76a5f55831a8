// Peers of a connection manager that mean no good, or are broken: nothing of theirs is more than
// the end of their own connection. The numbers are those of the project's list of hostile inputs.

#include "base/random.hpp"
#include "cm/both_sides.hpp"
#include "cm/listener.hpp"

namespace aperture::cm::test {
namespace {

using wire::CmKind;

class CmHostile : public testing::Test {
 protected:
  // The server still hears honest requests.
  void expect_well() {
    Side honest(PortSpace::tcp);
    honest.resolve(at);
    auto child = server.asked_by(honest);
    EXPECT_TRUE(child->run([](Id& id) { return id.accept({}); }));
    EXPECT_EQ(honest.next(), EventKind::connect_response);
  }

  Side server{PortSpace::tcp};
  const Address at = server.listen();
};

TEST_F(CmHostile, hostile_24_25_rubbish_ends_its_connection_and_is_no_request) {
  for (size_t size : {1u, 15u, 16u, 17u, 132u, 1000u}) {
    RawClient client(at);
    std::vector<std::byte> bytes(size);
    random_bytes(bytes.data(), size);
    client.send(bytes);
    if (size >= wire::kCmHeadBytes) {
      EXPECT_TRUE(client.is_closed()) << size;
    }
  }
  for (const CmKind kind : {CmKind::mra, CmKind::rtu, CmKind::dreq, CmKind::drep}) {
    RawClient client(at);
    client.send(wire::encode_bare(kind).view());
    EXPECT_TRUE(client.is_closed());
  }
  EXPECT_TRUE(server.is_quiet(50));
  expect_well();
}

TEST_F(CmHostile, hostile_4_a_request_that_lies_about_its_addresses_is_rejected) {
  for (int lie : {0, 1}) {
    RawClient client(at);
    wire::Req req = client.req();
    (lie == 0 ? req.source : req.destination).port ^= 1;
    client.send(wire::encode(req).view());
    const auto answer = client.receive(wire::kRejBytes);
    auto rej = wire::decode_rej(answer);
    ASSERT_TRUE(rej.ok());
    EXPECT_EQ(rej->reason.unchecked(), kRejInvalidServiceId);
  }
  EXPECT_TRUE(server.is_quiet(50));
  expect_well();
}

TEST_F(CmHostile, who_connects_from_no_name_is_no_porter_where_other_hosts_are_not_served) {
  RawSocket nobody(*connect_to_name({PortSpace::tcp, at}));
  EXPECT_TRUE(nobody.is_closed());
  EXPECT_TRUE(server.is_quiet(50));
  expect_well();
}

TEST_F(CmHostile, hostile_31_a_slow_request_is_cut_off) {
  Side hasty(PortSpace::tcp);
  hasty.run([](Id& id) { id.timeouts().request_ns = 100'000'000; });
  const Address there = hasty.listen();
  RawClient silent(there), slow(there);
  slow.send(wire::encode(slow.req()).view().first(40));
  EXPECT_TRUE(slow.is_closed());
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(hasty.is_quiet(10));
}

TEST_F(CmHostile, hostile_33_half_open_connections_are_bounded_and_hold_nobody_up) {
  std::vector<std::unique_ptr<RawClient>> crowd;
  for (size_t i = 0; i < Listener::kMaxHalfOpen + 20; ++i) {
    crowd.push_back(std::make_unique<RawClient>(at));
  }
  EXPECT_TRUE(crowd.front()->is_closed());  // the oldest made room
  expect_well();
}

TEST_F(CmHostile, hostile_28_messages_out_of_turn_end_the_connection) {
  for (const CmKind kind : {CmKind::rtu, CmKind::dreq, CmKind::drep, CmKind::mra}) {
    RawClient client(at);
    client.send(wire::encode(client.req()).view());
    auto child = server.request();
    ASSERT_TRUE(child != nullptr);
    client.send(wire::encode_bare(kind).view());
    EXPECT_TRUE(client.is_closed());
    EXPECT_TRUE(child->run([](Id& id) { return id.accept({}); }));  // it learns it now
    EXPECT_EQ(child->next(), EventKind::unreachable);
  }
  RawClient twice(at);
  twice.send(wire::encode(twice.req()).view());
  twice.send(wire::encode(twice.req()).view());
  auto child = server.request();
  EXPECT_TRUE(twice.is_closed());
  expect_well();
}

TEST_F(CmHostile, hostile_30_bytes_after_the_end_reach_nobody) {
  RawClient client(at);
  client.send(wire::encode(client.req()).view());
  auto child = server.request();
  ASSERT_TRUE(child != nullptr);
  EXPECT_TRUE(child->run([](Id& id) { return id.accept({}); }));
  client.send(wire::encode_bare(CmKind::rtu).view());
  client.send(wire::encode_bare(CmKind::dreq).view());
  client.send(wire::encode_bare(CmKind::rtu).view());
  client.send(wire::encode(wire::Rej{Wild<uint32_t>(28), {}}).view());
  EXPECT_EQ(child->next(), EventKind::established);
  EXPECT_EQ(child->next(), EventKind::disconnected);
  EXPECT_TRUE(child->is_quiet(50));
}

TEST_F(CmHostile, a_server_that_answers_nonsense_is_no_server) {
  const auto answers = {wire::encode(wire::Req{}), wire::encode_bare(CmKind::rtu),
                        wire::encode_bare(CmKind::drep), wire::encode(wire::SidrRep{})};
  for (const wire::CmPacket& answer : answers) {
    RawPeer peer;
    Side client(PortSpace::tcp);
    client.resolve(peer.address);
    EXPECT_TRUE(client.connect({}));
    peer.accept();
    peer.receive(wire::kReqBytes);
    peer.send(answer.view());
    EXPECT_EQ(client.next(), EventKind::rejected);
    EXPECT_TRUE(peer.is_closed());
  }
}

TEST_F(CmHostile, an_answer_to_another_question_is_none) {
  Port port = loopback_port(PortSpace::udp);
  const auto sockets = *port.listen();
  Side client(PortSpace::udp);
  client.run([](Id& id) { id.timeouts().sidr_ns = 200'000'000; });
  client.resolve(port.bound());
  EXPECT_TRUE(client.connect({}));
  pollfd p{sockets.front().socket.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, 10000), 1);
  RawSocket answers(*nic::accept_one(sockets.front().socket.get()));
  const auto asked = wire::decode_sidr_req(answers.receive(wire::kSidrReqBytes));
  ASSERT_TRUE(asked.ok());
  wire::SidrRep forged;
  forged.request_id = Wild(asked.value().request_id.unchecked() ^ 1);
  answers.send(wire::encode(forged).view());
  EXPECT_TRUE(answers.is_closed());
  EXPECT_EQ(client.next(), EventKind::unreachable);
  EXPECT_EQ(client.status(), -ETIMEDOUT);
}

TEST_F(CmHostile, hostile_24_25_rubbish_at_the_port_of_a_datagram_id_is_no_question) {
  Side answers(PortSpace::udp);
  const Address there = answers.listen();
  for (const wire::CmPacket& packet : {wire::encode(wire::Req{}), wire::encode(wire::SidrRep{}),
                                       wire::encode_bare(CmKind::dreq)}) {
    RawClient client(there, PortSpace::udp);
    client.send(packet.view());
    EXPECT_TRUE(client.is_closed());
  }
  RawClient twice(there, PortSpace::udp);
  twice.send(wire::encode(wire::SidrReq{}).view());
  auto child = answers.request();
  twice.send(wire::encode(wire::SidrReq{}).view());
  EXPECT_TRUE(twice.is_closed());
  EXPECT_TRUE(child->run([](Id& id) { return id.accept({}); }));
  EXPECT_TRUE(answers.is_quiet(50));
}

}  // namespace
}  // namespace aperture::cm::test
