// Buffered receives of tagged messages: tags are posted, what matches is shown, and then claimed or
// discarded. fi_tagged(3), "Buffered Tagged Receives".
#include <gtest/gtest.h>

#include "doors/shown.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kTagged = FI_RECV | FI_TAGGED;

class BufferedTag : public testing::TestWithParam<size_t> {
 protected:
  void send(uint64_t tag, size_t size, uint64_t seed) {
    out_.push_back(std::make_unique<Guarded>(size));
    fill(out_.back()->span(), seed);
    ops_.push_back(std::make_unique<Op>());
    ASSERT_EQ(
        p.a.post(fi_tsend, out_.back()->data(), size, nullptr, p.to_b, tag, ops_.back().get()), 0);
  }
  void sent() {
    for (auto& op : ops_) ASSERT_EQ(p.a.wait(op.get()).err, 0);
    ops_.clear();
  }
  // Of a receive nothing but the tag counts.
  void post_tag(uint64_t tag, Op* op, uint64_t ignore = 0, fi_addr_t from = FI_ADDR_UNSPEC) {
    ASSERT_EQ(
        fi_trecv(p.b.ep(), reinterpret_cast<void*>(8), SIZE_MAX, nullptr, from, tag, ignore, op),
        0);
  }
  void claim(const Sight& s, size_t size, uint64_t tag, uint64_t seed) {
    Guarded in(size);
    iovec iov{in.data(), size};
    Op mine;
    ASSERT_EQ(end_tagged_sight(p.b.ep(), s, FI_CLAIM, &mine, &iov), 0);
    const Completion c = p.b.wait(&mine);
    ASSERT_EQ(c.err, 0);
    EXPECT_EQ(c.flags, kTagged | FI_CLAIM);
    EXPECT_EQ(c.len, size);
    EXPECT_EQ(c.tag, tag);
    EXPECT_EQ(c.source, p.to_a);
    EXPECT_FALSE(first_difference(in.span(), seed));
    EXPECT_TRUE(in.intact());
  }
  void looks_right(const Sight& s, const Op* op, size_t size, uint64_t tag, uint64_t seed) {
    ASSERT_EQ(s.err, 0);
    EXPECT_EQ(s.flags, kTagged | (size > 16384 ? FI_MORE : 0));
    EXPECT_EQ(s.len, size);
    EXPECT_EQ(s.tag, tag);
    EXPECT_EQ(s.source, p.to_a);
    EXPECT_EQ(s.recv_context()->ep, nullptr);
    EXPECT_EQ(s.recv_context()->context, op);
    EXPECT_TRUE(s.begins_with(seed, size > 16384 ? 64 : size));
  }
  static Options options() {
    Options o = buffered_options();
    o.caps |= FI_DIRECTED_RECV;
    return o;
  }

  NodePair p{options()};
  std::vector<std::unique_ptr<Guarded>> out_;
  std::vector<std::unique_ptr<Op>> ops_;
};
using BufferedTagCall = BufferedTag;

INSTANTIATE_TEST_SUITE_P(Sizes, BufferedTag,
                         testing::Values(0, 8, 257, 16384, 16385, 100000, 2 * kMiB + 3),
                         testing::PrintToStringParamName());

TEST_P(BufferedTag, a_message_is_shown_to_the_tag_that_was_posted_for_it) {
  Op one, two;
  post_tag(1, &one);
  post_tag(2, &two);
  send(2, GetParam(), 22);
  send(1, GetParam(), 11);
  const Sight second = next_sight(p.b), first = next_sight(p.b);
  looks_right(second, &two, GetParam(), 2, 22);
  looks_right(first, &one, GetParam(), 1, 11);
  claim(first, GetParam(), 1, 11);
  claim(second, GetParam(), 2, 22);
  sent();
}

TEST_P(BufferedTag, a_message_waits_for_its_tag) {
  send(5, GetParam(), 55);
  EXPECT_TRUE(p.b.quiet()) << "nothing is shown that no tag asks for";
  Op op;
  post_tag(4, &op, 1);  // 5 with its lowest bit ignored
  const Sight s = next_sight(p.b);
  looks_right(s, &op, GetParam(), 5, 55);
  claim(s, GetParam(), 5, 55);
  sent();
  EXPECT_TRUE(p.b.quiet()) << "a tag is for one message";
}

TEST_P(BufferedTag, a_message_can_be_discarded_with_claim_and_without) {
  for (const uint64_t flags : {uint64_t{FI_DISCARD}, uint64_t{FI_DISCARD | FI_CLAIM}}) {
    Op op, mine;
    post_tag(1, &op);
    send(1, GetParam(), 9);
    const Sight s = next_sight(p.b);
    ASSERT_EQ(end_tagged_sight(p.b.ep(), s, flags, &mine), 0);
    EXPECT_EQ(p.b.wait(&mine).err, 0);
    sent();
  }
}

