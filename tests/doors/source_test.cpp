// Receives from one peer alone (FI_DIRECTED_RECV): what becomes of them, and of messages that wait
// for them, when the peer is taken out of the address vector or dies. man 3 fi_av, fi_msg.
#include <gtest/gtest.h>

#include "doors/child.hpp"
#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

const Options kOptions{.caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE,
                       .av_type = FI_AV_TABLE};

TEST(Source, messages_of_a_removed_address_are_not_those_of_the_next_one_at_its_index) {
  if (!on_aperture()) GTEST_SKIP() << "left open by fi_av(3)";
  NodePair p(kOptions);
  Op first, second, third;
  uint8_t in[3] = {};
  for (const char* text : {"o", "l"}) {
    ASSERT_EQ(post([&] { return fi_tinject(p.a.ep(), text, 1, p.to_b, 5); }), 0);
  }
  pump_for(50);  // they have arrived
  fi_addr_t old = p.to_a;
  ASSERT_EQ(fi_av_remove(p.b.av(), &old, 1, 0), 0);
  Node c(kOptions);
  ASSERT_EQ(p.b.insert(c.name()), p.to_a) << "the index is to be used again";
  ASSERT_EQ(fi_trecv(p.b.ep(), &in[0], 1, nullptr, p.to_a, 5, 0, &first), 0);
  EXPECT_TRUE(p.b.quiet());
  ASSERT_EQ(fi_trecv(p.b.ep(), &in[1], 1, nullptr, FI_ADDR_UNSPEC, 5, 0, &second), 0);
  const Completion anybody = p.b.wait(&second);
  EXPECT_EQ(anybody.err, 0);
  EXPECT_EQ(in[1], 'o');
  EXPECT_EQ(anybody.source, FI_ADDR_NOTAVAIL);
  const fi_addr_t from_c = c.insert(p.b.name());
  ASSERT_EQ(post([&] { return fi_tinject(c.ep(), "n", 1, from_c, 5); }), 0);
  const Completion directed = p.b.wait(&first);
  EXPECT_EQ(directed.err, 0);
  EXPECT_EQ(in[0], 'n');
  EXPECT_EQ(directed.source, p.to_a);
  ASSERT_EQ(fi_trecv(p.b.ep(), &in[2], 1, nullptr, FI_ADDR_UNSPEC, 5, 0, &third), 0);
  EXPECT_EQ(p.b.wait(&third).err, 0);
  EXPECT_EQ(in[2], 'l');
}

TEST(Source, messages_follow_their_address_to_the_other_index_that_it_has) {
  if (!on_aperture()) GTEST_SKIP() << "left open by fi_av(3)";
  NodePair p(kOptions);
  const fi_addr_t twice = p.b.insert(p.a.name());
  ASSERT_NE(twice, p.to_a);
  for (const char* text : {"1", "2"}) {
    ASSERT_EQ(post([&] { return fi_tinject(p.a.ep(), text, 1, p.to_b, 5); }), 0);
  }
  pump_for(50);
  fi_addr_t lowest = p.to_a;
  ASSERT_EQ(fi_av_remove(p.b.av(), &lowest, 1, 0), 0);
  for (const uint8_t expected : {'1', '2'}) {
    Op op;
    uint8_t in = 0;
    ASSERT_EQ(fi_trecv(p.b.ep(), &in, 1, nullptr, twice, 5, 0, &op), 0);
    const Completion c = p.b.wait(&op);
    EXPECT_EQ(c.err, 0);
    EXPECT_EQ(c.source, twice);
    EXPECT_EQ(in, expected);
  }
}

struct Named {
  uint32_t name_len = 0;
  uint8_t name[256] = {};
};
Named named(Node& node) {
  Named out;
  const std::vector<uint8_t> name = node.name();
  out.name_len = static_cast<uint32_t>(name.size());
  std::copy(name.begin(), name.end(), out.name);
  return out;
}

}  // namespace

DOOR_ROLE(greets_and_waits) {
  Node node(kOptions);
  Named to;
  if (!control.put(named(node)) || !control.get(&to)) return 1;
  const fi_addr_t there = node.insert({to.name, to.name + to.name_len});
  if (post([&] { return fi_inject(node.ep(), "h", 1, there); }) != 0) return 2;
  for (;;) pump_for(100);
}

namespace {

TEST(Source, a_receive_from_a_peer_that_dies_ends_with_its_loss) {
  Child peer("greets_and_waits");
  Node node(kOptions);
  Named there;
  ASSERT_TRUE(peer.control().get(&there, 20000));
  const fi_addr_t from = node.insert({there.name, there.name + there.name_len});
  ASSERT_TRUE(peer.control().put(named(node)));
  Op greeting, never;
  uint8_t in = 0;
  ASSERT_EQ(fi_recv(node.ep(), &in, 1, nullptr, from, &greeting), 0);
  ASSERT_EQ(node.wait(&greeting).err, 0);
  ASSERT_EQ(fi_recv(node.ep(), &in, 1, nullptr, from, &never), 0);
  peer.kill_now();
  EXPECT_EQ(node.wait(&never).err, FI_ECONNRESET) << "the peer was lost, and broke no protocol";
}

}  // namespace
}  // namespace aperture::doors
