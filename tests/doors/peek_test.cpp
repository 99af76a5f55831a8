// FI_PEEK, FI_CLAIM and FI_DISCARD of fi_tagged(3): looking at a message that has arrived, taking
// it out of the sight of others, and dropping it.
#include <gtest/gtest.h>

#include <memory>

#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {
namespace {

class Peek : public testing::TestWithParam<size_t> {
 protected:
  static Options with_source() {
    return {.caps = kUsualCaps | FI_SOURCE | FI_DIRECTED_RECV, .cq_data_size = 4};
  }
  void send(uint64_t tag, size_t size, uint64_t seed, uint64_t data = 0x77) {
    out_ = std::make_unique<Guarded>(size, seed);
    ASSERT_EQ(p.a.post(fi_tsenddata, out_->data(), size, nullptr, data, p.to_b, tag, &send_op_), 0);
  }
  // One request; waits for what it finds.
  Completion look(uint64_t tag, uint64_t flags, Op* op, uint64_t ignore = 0,
                  fi_addr_t from = FI_ADDR_UNSPEC) {
    fi_msg_tagged m{nullptr, nullptr, 0, from, tag, ignore, op, 0};
    const int64_t r = p.b.post(fi_trecvmsg, &m, flags);
    if (r == -FI_ENOMSG) {  // some providers answer at once
      return {.err = FI_ENOMSG};
    }
    EXPECT_EQ(r, 0);
    return p.b.wait(op);
  }
  // Peeks until the message is there.
  Completion look_until_found(uint64_t tag, uint64_t flags, Op* op) {
    Completion c;
    for (const int64_t end = now_ns() + 10'000'000'000; now_ns() < end;) {
      c = look(tag, flags, op);
      if (c.err != FI_ENOMSG) return c;
    }
    return c;
  }
  void receive(uint64_t tag, size_t size, uint64_t seed, uint64_t flags, Op* op) {
    Guarded in(size);
    iovec iov{in.data(), size};
    fi_msg_tagged m{&iov, nullptr, 1, FI_ADDR_UNSPEC, tag, 0, op, 0};
    ASSERT_EQ(p.b.post(fi_trecvmsg, &m, flags), 0);
    const Completion c = p.b.wait(op);
    ASSERT_EQ(c.err, 0);
    ASSERT_EQ(c.len, size);
    ASSERT_FALSE(first_difference(in.span(), seed));
    ASSERT_TRUE(in.intact());
  }
  void sent() { ASSERT_EQ(p.a.wait(&send_op_).err, 0); }

  NodePair p{with_source()};

