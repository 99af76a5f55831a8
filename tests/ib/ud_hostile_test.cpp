// Datagrams that nobody should have sent: they change nothing, and others go on working.
#include "ib/datagram_side.hpp"

namespace aperture::ib::test {
namespace {

class UdHostile : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(victim.post_recv(1, 0));
    ASSERT_TRUE(neighbour.post_recv(2, 0));
  }
  // It went in, nothing came of it, and all others work as before.
  void expect_untouched(uint64_t UdQp::Drops::*counter, uint64_t times) {
    EXPECT_TRUE(victim.until([&] { return victim.qp->drops().*counter == times; }));
    EXPECT_TRUE(victim.recv_cq.empty());
    EXPECT_EQ(victim.qp->state(), QpState::rts);
    EXPECT_EQ(victim.bytes(0, victim.memory.size()), std::vector<std::byte>(victim.memory.size()));
    ASSERT_TRUE(neighbour.send(1, victim.qp->qpn(), 0, 8));
    EXPECT_TRUE(victim.received(1));
    ASSERT_TRUE(victim.send(1, neighbour.qp->qpn(), 0, 8));
    EXPECT_TRUE(neighbour.received(1));
    EXPECT_TRUE(victim.events.async.empty());
  }
  uint16_t port() const { return port_of(victim.qp->qpn()); }

  UdSide victim, neighbour;
  Stranger stranger;
};

TEST_F(UdHostile, a_sound_datagram_of_a_stranger_arrives) {
  stranger.send(port(), stranger.sound(victim.qp->qpn()));
  ASSERT_TRUE(victim.received(1));
  EXPECT_EQ(UdSide::take(victim.recv_cq).src_qpn, uint32_t{stranger.port()} << 8);
}

TEST_F(UdHostile, every_cut_of_a_datagram_is_dropped) {
  const auto sound = stranger.sound(victim.qp->qpn());
  for (size_t n = 0; n < sound.size(); ++n) {
    stranger.send(port(), {sound.begin(), sound.begin() + static_cast<ptrdiff_t>(n)});
  }
  expect_untouched(&UdQp::Drops::malformed, sound.size());
}

TEST_F(UdHostile, whatever_is_longer_than_it_says_is_dropped) {
  auto longer = stranger.sound(victim.qp->qpn());
  longer.push_back({});
  stranger.send(port(), longer);
  auto full = stranger.sound(victim.qp->qpn(), 4096);
  full.resize(full.size() + 1);  // the kernel cuts it to what a sound one may have at most
  stranger.send(port(), full);
  full.resize(65'000);
  stranger.send(port(), full);
  expect_untouched(&UdQp::Drops::malformed, 3);
}

TEST_F(UdHostile, every_changed_byte_of_the_header_is_noticed_where_it_matters) {
  const auto sound = stranger.sound(victim.qp->qpn());
  uint64_t sent = 0;
  for (size_t at = 0; at < wire::kDatagramHeaderBytes; ++at) {
    if (at == 5 || at == 11) continue;  // solicited, and the traffic class, are the sender's
    auto changed = sound;
    changed[at] ^= std::byte{0x10};
    stranger.send(port(), changed);
    ++sent;
  }
  EXPECT_TRUE(victim.until([&] {
    const auto& d = victim.qp->drops();
    return d.malformed + d.not_for_us + d.wrong_qkey == sent;
  }));
  EXPECT_GE(victim.qp->drops().wrong_qkey, 4u);
  expect_untouched(&UdQp::Drops::no_receive, 0);
}

TEST_F(UdHostile, another_queue_pairs_number_is_dropped) {
  stranger.send(port(), stranger.sound(neighbour.qp->qpn()));
  stranger.send(port(), stranger.sound(victim.qp->qpn() | 7));
  wire::DatagramHead group;
  group.dest_qpn = Wild<uint32_t>(wire::kMulticastQpn);
  group.group = Wild<uint32_t>(1);
  group.src_qpn = Wild<uint32_t>(uint32_t{stranger.port()} << 8);
  group.qkey = Wild<uint32_t>(kQkey);
  stranger.send(port(), Stranger::bytes(group));
  expect_untouched(&UdQp::Drops::not_for_us, 3);
}

TEST_F(UdHostile, nobody_sends_in_anothers_name) {
  wire::DatagramHead head;
  head.dest_qpn = Wild<uint32_t>(victim.qp->qpn());
  head.src_qpn = Wild<uint32_t>(neighbour.qp->qpn());
  head.qkey = Wild<uint32_t>(kQkey);
  stranger.send(port(), Stranger::bytes(head));
  expect_untouched(&UdQp::Drops::malformed, 1);
}

TEST_F(UdHostile, a_wrong_qkey_is_dropped) {
  auto wrong = stranger.sound(victim.qp->qpn());
  wrong[16] ^= std::byte{1};
  for (int i = 0; i < 100; ++i) stranger.send(port(), wrong);
  expect_untouched(&UdQp::Drops::wrong_qkey, 100);
}

TEST_F(UdHostile, a_flood_does_not_keep_others_out) {
  const std::vector<std::byte> rubbish(3000, std::byte{0xee});
  uint64_t got = 0;
  for (int i = 0; i < 2000; ++i) {
    stranger.send(port(), rubbish);
    if (i % 100 == 0) {
      ASSERT_TRUE(neighbour.send(1, victim.qp->qpn(), 0, 8));
    }
    victim.qp->poll(++victim.polls);
    if (victim.recv_cq.empty()) continue;
    ++got;
    UdSide::take(victim.recv_cq);
    ASSERT_TRUE(victim.post_recv(1, 0));
  }
  victim.settle();
  got += victim.recv_cq.size();
  EXPECT_GE(got, 19u);
  EXPECT_EQ(victim.qp->state(), QpState::rts);
}

}  // namespace
}  // namespace aperture::ib::test
