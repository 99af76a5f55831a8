// FI_TAGGED through the door: fi_tagged(3). Sizes over every topology, matching by tag, ignore mask
// and source, order within a match, and the calls one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "doors/side.hpp"

namespace aperture::doors {
namespace {

constexpr uint32_t kSend = 1;
constexpr uint32_t kReceive = 2;

class Tagged : public testing::TestWithParam<Topology> {};

TEST_P(Tagged, every_size_arrives_with_its_tag) {
  Duo duo = make_duo(GetParam(), {});
  for (bool expected : {true, false}) {
    for (size_t size : all_sizes()) {
      const uint64_t tag = seed_of(size), seed = tag + expected;
      if (expected) duo.second->tagged_receive(kReceive, size, tag);
      duo.first->tagged_send(kSend, duo.to_second, size, seed, tag);
      if (!expected) duo.second->tagged_receive(kReceive, size, tag);
      const Completion received = duo.second->wait(kReceive);
      const Completion sent = duo.first->wait(kSend);
      ASSERT_EQ(received.err, 0) << "size " << size << " expected " << expected;
      ASSERT_EQ(sent.err, 0) << size;
      ASSERT_EQ(received.tag, tag);
      ASSERT_EQ(received.len, size);
      ASSERT_EQ(received.flags & (FI_TAGGED | FI_RECV), FI_TAGGED | FI_RECV);
      ASSERT_TRUE(duo.second->verify(kReceive, size, seed)) << size;
    }
  }
  EXPECT_TRUE(duo.first->quiet());
  EXPECT_TRUE(duo.second->quiet());
}

TEST_P(Tagged, a_longer_message_is_truncated_with_its_overflow) {
  Duo duo = make_duo(GetParam(), {});
  for (bool expected : {true, false}) {
    for (size_t size : few_sizes()) {
      if (size == 0) continue;
      if (expected) duo.second->tagged_receive(kReceive, size - 1, 7);
      duo.first->tagged_send(kSend, duo.to_second, size, 3, 7);
      if (!expected) duo.second->tagged_receive(kReceive, size - 1, 7);
      const Completion received = duo.second->wait(kReceive);
      ASSERT_EQ(received.err, FI_ETRUNC) << size;
      ASSERT_EQ(received.len, size - 1) << "what has been delivered";
      ASSERT_EQ(received.olen, 1u);
      ASSERT_EQ(received.tag, 7u);
      ASSERT_TRUE(duo.second->verify(kReceive, 0, 0)) << "canaries";
      ASSERT_NE(duo.first->wait(kSend).err, -1);
    }
  }
}

TEST_P(Tagged, messages_are_taken_out_of_order_by_tag) {
  Duo duo = make_duo(GetParam(), {});
  constexpr uint32_t kCount = 40;
  const auto size_of = [](uint32_t i) { return few_sizes()[i % (few_sizes().size() - 2)]; };
  for (uint32_t i = 0; i < kCount; ++i)
    duo.first->tagged_send(1000 + i, duo.to_second, size_of(i), seed_of(i), i);
  for (uint32_t i = kCount; i-- > 0;) {
    duo.second->tagged_receive(100 + i, size_of(i), i);
    ASSERT_EQ(duo.second->wait(100 + i).err, 0) << i;
    ASSERT_TRUE(duo.second->verify(100 + i, size_of(i), seed_of(i))) << i;
  }
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(duo.first->wait(1000 + i).err, 0);
}

TEST_P(Tagged, one_tag_keeps_its_order) {
  Duo duo = make_duo(GetParam(), {});
  constexpr uint32_t kCount = 60;
  const auto size_of = [](uint32_t i) { return few_sizes()[i % (few_sizes().size() - 2)]; };
  for (uint32_t i = 0; i < kCount; ++i) {
    if (i % 3 == 0) duo.second->tagged_receive(100 + i, 128 * kKiB, 5);
    duo.first->tagged_send(1000 + i, duo.to_second, size_of(i), seed_of(i), 5);
    if (i % 3 != 0) duo.second->tagged_receive(100 + i, 128 * kKiB, 5);
  }
  for (uint32_t i = 0; i < kCount; ++i) {
    const Completion received = duo.second->wait(100 + i);
    ASSERT_EQ(received.len, size_of(i)) << i;
    ASSERT_TRUE(duo.second->verify(100 + i, size_of(i), seed_of(i))) << i;
    ASSERT_EQ(duo.first->wait(1000 + i).err, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Topologies, Tagged,
                         testing::Values(Topology::self, Topology::one_domain,
                                         Topology::two_domains, Topology::two_processes),
                         [](const auto& p) { return name_of(p.param); });

// A message of one byte to b, tagged.
void inject(NodePair* p, uint64_t tag, uint8_t value) {
  ASSERT_EQ(p->a.post(fi_tinject, &value, 1, p->to_b, tag), 0);
}

TEST(TaggedCall, a_tag_that_differs_in_any_bit_does_not_match) {
  NodePair p;
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t tag = 0x0123456789ABCDEFull;
    uint8_t wrong = 0, right = 0;
    Op wrong_receive, right_receive;
    ASSERT_EQ(fi_trecv(p.b.ep(), &wrong, 1, nullptr, FI_ADDR_UNSPEC, tag ^ (1ull << bit), 0,
                       &wrong_receive),
              0);
    ASSERT_EQ(fi_trecv(p.b.ep(), &right, 1, nullptr, FI_ADDR_UNSPEC, tag, 0, &right_receive), 0);
    inject(&p, tag, 1);
    ASSERT_EQ(p.b.wait(&right_receive).err, 0);
    ASSERT_EQ(wrong, 0);
    ASSERT_EQ(fi_cancel(&p.b.ep()->fid, &wrong_receive), 0);
    ASSERT_EQ(p.b.wait(&wrong_receive).err, FI_ECANCELED);
  }
}

TEST(TaggedCall, ignored_bits_do_not_count_and_the_true_tag_is_reported) {
  NodePair p;
  for (uint64_t ignore : {0xFFull, 0xFFFFFFFF00000000ull, ~0ull}) {
    for (bool expected : {true, false}) {
      const uint64_t tag = 0x1122334455667788ull;
      uint8_t in = 0;
      Op receive;
      if (!expected) inject(&p, tag, 9);
      ASSERT_EQ(fi_trecv(p.b.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, tag ^ ignore, ignore, &receive),
                0);
      if (expected) inject(&p, tag, 9);
      const Completion c = p.b.wait(&receive);
      EXPECT_EQ(c.err, 0);
      EXPECT_EQ(c.tag, tag);
      EXPECT_EQ(in, 9);
    }
  }
}

TEST(TaggedCall, receives_match_in_the_order_they_were_posted) {
  NodePair p;
  uint8_t in[3] = {};
  Op ops[3];
  // the wildcard stands before the exact one: it must win
  ASSERT_EQ(fi_trecv(p.b.ep(), &in[0], 1, nullptr, FI_ADDR_UNSPEC, 99, 0, &ops[0]), 0);
  ASSERT_EQ(fi_trecv(p.b.ep(), &in[1], 1, nullptr, FI_ADDR_UNSPEC, 0, ~0ull, &ops[1]), 0);
  ASSERT_EQ(fi_trecv(p.b.ep(), &in[2], 1, nullptr, FI_ADDR_UNSPEC, 5, 0, &ops[2]), 0);
  inject(&p, 5, 'a');
  inject(&p, 5, 'b');
  inject(&p, 99, 'c');
  for (Op& op : ops) EXPECT_EQ(p.b.wait(&op).err, 0);
  EXPECT_EQ(std::string(in, in + 3), "cab");
}

TEST(TaggedCall, tagged_and_untagged_messages_never_meet) {
  NodePair p;
  uint8_t tagged = 0, plain = 0;
  Op tagged_receive, plain_receive;
  ASSERT_EQ(p.a.post(fi_inject, "p", 1, p.to_b), 0);
  inject(&p, 0, 't');
  ASSERT_EQ(fi_trecv(p.b.ep(), &tagged, 1, nullptr, FI_ADDR_UNSPEC, 0, ~0ull, &tagged_receive), 0);
  ASSERT_EQ(fi_recv(p.b.ep(), &plain, 1, nullptr, FI_ADDR_UNSPEC, &plain_receive), 0);
  EXPECT_EQ(p.b.wait(&tagged_receive).err, 0);
  EXPECT_EQ(p.b.wait(&plain_receive).err, 0);
  EXPECT_EQ(tagged, 't');
  EXPECT_EQ(plain, 'p');
}

TEST(TaggedCall, every_way_to_send_carries_tag_and_data) {
  NodePair p({.cq_data_size = 4});
  uint8_t in = 0, out = 0x5A;
  Op send, receive;
  iovec iov{&out, 1};
  void* desc = nullptr;
  uint64_t tag = 100;
  const auto round = [&](const char* name, bool completes, bool has_data, auto call) {
    SCOPED_TRACE(name);
    in = 0;
    ++tag;
    ASSERT_EQ(fi_trecv(p.b.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, tag, 0, &receive), 0);
    ASSERT_EQ(post([&] { return call(tag); }), 0);
    const Completion c = p.b.wait(&receive);
    EXPECT_EQ(c.err, 0);
    EXPECT_EQ(c.tag, tag);
    EXPECT_EQ(in, out);
    EXPECT_EQ((c.flags & FI_REMOTE_CQ_DATA) != 0, has_data);
    if (has_data) {
      EXPECT_EQ(c.data, 0xABCDEF01u);
    }
    if (completes) {
      EXPECT_EQ(p.a.wait(&send).err, 0);
    }
    EXPECT_TRUE(p.a.quiet(2));
  };
  fid_ep* ep = p.a.ep();
  const fi_addr_t to = p.to_b;
  round("tsend", true, false,
        [&](uint64_t t) { return fi_tsend(ep, &out, 1, desc, to, t, &send); });
  round("tsendv", true, false,
        [&](uint64_t t) { return fi_tsendv(ep, &iov, &desc, 1, to, t, &send); });
  round("tinject", false, false, [&](uint64_t t) { return fi_tinject(ep, &out, 1, to, t); });
  round("tsenddata", true, true,
        [&](uint64_t t) { return fi_tsenddata(ep, &out, 1, desc, 0xABCDEF01, to, t, &send); });
  round("tinjectdata", false, true,
        [&](uint64_t t) { return fi_tinjectdata(ep, &out, 1, 0xABCDEF01, to, t); });
  for (uint64_t flags : {0ull, FI_INJECT, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE,
                         FI_INJECT_COMPLETE, FI_REMOTE_CQ_DATA, FI_COMPLETION, FI_MORE}) {
    round(fi_tostr(&flags, FI_TYPE_OP_FLAGS), true, (flags & FI_REMOTE_CQ_DATA) != 0,
          [&](uint64_t t) {
            fi_msg_tagged m{&iov, &desc, 1, to, t, 0, &send, 0xABCDEF01};
            return fi_tsendmsg(ep, &m, flags);
          });
  }
}

TEST(TaggedCall, trecvv_scatters_and_trecvmsg_takes_a_mask) {
  NodePair p;
  const size_t parts = std::min<size_t>(p.b.info()->rx_attr->iov_limit, 4);
  std::vector<uint8_t> in(parts * 10);
  std::vector<iovec> iov(parts);
  for (size_t i = 0; i < parts; ++i) iov[i] = {&in[i * 10], 10};
  std::vector<uint8_t> out(in.size());
  fill(out, 77);
  Op send, receive;
  ASSERT_EQ(fi_trecvv(p.b.ep(), iov.data(), nullptr, parts, FI_ADDR_UNSPEC, 1, 0, &receive), 0);
  ASSERT_EQ(p.a.post(fi_tsend, out.data(), out.size(), nullptr, p.to_b, 1, &send), 0);
  EXPECT_EQ(p.b.wait(&receive).err, 0);
  EXPECT_EQ(in, out);
  EXPECT_EQ(p.a.wait(&send).err, 0);
  std::fill(in.begin(), in.end(), 0);
  fi_msg_tagged m{iov.data(), nullptr, parts, FI_ADDR_UNSPEC, 0xF0, 0x0F, &receive, 0};
  ASSERT_EQ(fi_trecvmsg(p.b.ep(), &m, FI_COMPLETION), 0);
  ASSERT_EQ(p.a.post(fi_tsend, out.data(), out.size(), nullptr, p.to_b, 0xF7, &send), 0);
  EXPECT_EQ(p.b.wait(&receive).tag, 0xF7u);
  EXPECT_EQ(in, out);
}

TEST(TaggedCall, directed_receive_takes_only_its_sender) {
  const Options options{.caps = kUsualCaps | FI_DIRECTED_RECV | FI_SOURCE};
  Node target(options), one(options), two(options);
  const fi_addr_t from_one = target.insert(one.name());
  const fi_addr_t from_two = target.insert(two.name());
  const fi_addr_t one_to = one.insert(target.name()), two_to = two.insert(target.name());
  for (bool expected : {true, false}) {
    uint8_t in_two = 0, in_one = 0;
    Op op_two, op_one;
    const auto receives = [&] {
      ASSERT_EQ(fi_trecv(target.ep(), &in_two, 1, nullptr, from_two, 3, 0, &op_two), 0);
      ASSERT_EQ(fi_trecv(target.ep(), &in_one, 1, nullptr, from_one, 3, 0, &op_one), 0);
    };
    if (expected) receives();
    ASSERT_EQ(one.post(fi_tinject, "1", 1, one_to, 3), 0);
    pump_for(5);
    ASSERT_EQ(two.post(fi_tinject, "2", 1, two_to, 3), 0);
    pump_for(5);
    if (!expected) receives();
    EXPECT_EQ(target.wait(&op_two).source, from_two);
    EXPECT_EQ(target.wait(&op_one).source, from_one);
    EXPECT_EQ(in_one, '1');
    EXPECT_EQ(in_two, '2');
  }
}

TEST(TaggedCall, cancel_of_one_receive_leaves_its_neighbours) {
  NodePair p;
  constexpr int kCount = 30;
  uint8_t in[kCount] = {};
  Op ops[kCount];
  for (int i = 0; i < kCount; ++i)
    ASSERT_EQ(fi_trecv(p.b.ep(), &in[i], 1, nullptr, FI_ADDR_UNSPEC, 4, 0, &ops[i]), 0);
  for (int i = 0; i < kCount; i += 3) {
    ASSERT_EQ(fi_cancel(&p.b.ep()->fid, &ops[i]), 0);
    ASSERT_EQ(p.b.wait(&ops[i]).err, FI_ECANCELED);
  }
  for (int i = 0; i < kCount; ++i)
    if (i % 3 != 0) inject(&p, 4, static_cast<uint8_t>(i));
  for (int i = 0; i < kCount; ++i) {
    if (i % 3 == 0) continue;
    ASSERT_EQ(p.b.wait(&ops[i]).err, 0);
    ASSERT_EQ(in[i], i);
  }
  EXPECT_TRUE(p.b.quiet());
}

TEST(TaggedCall, many_tags_posted_backwards_all_match) {
  NodePair p;
  constexpr uint64_t kCount = 500;
  std::vector<uint64_t> in(kCount, ~0ull);
  std::vector<Op> ops(kCount);
  size_t posted = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const uint64_t tag = kCount - 1 - i;
    if (fi_trecv(p.b.ep(), &in[tag], 8, nullptr, FI_ADDR_UNSPEC, tag, 0, &ops[tag]) != 0) break;
    ++posted;
  }
  for (uint64_t tag = kCount - posted; tag < kCount; ++tag)
    ASSERT_EQ(p.a.post(fi_tinject, &tag, 8, p.to_b, tag), 0);
  for (uint64_t tag = kCount - posted; tag < kCount; ++tag) {
    ASSERT_EQ(p.b.wait(&ops[tag]).err, 0);
    ASSERT_EQ(in[tag], tag);
  }
}

}  // namespace
}  // namespace aperture::doors