 private:
  std::unique_ptr<Guarded> out_;
  Op send_op_;
};
using PeekAtBytes = Peek;

TEST_P(Peek, finds_nothing_where_nothing_is) {
  Op op;
  EXPECT_EQ(look(1, FI_PEEK, &op).err, FI_ENOMSG);
  EXPECT_EQ(look(1, FI_PEEK | FI_CLAIM, &op).err, FI_ENOMSG);
  EXPECT_EQ(look(1, FI_PEEK | FI_DISCARD, &op).err, FI_ENOMSG);
  EXPECT_EQ(look(1, FI_PEEK, &op, ~0ull).err, FI_ENOMSG);
  EXPECT_TRUE(p.b.quiet()) << "a peek does not stay posted";
}

TEST_P(Peek, that_finds_nothing_asks_for_no_buffer) {
  Op op;
  fi_msg_tagged m{nullptr, nullptr, 0, FI_ADDR_UNSPEC, 1, 0, &op, 0};
  const int64_t posted = p.b.post(fi_trecvmsg, &m, FI_PEEK);
  if (posted == -FI_ENOMSG) {
    EXPECT_FALSE(on_aperture()) << "the answer is an entry here";
    GTEST_SKIP() << "answers at once";
  }
  ASSERT_EQ(posted, 0);
  fi_cq_tagged_entry entry;
  int64_t read = -FI_EAGAIN;
  for (const int64_t end = now_ns() + 5'000'000'000; read == -FI_EAGAIN && now_ns() < end;) {
    read = fi_cq_read(p.b.cq(), &entry, 1);
  }
  ASSERT_EQ(read, -FI_EAVAIL);
  fi_cq_err_entry error;
  std::memset(&error, 0xEE, sizeof error);  // as it lies on a stack
  ASSERT_EQ(fi_cq_readerr(p.b.cq(), &error, 0), 1);
  EXPECT_EQ(error.err, FI_ENOMSG);
  EXPECT_EQ(error.op_context, &op);
}

TEST_P(Peek, tells_of_a_message_and_leaves_it) {
  const size_t size = GetParam();
  send(42, size, 5);
  Op op;
  for (int again = 0; again < 3; ++again) {
    const Completion c = look_until_found(42, FI_PEEK, &op);
    ASSERT_EQ(c.err, 0);
    EXPECT_EQ(c.tag, 42u);
    EXPECT_EQ(c.len, size);
    EXPECT_TRUE(c.flags & FI_REMOTE_CQ_DATA);
    EXPECT_EQ(c.data, 0x77u);
    EXPECT_EQ(c.source, p.to_a);
  }
  EXPECT_EQ(look(43, FI_PEEK, &op).err, FI_ENOMSG) << "another tag";
  EXPECT_EQ(look(43, FI_PEEK, &op, 1).err, 0) << "with a mask";
  receive(42, size, 5, 0, &op);
  EXPECT_EQ(look(42, FI_PEEK, &op).err, FI_ENOMSG) << "it is gone";
  sent();
}

TEST_P(Peek, looks_only_at_the_source_asked_for) {
  Node other(with_source());
  const fi_addr_t from_other = p.b.insert(other.name());
  send(1, GetParam(), 5);
  Op op;
  ASSERT_EQ(look_until_found(1, FI_PEEK, &op).err, 0);
  EXPECT_EQ(look(1, FI_PEEK, &op, 0, from_other).err, FI_ENOMSG);
  EXPECT_EQ(look(1, FI_PEEK, &op, 0, p.to_a).err, 0);
  receive(1, GetParam(), 5, 0, &op);
  sent();
}

TEST_P(Peek, a_claimed_message_is_seen_by_its_claimer_only) {
  const size_t size = GetParam();
  send(9, size, 8);
  Op claim, other;
  const Completion c = look_until_found(9, FI_PEEK | FI_CLAIM, &claim);
  ASSERT_EQ(c.err, 0);
  EXPECT_EQ(c.len, size);
  EXPECT_EQ(look(9, FI_PEEK, &other).err, FI_ENOMSG);
  uint8_t byte = 0;
  ASSERT_EQ(fi_trecv(p.b.ep(), &byte, 1, nullptr, FI_ADDR_UNSPEC, 9, 0, &other), 0);
  pump_for(5);
  EXPECT_FALSE(p.b.take(&other)) << "a claimed message matched another receive";
  receive(9, size, 8, FI_CLAIM, &claim);
  sent();
  ASSERT_EQ(fi_cancel(&p.b.ep()->fid, &other), 0);
  EXPECT_EQ(p.b.wait(&other).err, FI_ECANCELED);
}

TEST_P(Peek, claims_of_several_messages_do_not_mix) {
  const size_t size = GetParam();
  Op claims[4];
  for (uint64_t i = 0; i < 4; ++i) {
    send(i, size, 100 + i);
    ASSERT_EQ(look_until_found(i, FI_PEEK | FI_CLAIM, &claims[i]).err, 0);
    if (size <= 4096) sent();
    // a larger one may wait for its receiver: take it before the buffer is used again
    if (size > 4096) {
      receive(i, size, 100 + i, FI_CLAIM, &claims[i]);
      sent();
    }
  }
  if (size <= 4096)
    for (uint64_t i = 4; i-- > 0;) receive(i, size, 100 + i, FI_CLAIM, &claims[i]);
  EXPECT_TRUE(p.b.quiet(5));
}

TEST_P(Peek, a_discarded_message_is_gone_and_its_sender_completes) {
  const size_t size = GetParam();
  send(3, size, 1);
  Op op;
  const Completion c = look_until_found(3, FI_PEEK | FI_DISCARD, &op);
  ASSERT_EQ(c.err, 0);
  EXPECT_EQ(look(3, FI_PEEK, &op).err, FI_ENOMSG);
  sent();
  send(3, size, 2);
  receive(3, size, 2, 0, &op);
  sent();
}

TEST_P(Peek, a_claimed_message_can_be_discarded) {
  const size_t size = GetParam();
  send(3, size, 1);
  Op op;
  ASSERT_EQ(look_until_found(3, FI_PEEK | FI_CLAIM, &op).err, 0);
  EXPECT_EQ(look(3, FI_CLAIM | FI_DISCARD, &op).err, 0);
  sent();
  EXPECT_EQ(look(3, FI_PEEK, &op).err, FI_ENOMSG);
  send(3, size, 2);
  receive(3, size, 2, 0, &op);
  sent();
}

TEST_P(PeekAtBytes, a_claimed_message_longer_than_the_buffer_is_truncated) {
  const size_t size = GetParam();
  send(3, size, 1);
  Op op;
  ASSERT_EQ(look_until_found(3, FI_PEEK | FI_CLAIM, &op).err, 0);
  Guarded in(size - 1);
  iovec iov{in.data(), in.size()};
  fi_msg_tagged m{&iov, nullptr, 1, FI_ADDR_UNSPEC, 3, 0, &op, 0};
  ASSERT_EQ(fi_trecvmsg(p.b.ep(), &m, FI_CLAIM), 0);
  const Completion c = p.b.wait(&op);
  EXPECT_EQ(c.err, FI_ETRUNC);
  EXPECT_EQ(c.olen, 1u);
  EXPECT_TRUE(in.intact());
}

struct Plan {
  Name name;
  uint64_t size = 0;
};

// Sends one message of tag 3 and stays.
DOOR_ROLE(sender_that_is_killed) {
  Node node;
  Plan plan;
  if (!control.put(Name(node.name())) || !control.get(&plan)) return 1;
  const fi_addr_t to = node.insert(plan.name);
  const Guarded out(plan.size, 1);
  Op op;
  if (node.post(fi_tsend, out.data(), out.size(), nullptr, to, 3, &op) != 0) return 1;
  pump_until([&] { return control.ready(); }, 60000);
  return 0;
}

TEST_P(Peek, a_claim_hears_that_its_message_has_gone_with_the_sender) {
  if (!on_aperture()) GTEST_SKIP() << "undefined elsewhere";
  const size_t size = GetParam();
  auto child = std::make_unique<Child>("sender_that_is_killed");
  Name name;
  ASSERT_TRUE(pump_until([&] { return child->control().ready(); }));
  ASSERT_TRUE(child->control().get(&name));
  p.b.insert(name);
  ASSERT_TRUE(child->control().put(Plan{Name(p.b.name()), size}));
  Op op;
  ASSERT_EQ(look_until_found(3, FI_PEEK | FI_CLAIM, &op).err, 0);
  child.reset();
  pump_for(300);
  Guarded in(size);
  iovec iov{in.data(), size};
  fi_msg_tagged m{&iov, nullptr, 1, FI_ADDR_UNSPEC, 3, 0, &op, 0};
  ASSERT_EQ(fi_trecvmsg(p.b.ep(), &m, FI_CLAIM), 0);
  const Completion c = p.b.wait(&op);
  EXPECT_TRUE(c.err == 0 || c.err == FI_ECONNRESET) << c.err;
  if (size > 64 * 1024) EXPECT_NE(c.err, 0) << "only its sender had it";
  if (c.err == 0) EXPECT_FALSE(first_difference(in.span(), 1));
  EXPECT_EQ(c.tag, 3u);
  EXPECT_LT(fi_trecvmsg(p.b.ep(), &m, FI_CLAIM), 0) << "it is gone";
}

TEST_P(Peek, a_claim_without_a_claimed_message_is_refused) {
  if (!on_aperture()) GTEST_SKIP() << "undefined elsewhere";
  Op op;
  uint8_t byte;
  iovec iov{&byte, 1};
  fi_msg_tagged m{&iov, nullptr, 1, FI_ADDR_UNSPEC, 3, 0, &op, 0};
  const ssize_t r = fi_trecvmsg(p.b.ep(), &m, FI_CLAIM);
  if (r == 0) {
    EXPECT_GT(p.b.wait(&op).err, 0);
  } else {
    EXPECT_EQ(r, -FI_EINVAL);
  }
  // a claim without a context cannot be paired
  m.context = nullptr;
  EXPECT_EQ(fi_trecvmsg(p.b.ep(), &m, FI_PEEK | FI_CLAIM), -FI_EINVAL);
}

// Through shared memory they have arrived when they are sent, as many as there is room for.
TEST(PeekAmongMany, sees_the_last_at_the_first_look) {
  if (!on_aperture()) GTEST_SKIP() << "others may need several looks";
  NodePair p;
  constexpr uint64_t kMessages = 200;
  for (uint64_t tag = 0; tag < kMessages; ++tag) {
    ASSERT_EQ(p.a.post(fi_tinject, &tag, sizeof tag, p.to_b, tag), 0);
    if (tag > 0) continue;
    Op met;
    uint64_t text;
    ASSERT_EQ(p.b.post(fi_trecv, &text, sizeof text, nullptr, FI_ADDR_UNSPEC, 0, 0, &met), 0);
    ASSERT_EQ(p.b.wait(&met).err, 0);
  }
  Op op;
  const fi_msg_tagged m{nullptr, nullptr, 0, FI_ADDR_UNSPEC, kMessages - 1, 0, &op, 0};
  ASSERT_EQ(fi_trecvmsg(p.b.ep(), &m, FI_PEEK), 0);
  const Completion c = p.b.wait(&op);
  EXPECT_EQ(c.err, 0);
  EXPECT_EQ(c.len, sizeof(uint64_t));
}

const auto kSizes = testing::Values(8, 100, 4096, 20000, 100000, 2 * kMiB + 3);
INSTANTIATE_TEST_SUITE_P(Empty, Peek, testing::Values(0), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Sizes, Peek, kSizes, testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Sizes, PeekAtBytes, kSizes, testing::PrintToStringParamName());

}  // namespace
}  // namespace aperture::doors
