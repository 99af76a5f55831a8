// User ids of addresses: FI_AV_USER_ID. fi_av(3), "USER IDENTIFIERS FOR ADDRESSES".
#include <gtest/gtest.h>

#include "doors/contexts.hpp"
#include "doors/payload.hpp"
#include "doors/shown.hpp"
#include "doors/side.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kCaps = FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV | FI_AV_USER_ID;

fi_addr_t insert_as(fid_av* av, const std::vector<uint8_t>& name, fi_addr_t id) {
  fi_addr_t addr = id;
  const int inserted = fi_av_insert(av, name.data(), 1, &addr, FI_AV_USER_ID, nullptr);
  EXPECT_EQ(inserted, 1);
  return addr;
}

class UserId : public testing::Test {
 protected:
  explicit UserId(uint64_t mode = 0)
      : hub({.caps = kCaps, .mode = FI_CONTEXT | FI_CONTEXT2 | mode}), ep(hub.enabled(nullptr)) {
    name = peer.open({.caps = FI_MSG | FI_TAGGED});
    to = peer.insert(name_of(&ep->fid));
  }
  Completion receive(fi_addr_t from = FI_ADDR_UNSPEC) {
    Op op;
    uint64_t box = 0;
    EXPECT_EQ(fi_recv(ep.get(), &box, 8, nullptr, from, &op), 0);
    return hub.wait(&op);
  }
  Hub hub;
  Fid<fid_ep> ep;
  RemoteSide peer;
  std::vector<uint8_t> name;
  fi_addr_t to = FI_ADDR_UNSPEC;
};

TEST_F(UserId, is_the_source_of_completions_and_not_the_address_of_operations) {
  const fi_addr_t addr = insert_as(hub.av(), name, 0xfeed'face'cafe'beefu);
  EXPECT_EQ(addr, 0u) << "the output of the insertion is unchanged";
  for (uint32_t i = 0; i < 2; ++i) {
    peer.send(i, to, 8, i);
    const Completion c = receive(i == 0 ? FI_ADDR_UNSPEC : addr);
    EXPECT_EQ(c.err, 0);
    EXPECT_EQ(c.source, 0xfeed'face'cafe'beefu);
  }
  peer.send(5, to, 8, 5);  // and of what came first
  pump_for(50);
  EXPECT_EQ(receive(addr).source, 0xfeed'face'cafe'beefu);
  Op sent;
  const uint64_t word = 1;
  peer.receive(6, 8);
  ASSERT_EQ(post(fi_send, ep.get(), &word, 8, nullptr, addr, &sent), 0);
  EXPECT_EQ(hub.wait(&sent).err, 0);
}

TEST_F(UserId, is_of_the_insertions_that_give_one) {
  const fi_addr_t plain = hub.insert(name);
  peer.send(1, to, 8, 1);
  EXPECT_EQ(receive().source, plain);
  fi_addr_t gone = plain;
  ASSERT_EQ(fi_av_remove(hub.av(), &gone, 1, 0), 0);
  insert_as(hub.av(), name, 77);
  peer.send(2, to, 8, 2);
  EXPECT_EQ(receive().source, 77u);
}

TEST_F(UserId, is_given_in_an_array_and_by_name) {
  std::vector<uint8_t> names = name;
  names.insert(names.end(), name.begin(), name.end());
  names[name.size() + 3] ^= 1;  // another port
  fi_addr_t ids[] = {50, 51};
  ASSERT_EQ(fi_av_insert(hub.av(), names.data(), 2, ids, FI_AV_USER_ID, nullptr), 2);
  EXPECT_EQ(ids[0], 0u);
  EXPECT_EQ(ids[1], 1u);
  peer.send(1, to, 8, 1);
  EXPECT_EQ(receive().source, 50u);
}

TEST_F(UserId, needs_an_array_to_be_given_in) {
  EXPECT_EQ(fi_av_insert(hub.av(), name.data(), 1, nullptr, FI_AV_USER_ID, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_av_insert(hub.av(), name.data(), 1, nullptr, 0, nullptr), 1);
}

TEST(UserIdOfDatagrams, is_the_source_of_completions) {
  const HubOptions options{.caps = FI_MSG | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV,
                           .type = FI_EP_DGRAM};
  Hub to(options), from(options);
  const Fid<fid_ep> receiver = to.enabled(nullptr);
  const Fid<fid_ep> sender = from.enabled(nullptr);
  const fi_addr_t at = from.insert(name_of(&receiver->fid));
  const fi_addr_t addr = insert_as(to.av(), name_of(&sender->fid), 0xfeed'face'cafe'beefu);
  uint8_t room[8192];
  const uint64_t word = 1;
  Op mine, many, sent;
  const auto send = [&] {
    ASSERT_EQ(post(fi_send, sender.get(), &word, 8, nullptr, at, &sent), 0);
    EXPECT_EQ(from.wait(&sent).err, 0);
  };
  ASSERT_EQ(fi_recv(receiver.get(), room, 8, nullptr, addr, &mine), 0);
  send();
  EXPECT_EQ(to.wait(&mine).source, 0xfeed'face'cafe'beefu);
  const iovec iov{room, sizeof room};
  const fi_msg msg{&iov, nullptr, 1, addr, &many, 0};
  ASSERT_EQ(fi_recvmsg(receiver.get(), &msg, FI_MULTI_RECV | FI_COMPLETION), 0);
  send();
  EXPECT_EQ(to.wait(&many).source, 0xfeed'face'cafe'beefu);
}

class UserIdOfShown : public UserId {
 protected:
  UserIdOfShown() : UserId(kBufferedRecv) {}
};

TEST_F(UserIdOfShown, is_the_source_of_messages_that_wait_to_be_claimed_or_discarded) {
  insert_as(hub.av(), name, 99);
  for (const uint64_t flag : {FI_CLAIM, FI_DISCARD}) {
    peer.send(1, to, 8, 1);
    ASSERT_TRUE(pump_until([&] { return !hub.done().empty(); }, 5000));
    const Sight sight{hub.done().front()};
    hub.done().pop_front();
    EXPECT_EQ(sight.source, 99u);
    uint64_t box = 0;
    iovec iov{&box, 8};
    Op mine;
    ASSERT_EQ(end_sight(ep.get(), sight, flag, &mine, &iov), 0);
    EXPECT_EQ(hub.wait(&mine).source, 99u);
  }
}

TEST(AddressVectorFlags, symmetric_vectors_are_opened_and_filled) {
  Hub hub({.av_flags = FI_SYMMETRIC});
  fi_addr_t addrs[4];
  ASSERT_EQ(fi_av_insertsym(hub.av(), "127.0.0.1", 2, "5000", 2, addrs, 0, nullptr), 4);
  EXPECT_EQ(addrs[3], 3u);
}

TEST(AddressVectorFlags, of_user_ids_came_with_a_later_version) {
  Hub hub({.caps = kCaps, .api = FI_VERSION(1, 17)});
  fi_av_attr attr{.type = FI_AV_TABLE, .flags = FI_AV_USER_ID};
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), -FI_EBADFLAGS);
}

}  // namespace
}  // namespace aperture::doors
