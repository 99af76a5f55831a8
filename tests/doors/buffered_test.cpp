// FI_BUFFERED_RECV and FI_VARIABLE_MSG: messages are shown, and then claimed or discarded.
// fi_msg(3), "Buffered Receives", "Variable Length Messages"; fi_endpoint(3), fi_setopt.
#include <gtest/gtest.h>
#include <rdma/fi_trigger.h>

#include "doors/connected.hpp"
#include "doors/shown.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kMessage = FI_RECV | FI_MSG;

class Buffered : public testing::TestWithParam<size_t> {
 protected:
  void open(const Options& options = buffered_options()) { p.emplace(options); }
  void send(size_t size, uint64_t seed, uint64_t data = 0x77) {
    out_ = std::make_unique<Guarded>(size, seed);
    fill(out_->span(), seed);
    ASSERT_EQ(p->a.post(fi_senddata, out_->data(), size, nullptr, data, p->to_b, &send_op_), 0);
  }
  void sent() { ASSERT_EQ(p->a.wait(&send_op_).err, 0); }
  // Claims it into a buffer of that size, and looks at what came.
  void claim(const Sight& s, size_t size, uint64_t seed) {
    Guarded in(size);
    iovec iov{in.data(), size};
    Op mine;
    ASSERT_EQ(end_sight(p->b.ep(), s, FI_CLAIM, &mine, &iov), 0);
    const Completion c = p->b.wait(&mine);
    ASSERT_EQ(c.err, 0);
    EXPECT_EQ(c.flags, kMessage | FI_REMOTE_CQ_DATA | FI_CLAIM);
    EXPECT_EQ(c.len, size);
    EXPECT_EQ(c.data, 0x77u);
    EXPECT_EQ(c.source, p->to_a);
    EXPECT_FALSE(first_difference(in.span(), seed));
    EXPECT_TRUE(in.intact());
  }
  void discard(const Sight& s) {
    Op mine;
    ASSERT_EQ(end_sight(p->b.ep(), s, FI_DISCARD, &mine), 0);
    EXPECT_EQ(p->b.wait(&mine).err, 0);
  }

  std::optional<NodePair> p;
  std::unique_ptr<Guarded> out_;
  Op send_op_;
};
using BufferedCall = Buffered;
using BufferedBytes = Buffered;

const auto kSizes = testing::Values(1, 8, 100, 256, 257, 4096, 16384, 16385, 100000, 2 * kMiB + 3);
INSTANTIATE_TEST_SUITE_P(Empty, Buffered, testing::Values(0), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Sizes, Buffered, kSizes, testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Sizes, BufferedBytes, kSizes, testing::PrintToStringParamName());

TEST_P(Buffered, a_message_is_shown_without_a_receive_and_then_claimed) {
  open();
  const size_t size = GetParam();
  const size_t limit = 16384;  // as it is until it is set
  send(size, 5);
  const Sight s = next_sight(p->b);
  ASSERT_EQ(s.err, 0);
  EXPECT_EQ(s.flags, kMessage | FI_REMOTE_CQ_DATA | (size > limit ? FI_MORE : 0));
  EXPECT_EQ(s.len, size) << "the whole length, whatever is here";
  EXPECT_EQ(s.data, 0x77u);
  EXPECT_EQ(s.source, p->to_a);
  EXPECT_EQ(s.recv_context()->ep, p->b.ep());
  EXPECT_EQ(s.recv_context()->context, nullptr);
  EXPECT_TRUE(s.begins_with(5, size > limit ? 64 : size));
  claim(s, size, 5);
  sent();
  EXPECT_TRUE(p->b.quiet());
}

TEST_P(Buffered, a_message_of_any_size_may_be_discarded) {
  open();
  send(GetParam(), 5);
  const Sight s = next_sight(p->b);
  ASSERT_EQ(s.err, 0);
  discard(s);
  sent();
  EXPECT_TRUE(p->b.quiet());
  send(8, 6);
  const Sight next = next_sight(p->b);
  EXPECT_TRUE(next.begins_with(6, 8)) << "the next one is shown as ever";
  claim(next, 8, 6);
}

