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

TEST(Source, receives_follow_their_address_to_the_other_index_that_it_has) {
  if (!on_aperture()) GTEST_SKIP() << "left open by fi_av(3)";
  for (const fi_ep_type type : {FI_EP_RDM, FI_EP_DGRAM}) {
    Options options = kOptions;
    options.type = type;
    if (type == FI_EP_DGRAM) options.caps &= ~uint64_t{FI_TAGGED};
    NodePair p(options);
    const fi_addr_t twice = p.b.insert(p.a.name());
    Op first, second;
    uint8_t in[2] = {};
    ASSERT_EQ(p.b.post(fi_recv, &in[0], 1, nullptr, twice, &first), 0);
    fi_addr_t lowest = p.to_a;
    ASSERT_EQ(fi_av_remove(p.b.av(), &lowest, 1, 0), 0);
    Node c(options);
    ASSERT_EQ(p.b.insert(c.name()), lowest) << "the index is to be used again";
    ASSERT_EQ(p.b.post(fi_recv, &in[1], 1, nullptr, lowest, &second), 0);
    const fi_addr_t from_c = c.insert(p.b.name());
    ASSERT_EQ(post([&] { return fi_inject(c.ep(), "c", 1, from_c); }), 0);
    EXPECT_EQ(p.b.wait(&second).source, lowest);
    ASSERT_EQ(post([&] { return fi_inject(p.a.ep(), "a", 1, p.to_b); }), 0);
    EXPECT_EQ(p.b.wait(&first).source, twice);
    EXPECT_EQ(in[0], 'a');
    EXPECT_EQ(in[1], 'c');
  }
}

// Sends before the receiver knows it, and is inserted then.
class EarlySender : public testing::Test {
 protected:
  EarlySender() { b.insert(a.name()); }  // not at index 0
  // From a node that b does not know yet.
  void send(Node& from, uint64_t tag, std::vector<uint8_t>& bytes, Op& op) {
    const fi_addr_t to = from.insert(b.name());
    ASSERT_EQ(from.post(fi_tsend, bytes.data(), bytes.size(), nullptr, to, tag, &op), 0);
    pump_for(50);  // it has arrived
  }
  // A directed receive of b's gets exactly those bytes, and tells their source.
  void expect_from(fi_addr_t source, uint64_t tag, const std::vector<uint8_t>& bytes) {
    Op op;
    std::vector<uint8_t> in(bytes.size());
    ASSERT_EQ(b.post(fi_trecv, in.data(), in.size(), nullptr, source, tag, 0, &op), 0);
    const Completion got = b.wait(&op, 5000);
    EXPECT_EQ(got.err, 0);
    EXPECT_EQ(got.source, source);
    EXPECT_EQ(in, bytes);
  }
  Node a{kOptions}, b{kOptions}, c{kOptions};
  Op first, second;
};

TEST_F(EarlySender, is_found_by_a_receive_from_it_once_it_is_inserted) {
  for (const size_t size : {size_t{1}, size_t{3000}, size_t{1} << 20}) {
    Node late(kOptions);
    std::vector<uint8_t> one(size, 1), two(size, 2);
    send(late, 5, one, first);
    send(late, 5, two, second);
    const fi_addr_t source = b.insert(late.name());
    expect_from(source, 5, one);
    expect_from(source, 5, two);
  }
}

TEST_F(EarlySender, is_not_taken_for_another_that_is_inserted) {
  std::vector<uint8_t> bytes(8, 7);
  send(c, 5, bytes, first);
  Node other(kOptions);
  const fi_addr_t another = b.insert(other.name());
  Op op;
  uint8_t in[8] = {};
  ASSERT_EQ(b.post(fi_trecv, in, sizeof in, nullptr, another, 5, 0, &op), 0);
  EXPECT_TRUE(b.quiet());
  expect_from(b.insert(c.name()), 5, bytes);
}

TEST_F(EarlySender, is_found_by_a_peek_and_by_untagged_receives) {
  const fi_addr_t to = c.insert(b.name());
  ASSERT_EQ(post([&] { return fi_inject(c.ep(), "u", 1, to); }), 0);
  ASSERT_EQ(post([&] { return fi_tinject(c.ep(), "t", 1, to, 9); }), 0);
  pump_for(50);
  const fi_addr_t source = b.insert(c.name());
  Op peek, op;
  const fi_msg_tagged look{.addr = source, .tag = 9, .context = &peek};
  ASSERT_EQ(b.post(fi_trecvmsg, &look, FI_PEEK), 0);
  EXPECT_EQ(b.wait(&peek).err, 0);
  char in = 0;
  ASSERT_EQ(b.post(fi_recv, &in, 1, nullptr, source, &op), 0);
  EXPECT_EQ(b.wait(&op, 5000).err, 0);
  EXPECT_EQ(in, 'u');
}

TEST_F(EarlySender, removed_and_inserted_again_is_itself) {
  std::vector<uint8_t> bytes(8, 7);
  fi_addr_t before = b.insert(c.name());
  send(c, 5, bytes, first);
  ASSERT_EQ(fi_av_remove(b.av(), &before, 1, 0), 0);
  expect_from(b.insert(c.name()), 5, bytes);
}

TEST_F(EarlySender, inserted_again_at_a_lower_index_keeps_messages_and_receives) {
  Node gap(kOptions);
  fi_addr_t hole = b.insert(gap.name());
  const fi_addr_t source = b.insert(c.name());
  std::vector<uint8_t> bytes(8, 7);
  send(c, 5, bytes, first);
  Op posted;
  uint8_t in = 0;
  ASSERT_EQ(b.post(fi_trecv, &in, 1, nullptr, source, 6, 0, &posted), 0);
  ASSERT_EQ(fi_av_remove(b.av(), &hole, 1, 0), 0);
  const fi_addr_t lower = b.insert(c.name());
  ASSERT_LT(lower, source);
  Op op;
  uint8_t got[8] = {};
  ASSERT_EQ(b.post(fi_trecv, got, sizeof got, nullptr, source, 5, 0, &op), 0);
  EXPECT_EQ(b.wait(&op, 5000).err, 0);
  ASSERT_EQ(post([&] { return fi_tinject(c.ep(), "p", 1, 0, 6); }), 0);
  EXPECT_EQ(b.wait(&posted, 5000).err, 0);
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