TEST_P(BufferedTag, match_complete_waits_for_the_claim_or_the_discard) {
  for (const uint64_t flags : {uint64_t{FI_CLAIM}, uint64_t{FI_DISCARD}}) {
    Guarded out(GetParam()), in(GetParam());
    fill(out.span(), 6);
    iovec iov{out.data(), out.size()};
    Op send, tag, mine;
    const fi_msg_tagged m{&iov, nullptr, 1, p.to_b, 3, 0, &send, 0};
    post_tag(3, &tag);
    ASSERT_EQ(p.a.post(fi_tsendmsg, &m, FI_MATCH_COMPLETE), 0);
    const Sight s = next_sight(p.b);
    looks_right(s, &tag, GetParam(), 3, 6);
    EXPECT_TRUE(p.a.quiet());
    iovec into{in.data(), in.size()};
    ASSERT_EQ(end_tagged_sight(p.b.ep(), s, flags, &mine, &into), 0);
    EXPECT_EQ(p.b.wait(&mine).err, 0);
    EXPECT_EQ(p.a.wait(&send).err, 0);
    if (flags == FI_CLAIM) {
      EXPECT_FALSE(first_difference(in.span(), 6));
    }
  }
}

TEST_P(BufferedTag, a_peek_finds_what_no_tag_has_met_and_claims_it_by_its_own_context) {
  Op op;
  send(7, GetParam(), 70);
  Completion c{.err = FI_ENOMSG};
  for (const int64_t end = now_ns() + 10'000'000'000; c.err == FI_ENOMSG && now_ns() < end;) {
    const fi_msg_tagged peek{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 7, 0, &op, 0};
    ASSERT_EQ(p.b.post(fi_trecvmsg, &peek, FI_PEEK | FI_CLAIM), 0);
    c = p.b.wait(&op);
  }
  ASSERT_EQ(c.err, 0);
  EXPECT_EQ(c.len, GetParam());
  Guarded in(GetParam());
  iovec iov{in.data(), in.size()};
  const fi_msg_tagged take{&iov, nullptr, 1, FI_ADDR_UNSPEC, 7, 0, &op, 0};
  ASSERT_EQ(p.b.post(fi_trecvmsg, &take, FI_CLAIM), 0);
  EXPECT_EQ(p.b.wait(&op).err, 0);
  EXPECT_FALSE(first_difference(in.span(), 70));
  sent();
}

TEST_F(BufferedTagCall, every_way_to_post_a_tag_ignores_buffers) {
  Op ops[3];
  iovec nowhere{nullptr, 100};
  ASSERT_EQ(fi_trecv(p.b.ep(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, 0, 0, &ops[0]), 0);
  ASSERT_EQ(fi_trecvv(p.b.ep(), &nowhere, nullptr, 1000, FI_ADDR_UNSPEC, 1, 0, &ops[1]), 0);
  const fi_msg_tagged m{nullptr, nullptr, 1000, FI_ADDR_UNSPEC, 2, 0, &ops[2], 0};
  ASSERT_EQ(fi_trecvmsg(p.b.ep(), &m, 0), 0);
  for (uint64_t tag = 0; tag < 3; ++tag) {
    send(tag, 100, tag);
    const Sight s = next_sight(p.b);
    looks_right(s, &ops[tag], 100, tag, tag);
    claim(s, 100, tag, tag);
  }
  sent();
}

TEST_F(BufferedTagCall, a_tag_of_one_peer_takes_no_message_of_another) {
  Node other(options());
  const fi_addr_t from_other = p.b.insert(other.name());
  const fi_addr_t to = other.insert(p.b.name());
  Op op;
  post_tag(1, &op, 0, from_other);
  send(1, 8, 1);
  EXPECT_TRUE(p.b.quiet());
  ASSERT_EQ(other.post(fi_tinject, "x", 1, to, 1), 0);
  const Sight s = next_sight(p.b);
  EXPECT_EQ(s.source, from_other);
  EXPECT_EQ(s.len, 1u);
}

TEST_F(BufferedTagCall, a_tag_that_has_met_nothing_can_be_canceled) {
  Op op;
  post_tag(1, &op);
  ASSERT_EQ(fi_cancel(&p.b.ep()->fid, &op), 0);
  const Completion c = p.b.wait(&op);
  EXPECT_EQ(c.err, FI_ECANCELED);
  EXPECT_EQ(c.flags, kTagged);
  EXPECT_NE(fi_cancel(&p.b.ep()->fid, &op), 0);
  EXPECT_NE(fi_cancel(&p.b.ep()->fid, nullptr), 0) << "untagged messages are shown all the same";
  ASSERT_EQ(p.a.post(fi_inject, "x", 1, p.to_b), 0);
  EXPECT_EQ(next_sight(p.b).flags, FI_RECV | FI_MSG);
}

}  // namespace
}  // namespace aperture::doors