TEST_P(BufferedBytes, claimed_into_too_small_a_buffer_are_truncated) {
  const size_t size = GetParam();
  open();
  send(size, 5);
  const Sight s = next_sight(p->b);
  Guarded in(size - 1);
  iovec iov{in.data(), size - 1};
  Op mine;
  ASSERT_EQ(end_sight(p->b.ep(), s, FI_CLAIM, &mine, &iov), 0);
  const Completion c = p->b.wait(&mine);
  EXPECT_EQ(c.err, FI_ETRUNC);
  EXPECT_EQ(c.len, size - 1);
  EXPECT_EQ(c.olen, 1u);
  EXPECT_EQ(c.flags, kMessage | FI_REMOTE_CQ_DATA | FI_CLAIM);
  EXPECT_EQ(c.data, 0x77u);
  EXPECT_FALSE(first_difference(in.span(), 5));
  EXPECT_TRUE(in.intact());
  sent();
}

TEST_F(BufferedCall, messages_are_shown_in_the_order_in_which_they_were_sent) {
  open();
  constexpr size_t kMessages = 40;
  std::vector<Guarded> out;
  std::vector<Op> ops(kMessages);
  for (size_t i = 0; i < kMessages; ++i) {  // long ones among short ones
    out.emplace_back(i % 3 == 0 ? 15000 : i % 3 == 1 ? 8 : 30000 + i);
    fill(out[i].span(), i);
    ASSERT_EQ(p->a.post(fi_senddata, out[i].data(), out[i].size(), nullptr, i, p->to_b, &ops[i]),
              0);
  }
  std::vector<Sight> seen;
  for (size_t i = 0; i < kMessages; ++i) {
    seen.push_back(next_sight(p->b));
    ASSERT_EQ(seen[i].err, 0);
    ASSERT_EQ(seen[i].data, i);
    ASSERT_TRUE(seen[i].begins_with(i, std::min<size_t>(seen[i].len, 8)));
  }
  for (size_t i = kMessages; i-- > 0;) {  // and claimed in any
    Guarded in(out[i].size());
    iovec iov{in.data(), in.size()};
    Op mine;
    ASSERT_EQ(end_sight(p->b.ep(), seen[i], FI_CLAIM, &mine, &iov), 0);
    ASSERT_EQ(p->b.wait(&mine).err, 0);
    ASSERT_FALSE(first_difference(in.span(), i));
    ASSERT_EQ(p->a.wait(&ops[i]).err, 0);
  }
}

TEST_F(BufferedCall, up_to_the_limit_a_message_is_shown_whole) {
  for (const size_t limit : {size_t{100}, size_t{5000}, size_t{100000}, kMiB}) {
    open(buffered_options(limit));
    for (const size_t size : {limit - 1, limit, limit + 1}) {
      send(size, size);
      const Sight s = next_sight(p->b);
      ASSERT_EQ(s.err, 0);
      EXPECT_EQ((s.flags & FI_MORE) != 0, size > limit) << size << " of " << limit;
      EXPECT_EQ(s.len, size);
      EXPECT_TRUE(s.begins_with(size, size > limit ? 64 : size));
      if (size <= limit) sent();  // it is here, so its buffer is free
      claim(s, size, size);
      if (size > limit) sent();
    }
  }
}

TEST_F(BufferedCall, of_a_longer_one_at_least_the_minimum_is_shown) {
  open(buffered_options(100000, 100000));
  for (const size_t size : {size_t{100001}, 3 * kMiB}) {
    send(size, size);
    const Sight s = next_sight(p->b);
    ASSERT_TRUE(s.flags & FI_MORE);
    EXPECT_TRUE(s.begins_with(size, 100000));
    claim(s, size, size);
    sent();
  }
}

