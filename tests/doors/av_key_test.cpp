// Authorization keys of address vectors (FI_AV_AUTH_KEY) through libfabric 1.20 and later, between
// two processes: an endpoint that is reached by two keys, receives that take what comes by one, and
// a region of one key. What each call refuses is in tests/provider/av_keys_test.cpp, which needs no
// such library. man 3 fi_av, fi_msg, fi_mr.
#include <gtest/gtest.h>

#include <cstring>

#include "doors/child.hpp"
#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

constexpr int kWait_ms = 20'000;
constexpr size_t kBytes = 4096;

Options keyed() {
  return {.api = FI_VERSION(1, 20),
          .caps = kUsualCaps | FI_SOURCE | FI_DIRECTED_RECV,
          .enable = false,
          .av_keys = true};
}

fi_addr_t insert_key(Node& node, const char* bytes) {
  fi_addr_t handle = FI_ADDR_NOTAVAIL;
  DOOR(fi_av_insert_auth_key(node.av(), bytes, std::strlen(bytes), &handle, 0));
  return handle;
}

fi_addr_t insert(Node& node, const Name& name, fi_addr_t by_key) {
  fi_addr_t addr = by_key;
  EXPECT_EQ(fi_av_insert(node.av(), name.data(), 1, &addr, FI_AUTH_KEY, nullptr), 1);
  return addr;
}

// Whatever comes by that key.
void receive(Node& node, char* to, fi_addr_t by_key, Op& op) {
  iovec iov{to, 1};
  const fi_msg_tagged msg{&iov, nullptr, 1, by_key, 0, 0, &op, 0};
  DOOR(fi_trecvmsg(node.ep(), &msg, FI_AUTH_KEY));
}

Fid<fid_mr> register_by(Node& node, char* memory, fi_addr_t by_key) {
  fi_mr_auth_key key{node.av(), by_key};
  iovec iov{memory, kBytes};
  fi_mr_attr attr{};
  attr.mr_iov = &iov;
  attr.iov_count = 1;
  attr.access = FI_REMOTE_WRITE;
  attr.requested_key = 7;
  attr.auth_key = reinterpret_cast<uint8_t*>(&key);
  attr.auth_key_size = sizeof key;
  fid_mr* mr = nullptr;
  DOOR(fi_mr_regattr(node.domain(), &attr, FI_AUTH_KEY, &mr));
  return Fid<fid_mr>(mr);
}

struct Offer {
  Name name;
  uint64_t key = 0;
};

// Has both keys, in the other order; takes one message by each and sends it back by the other. Its
// region is red.
DOOR_ROLE(av_key_peer) {
  std::vector<char> memory(kBytes, '-');
  Node node(keyed());
  const fi_addr_t blue = insert_key(node, "blue"), red = insert_key(node, "red");
  DOOR(fi_enable(node.ep()));
  const Fid<fid_mr> region = register_by(node, memory.data(), red);
  Name theirs;
  if (!control.put(Offer{node.name(), fi_mr_key(region.get())}) || !control.get(&theirs)) return 1;
  const fi_addr_t by_blue = insert(node, theirs, blue), by_red = insert(node, theirs, red);
  char from_blue = 0, from_red = 0;
  Op blue_op, red_op;
  receive(node, &from_blue, blue, blue_op);
  receive(node, &from_red, red, red_op);
  const Completion blue_one = node.wait(&blue_op), red_one = node.wait(&red_op);
  if (blue_one.err != 0 || blue_one.source != by_blue) return 2;
  if (red_one.err != 0 || red_one.source != by_red) return 3;
  DOOR(node.post(fi_tinject, &from_blue, 1, by_red, 0));
  DOOR(node.post(fi_tinject, &from_red, 1, by_blue, 0));
  while (!control.ready()) node.poll();
  char word = 0;
  return control.get(&word) && control.put(memory[0]) && control.get(&word) ? 0 : 4;
}

TEST(AvKey, an_endpoint_and_its_region_are_reached_by_key) {
  Child peer("av_key_peer");
  Node node(keyed());
  EXPECT_GE(node.info()->domain_attr->max_ep_auth_key, 2u);
  const fi_addr_t red = insert_key(node, "red"), blue = insert_key(node, "blue");
  DOOR(fi_enable(node.ep()));
  Offer offer;
  ASSERT_TRUE(peer.control().get(&offer, kWait_ms));
  ASSERT_TRUE(peer.control().put(Name(node.name())));
  const fi_addr_t by_red = insert(node, offer.name, red), by_blue = insert(node, offer.name, blue);
  char from_red = 0, from_blue = 0;
  Op red_op, blue_op;
  receive(node, &from_red, red, red_op);
  receive(node, &from_blue, blue, blue_op);
  ASSERT_EQ(node.post(fi_tinject, "r", 1, by_red, 0), 0);
  ASSERT_EQ(node.post(fi_tinject, "b", 1, by_blue, 0), 0);
  EXPECT_EQ(node.wait(&red_op).source, by_red);
  EXPECT_EQ(node.wait(&blue_op).source, by_blue);
  EXPECT_EQ(from_red, 'b');
  EXPECT_EQ(from_blue, 'r');
  EXPECT_EQ(node.run(fi_write, "x", 1, nullptr, by_blue, 0, offer.key), FI_EACCES)
      << "the region is of the other key";
  EXPECT_EQ(node.run(fi_write, "y", 1, nullptr, by_red, 0, offer.key), 0);
  char word = 'x';
  ASSERT_TRUE(peer.control().put(word));
  ASSERT_TRUE(peer.control().get(&word, kWait_ms));
  EXPECT_EQ(word, 'y');
  ASSERT_TRUE(peer.control().put(word));
  EXPECT_EQ(peer.join(), 0);
}

}  // namespace
}  // namespace aperture::doors