TEST_F(BufferedCall, the_options_are_kept_and_checked_and_set_before_enable_only) {
  Options options = buffered_options();
  options.enable = false;
  Node n(options);
  fid* ep = &n.ep()->fid;
  const auto get = [&](int name) {
    size_t value = 0, len = sizeof value;
    EXPECT_EQ(fi_getopt(ep, FI_OPT_ENDPOINT, name, &value, &len), 0);
    EXPECT_EQ(len, sizeof value);
    return value;
  };
  const auto set = [&](int name, size_t value) {
    return fi_setopt(ep, FI_OPT_ENDPOINT, name, &value, sizeof value);
  };
  EXPECT_EQ(get(FI_OPT_BUFFERED_LIMIT), 16384u);
  EXPECT_EQ(get(FI_OPT_BUFFERED_MIN), 64u);
  EXPECT_EQ(set(FI_OPT_BUFFERED_LIMIT, 1000), 0);
  EXPECT_EQ(set(FI_OPT_BUFFERED_MIN, 1000), 0);
  EXPECT_EQ(set(FI_OPT_BUFFERED_MIN, 1001), -FI_EINVAL) << "above the limit";
  EXPECT_EQ(set(FI_OPT_BUFFERED_LIMIT, 999), -FI_EINVAL) << "below the minimum";
  EXPECT_EQ(get(FI_OPT_BUFFERED_LIMIT), 1000u);
  EXPECT_EQ(get(FI_OPT_BUFFERED_MIN), 1000u);
  EXPECT_EQ(set(FI_OPT_BUFFERED_LIMIT, SIZE_MAX - 1), -FI_EMSGSIZE);
  EXPECT_EQ(set(FI_OPT_BUFFERED_LIMIT, SIZE_MAX), 0);
  const size_t most = get(FI_OPT_BUFFERED_LIMIT);
  EXPECT_EQ(set(FI_OPT_BUFFERED_LIMIT, most + 1), -FI_EMSGSIZE);
  EXPECT_EQ(set(FI_OPT_BUFFERED_LIMIT, most), 0);
  uint32_t half = 1;
  for (const int name : {FI_OPT_BUFFERED_LIMIT, FI_OPT_BUFFERED_MIN}) {
    EXPECT_EQ(fi_setopt(ep, FI_OPT_ENDPOINT, name, &half, sizeof half), -FI_EINVAL);
  }
  ASSERT_EQ(fi_enable(n.ep()), 0);
  EXPECT_EQ(set(FI_OPT_BUFFERED_LIMIT, 1000), -FI_EOPBADSTATE);
  EXPECT_EQ(set(FI_OPT_BUFFERED_MIN, 10), -FI_EOPBADSTATE);
  EXPECT_EQ(get(FI_OPT_BUFFERED_LIMIT), most);

  Node plain({.enable = false});
  size_t value = 1000, len = sizeof value;
  for (const int name : {FI_OPT_BUFFERED_LIMIT, FI_OPT_BUFFERED_MIN}) {
    EXPECT_EQ(fi_setopt(&plain.ep()->fid, FI_OPT_ENDPOINT, name, &value, len), -FI_ENOPROTOOPT);
    EXPECT_EQ(fi_getopt(&plain.ep()->fid, FI_OPT_ENDPOINT, name, &value, &len), -FI_ENOPROTOOPT);
  }
}

TEST_F(BufferedCall, what_is_no_claim_and_no_discard_is_refused) {
  open();
  uint8_t byte = 0;
  iovec iov{&byte, 1};
  Op op;
  fid_ep* ep = p->b.ep();
  EXPECT_EQ(fi_recv(ep, &byte, 1, nullptr, FI_ADDR_UNSPEC, &op), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_recvv(ep, &iov, nullptr, 1, FI_ADDR_UNSPEC, &op), -FI_EOPNOTSUPP);
  fi_msg m{&iov, nullptr, 1, FI_ADDR_UNSPEC, &op, 0};
  EXPECT_EQ(fi_recvmsg(ep, &m, 0), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_recvmsg(ep, &m, FI_MULTI_RECV), -FI_EBADFLAGS);
  EXPECT_EQ(fi_recvmsg(ep, &m, FI_CLAIM | FI_PEEK), -FI_EBADFLAGS);
  EXPECT_EQ(fi_recvmsg(ep, nullptr, FI_CLAIM), -FI_EINVAL);
  EXPECT_EQ(fi_recvmsg(ep, &m, FI_CLAIM), -FI_EINVAL) << "that context is none of a message";
  EXPECT_EQ(fi_recvmsg(ep, &m, FI_DISCARD), -FI_EINVAL);
  m.context = nullptr;
  EXPECT_EQ(fi_recvmsg(ep, &m, FI_CLAIM), -FI_EINVAL);

  send(8, 1);
  Sight s = next_sight(p->b);
  m = {nullptr, nullptr, 3, FI_ADDR_UNSPEC, s.context, 0};
  EXPECT_EQ(fi_recvmsg(ep, &m, FI_CLAIM), -FI_EINVAL) << "three pieces that are not there";
  s.recv_context()->context = &op;
  ASSERT_EQ(fi_recvmsg(ep, &m, FI_DISCARD), 0) << "which a discard does not look at";
  EXPECT_EQ(p->b.wait(&op).err, 0);
  EXPECT_EQ(fi_recvmsg(ep, &m, FI_DISCARD), -FI_EINVAL) << "it is gone";
  EXPECT_EQ(fi_recvmsg(ep, &m, FI_CLAIM), -FI_EINVAL);
}

TEST_F(BufferedCall, claims_and_discards_are_refused_where_nothing_is_buffered) {
  NodePair plain;
  uint8_t byte = 0;
  iovec iov{&byte, 1};
  Op op;
  const fi_msg m{&iov, nullptr, 1, FI_ADDR_UNSPEC, &op, 0};
  EXPECT_EQ(fi_recvmsg(plain.b.ep(), &m, FI_CLAIM), -FI_EBADFLAGS);
  EXPECT_EQ(fi_recvmsg(plain.b.ep(), &m, FI_DISCARD), -FI_EBADFLAGS);
}

TEST_F(BufferedCall, selective_completion_shows_every_message_and_tells_of_claims_that_ask) {
  Options options = buffered_options();
  options.cq_flags = FI_SELECTIVE_COMPLETION;
  options.counters = true;
  open(options);
  const auto arrive = [&] {
    EXPECT_EQ(p->a.post(fi_inject, "x", 1, p->to_b), 0);
    return next_sight(p->b);
  };
  Op silent, loud;
  char in = 0;
  iovec iov{&in, 1};
  ASSERT_EQ(end_sight(p->b.ep(), arrive(), FI_CLAIM, &silent, &iov), 0);
  EXPECT_TRUE(p->b.quiet());
  EXPECT_EQ(in, 'x');
  ASSERT_EQ(end_sight(p->b.ep(), arrive(), FI_DISCARD, &silent), 0);
  EXPECT_TRUE(p->b.quiet());
  ASSERT_EQ(end_sight(p->b.ep(), arrive(), FI_CLAIM | FI_COMPLETION, &loud, &iov), 0);
  EXPECT_EQ(p->b.wait(&loud).err, 0);
  ASSERT_EQ(end_sight(p->b.ep(), arrive(), FI_DISCARD | FI_COMPLETION, &loud), 0);
  EXPECT_EQ(p->b.wait(&loud).err, 0);
  EXPECT_EQ(fi_cntr_read(p->b.rx_cntr()), 4u) << "claims and discards are counted";
}

TEST_F(BufferedCall, a_queue_that_is_full_holds_messages_back_and_loses_none) {
  open();
  constexpr uint64_t kMessages = 5000;  // more than the queue has entries
  uint64_t posted = 0, seen = 0;
  for (const int64_t end = now_ns() + 60'000'000'000; seen < kMessages && now_ns() < end;) {
    while (posted < kMessages && fi_injectdata(p->a.ep(), "x", 1, posted, p->to_b) == 0) ++posted;
    fi_cq_tagged_entry none{};  // takes nothing out, and now and then makes progress
    for (int i = 0; i < 1000 && posted > 0; ++i) fi_cq_read(p->b.cq(), &none, 0);
    p->a.poll();
    for (; seen < posted; ++seen) {
      const Sight s = next_sight(p->b);
      ASSERT_EQ(s.data, seen);
      Op mine;
      ASSERT_EQ(end_sight(p->b.ep(), s, FI_DISCARD, &mine), 0);
      ASSERT_EQ(p->b.wait(&mine).err, 0);
    }
  }
  EXPECT_EQ(seen, kMessages);
}

TEST_F(BufferedCall,
       of_a_sender_that_is_gone_what_is_here_can_be_claimed_and_the_rest_is_an_error) {
  open();
  Guarded out(100000);
  Op op;
  ASSERT_EQ(p->a.post(fi_inject, "x", 1, p->to_b), 0);
  ASSERT_EQ(p->a.post(fi_send, out.data(), out.size(), nullptr, p->to_b, &op), 0);
  const Sight whole = next_sight(p->b), part = next_sight(p->b);
  ASSERT_TRUE(part.flags & FI_MORE);
  p->a.close_endpoint();
  pump_for(50);
  Guarded in(100000);
  iovec iov{in.data(), in.size()};
  Op mine, other;
  ASSERT_EQ(end_sight(p->b.ep(), whole, FI_CLAIM, &mine, &iov), 0);
  EXPECT_EQ(p->b.wait(&mine).err, 0);
  ASSERT_EQ(end_sight(p->b.ep(), part, FI_CLAIM, &other, &iov), 0);
  const Completion c = p->b.wait(&other);
  EXPECT_NE(c.err, 0);
  EXPECT_EQ(c.flags, kMessage | FI_CLAIM);
  EXPECT_EQ(c.len, 0u);
}

TEST_F(BufferedCall, closing_an_endpoint_with_messages_unclaimed_is_clean) {
  open();
  Guarded out(100000);
  Op op, mine;
  for (int i = 0; i < 4; ++i) ASSERT_EQ(p->a.post(fi_inject, "x", 1, p->to_b), 0);
  ASSERT_EQ(p->a.post(fi_send, out.data(), out.size(), nullptr, p->to_b, &op), 0);
  const Sight first = next_sight(p->b);
  ASSERT_EQ(end_sight(p->b.ep(), first, FI_DISCARD, &mine), 0);
  pump_for(20);
  p->b.close_endpoint();
  EXPECT_NE(p->a.wait(&op).err, 0) << "nobody will claim it";
}

TEST_F(BufferedCall, works_over_a_connection_too) {
  Station station({.mode = kBufferedRecv});
  Connected c(station, station);
  Guarded out(100000), in(100000);
  fill(out.span(), 3);
  Op send, mine;
  ASSERT_EQ(post(fi_send, c.at_a.get(), out.data(), out.size(), nullptr, FI_ADDR_UNSPEC, &send), 0);
  Sight s;
  ASSERT_TRUE(pump_until([&] {
    if (station.done().empty()) return false;
    static_cast<Completion&>(s) = station.done().front();
    station.done().pop_front();
    return true;
  }));
  ASSERT_EQ(s.err, 0);
  EXPECT_EQ(s.flags, kMessage | FI_MORE);
  EXPECT_EQ(s.recv_context()->ep, c.at_b.get());
  iovec iov{in.data(), in.size()};
  ASSERT_EQ(end_sight(c.at_b.get(), s, FI_CLAIM, &mine, &iov), 0);
  EXPECT_EQ(station.wait(&mine).err, 0);
  EXPECT_FALSE(first_difference(in.span(), 3));
  EXPECT_EQ(station.wait(&send).err, 0);
}

TEST_F(BufferedCall, no_receive_waits_for_a_counter_but_sends_do) {
  Options options = buffered_options();
  options.caps |= FI_TRIGGER;
  open(options);
  fid_ep* alias = nullptr;
  ASSERT_EQ(fi_ep_alias(p->b.ep(), &alias, FI_RECV | FI_TRIGGER), 0);
  const Fid<fid_ep> triggered(alias);
  ASSERT_EQ(fi_ep_alias(p->b.ep(), &alias, FI_TRANSMIT | FI_TRIGGER), 0);
  const Fid<fid_ep> sender(alias);
  const Fid<fid_cntr> counter = open_counter(p->b.domain());
  fi_triggered_context2 at{};
  at.event_type = FI_TRIGGER_THRESHOLD;
  at.trigger.threshold = {counter.get(), 0};
  uint8_t byte = 3;
  EXPECT_LT(fi_recv(triggered.get(), &byte, 1, nullptr, FI_ADDR_UNSPEC, &at), 0);
  iovec iov{&byte, 1};
  Op op, mine;
  fi_op_msg recv{p->b.ep(), {&iov, nullptr, 1, FI_ADDR_UNSPEC, &op, 0}, 0};
  fi_deferred_work work{};
  work.triggering_cntr = counter.get();
  work.op_type = FI_OP_RECV;
  work.op.msg = &recv;
  EXPECT_EQ(fi_control(&p->b.domain()->fid, FI_QUEUE_WORK, &work), -FI_EOPNOTSUPP);
  // a message is shown all the same, and claimed through a handle whose sends wait
  send(8, 1);
  const Sight s = next_sight(p->b);
  ASSERT_EQ(s.err, 0);
  ASSERT_EQ(end_sight(sender.get(), s, FI_DISCARD, &mine), 0);
  EXPECT_EQ(p->b.wait(&mine).err, 0);
  ASSERT_EQ(fi_send(sender.get(), &byte, 1, nullptr, p->to_a, &at), 0);
  EXPECT_EQ(p->b.wait(&at).err, 0);
}

TEST_F(BufferedCall, once_its_endpoint_is_closed_an_alias_is_named) {
  open();
  fid_ep* alias = nullptr;
  ASSERT_EQ(fi_ep_alias(p->b.ep(), &alias, FI_RECV), 0);
  const Fid<fid_ep> owner(alias);
  p->b.close_endpoint();
  ASSERT_EQ(p->a.post(fi_inject, "x", 1, p->to_b), 0);
  const Sight s = next_sight(p->b);
  EXPECT_EQ(s.recv_context()->ep, alias);
  Op mine;
  ASSERT_EQ(end_sight(alias, s, FI_DISCARD, &mine), 0);
  EXPECT_EQ(p->b.wait(&mine).err, 0);
}

// ---- what is asked for ----

uint64_t answered_mode(uint32_t api, uint64_t mode) {
  Options options;
  options.api = api;
  options.mode = mode;
  return get_info(options)->mode & kBufferedRecv;
}

TEST(BufferedMode, is_answered_to_who_asks_for_it_in_the_versions_that_have_it) {
  EXPECT_EQ(answered_mode(FI_VERSION(1, 17), FI_CONTEXT | kBufferedRecv), kBufferedRecv);
  EXPECT_EQ(answered_mode(FI_VERSION(1, 7), kBufferedRecv), kBufferedRecv);
  EXPECT_EQ(answered_mode(FI_VERSION(1, 6), kBufferedRecv), 0u);
  EXPECT_EQ(answered_mode(FI_VERSION(1, 17), FI_CONTEXT), 0u);
  EXPECT_EQ(answered_mode(FI_VERSION(1, 17), ~0ull), 0u)
      << "who would do anything is asked nothing";
}

TEST(BufferedMode, takes_no_buffers_for_many_messages) {
  Options options = buffered_options();
  options.caps |= FI_MULTI_RECV;
  EXPECT_NE(get_info(options), nullptr);
  options.rx_op_flags = FI_MULTI_RECV;
  EXPECT_THROW(get_info(options), DoorError);
}

TEST(BufferedMode, leaves_max_msg_size_a_limit) {
  NodePair p(buffered_options());
  uint8_t byte = 0;
  Op op;
  EXPECT_EQ(fi_send(p.a.ep(), &byte, p.a.info()->ep_attr->max_msg_size + 1, nullptr, p.to_b, &op),
            -FI_EMSGSIZE);
}

// ---- messages of any length ----

TEST(VariableMessages, pass_above_max_msg_size_and_are_refused_there_without_the_capability) {
  Options options;
  options.caps |= kVariableMsg;
  options.max_msg_size = 100000;
  NodePair p(options);
  ASSERT_EQ(p.a.info()->ep_attr->max_msg_size, 100000u);
  ASSERT_TRUE(p.a.info()->caps & p.a.info()->tx_attr->caps & p.a.info()->rx_attr->caps &
              kVariableMsg);
  Guarded out(3 * kMiB), in(3 * kMiB);
  fill(out.span(), 4);
  Op op, mine;
  ASSERT_EQ(p.a.post(fi_send, out.data(), out.size(), nullptr, p.to_b, &op), 0);
  const Sight s = next_sight(p.b);
  EXPECT_EQ(s.flags, kMessage | FI_MORE) << "it is shown as a buffered one is";
  EXPECT_EQ(s.len, out.size());
  iovec iov{in.data(), in.size()};
  ASSERT_EQ(end_sight(p.b.ep(), s, FI_CLAIM, &mine, &iov), 0);
  EXPECT_EQ(p.b.wait(&mine).err, 0);
  EXPECT_FALSE(first_difference(in.span(), 4));
  EXPECT_EQ(p.a.wait(&op).err, 0);

  const Info without(fi_dupinfo(p.a.info()));
  for (uint64_t* caps : {&without->caps, &without->tx_attr->caps, &without->rx_attr->caps}) {
    *caps &= ~kVariableMsg;
  }
  const Fid<fid_ep> ep = DOOR_MADE(fi_endpoint, p.a.domain(), without.get());
  DOOR(fi_ep_bind(ep.get(), &p.a.av()->fid, 0));
  DOOR(fi_ep_bind(ep.get(), &p.a.cq()->fid, FI_TRANSMIT | FI_RECV));
  DOOR(fi_enable(ep.get()));
  EXPECT_EQ(fi_send(ep.get(), out.data(), 100001, nullptr, p.to_b, &op), -FI_EMSGSIZE);
  EXPECT_EQ(post(fi_send, ep.get(), out.data(), size_t{100000}, nullptr, p.to_b, &op), 0);
  const Sight longest = next_sight(p.b);
  EXPECT_EQ(longest.len, 100000u);
  ASSERT_EQ(end_sight(p.b.ep(), longest, FI_DISCARD, &mine), 0);
  EXPECT_EQ(p.a.wait(&op).err, 0);
}

TEST(VariableMessages, longer_than_any_other_are_shown_and_truncated_or_discarded) {
  Options options;
  options.caps |= kVariableMsg;
  NodePair p(options);
  const size_t limit = p.a.info()->ep_attr->max_msg_size;
  ASSERT_LT(limit, SIZE_MAX);
  // the same bytes over and over: no memory is that long
  const std::vector<uint8_t> page(64, 7);
  iovec pieces[8];
  size_t total = 0;
  for (iovec& piece : pieces) {
    piece = {const_cast<uint8_t*>(page.data()), limit / 4};
    total += limit / 4;
  }
  pieces[0].iov_len = page.size();  // what is looked at
  total -= limit / 4 - page.size();
  for (const bool claims : {true, false}) {
    Op op, mine;
    ASSERT_EQ(p.a.post(fi_sendv, pieces, nullptr, size_t{8}, p.to_b, &op), 0);
    const Sight s = next_sight(p.b);
    ASSERT_EQ(s.err, 0);
    EXPECT_EQ(s.flags, kMessage | FI_MORE);
    ASSERT_EQ(s.len, total);
    EXPECT_EQ(std::memcmp(s.buf, page.data(), page.size()), 0);
    uint8_t in[64] = {};
    iovec iov{in, sizeof in};
    ASSERT_EQ(end_sight(p.b.ep(), s, claims ? FI_CLAIM : FI_DISCARD, &mine, &iov), 0);
    const Completion c = p.b.wait(&mine);
    EXPECT_EQ(c.err, claims ? FI_ETRUNC : 0);
    if (claims) {
      EXPECT_EQ(c.olen, total - sizeof in);
      EXPECT_EQ(in[63], 7);
    }
    EXPECT_EQ(p.a.wait(&op).err, 0);
  }
}

TEST(VariableMessages, are_of_messages_and_of_the_versions_that_have_them) {
  Options options;
  options.caps = FI_RMA | kVariableMsg;
  EXPECT_THROW(get_info(options), DoorError);
  options.caps = FI_TAGGED | kVariableMsg;
  EXPECT_NE(get_info(options), nullptr);
  options.api = FI_VERSION(1, 6);
  EXPECT_THROW(get_info(options), DoorError);
}

}  // namespace
}  // namespace aperture::doors
