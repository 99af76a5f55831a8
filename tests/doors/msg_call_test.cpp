// The calls of fi_msg(3) one by one: iovecs, inject, remote CQ data, selective completion,
// directed receive, fi_cancel and back-pressure; each with what must be refused.
#include <gtest/gtest.h>

#include "doors/fixture.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {
namespace {

// Cuts `memory` into `parts` pieces of uneven length (some empty).
std::vector<iovec> cut(Guarded* memory, size_t parts, uint64_t seed) {
  std::vector<size_t> edges(parts + 1, 0);
  for (size_t i = 1; i < parts; ++i)
    edges[i] = memory->size() == 0 ? 0 : seed_of(seed + i) % (memory->size() + 1);
  edges[parts] = memory->size();
  std::sort(edges.begin(), edges.end());
  std::vector<iovec> iov(parts);
  for (size_t i = 0; i < parts; ++i) iov[i] = {memory->data() + edges[i], edges[i + 1] - edges[i]};
  return iov;
}

TEST(MsgCall, sendv_and_recvv_gather_and_scatter_up_to_the_limit) {
  NodePair p;
  const size_t tx_limit = p.a.info()->tx_attr->iov_limit;
  const size_t rx_limit = p.b.info()->rx_attr->iov_limit;
  ASSERT_GE(tx_limit, 1u);
  for (size_t parts = 1; parts <= std::max(tx_limit, rx_limit); ++parts) {
    for (size_t size : few_sizes()) {
      Guarded out(size, seed_of(size)), in(size);
      std::vector<iovec> out_iov = cut(&out, std::min(parts, tx_limit), size);
      std::vector<iovec> in_iov = cut(&in, std::min(parts, rx_limit), size + 99);
      std::vector<void*> desc(parts, nullptr);
      Op send, receive;
      ASSERT_EQ(
          p.b.post(fi_recvv, in_iov.data(), desc.data(), in_iov.size(), FI_ADDR_UNSPEC, &receive),
          0);
      ASSERT_EQ(p.a.post(fi_sendv, out_iov.data(), desc.data(), out_iov.size(), p.to_b, &send), 0);
      ASSERT_EQ(p.b.wait(&receive).err, 0);
      ASSERT_EQ(p.a.wait(&send).err, 0);
      ASSERT_FALSE(first_difference(in.span(), seed_of(size))) << size << " in " << parts;
      ASSERT_TRUE(in.intact());
    }
  }
}

TEST(MsgCall, more_iovecs_than_the_limit_are_refused) {
  NodePair p;
  const size_t too_many = p.a.info()->tx_attr->iov_limit + 1;
  std::vector<uint8_t> bytes(too_many);
  std::vector<iovec> iov(too_many);
  for (size_t i = 0; i < too_many; ++i) iov[i] = {&bytes[i], 1};
  Op op;
  if (on_aperture()) {
    EXPECT_EQ(fi_sendv(p.a.ep(), iov.data(), nullptr, too_many, p.to_b, &op), -FI_EINVAL);
    EXPECT_EQ(fi_recvv(p.b.ep(), iov.data(), nullptr, p.b.info()->rx_attr->iov_limit + 1,
                       FI_ADDR_UNSPEC, &op),
              -FI_EINVAL);
  }
  EXPECT_TRUE(p.a.quiet());
  EXPECT_TRUE(p.b.quiet());
}

TEST(MsgCall, inject_takes_every_size_up_to_its_limit_and_the_buffer_is_free_at_once) {
  NodePair p;
  const size_t limit = p.a.info()->tx_attr->inject_size;
  ASSERT_GE(limit, 8u);
  std::vector<uint8_t> source(limit);
  for (size_t size = 0; size <= limit; size += (size < 300 ? 1 : 97)) {
    Guarded in(size);
    Op receive;
    ASSERT_EQ(p.b.post(fi_recv, in.data(), size, nullptr, FI_ADDR_UNSPEC, &receive), 0);
    fill({source.data(), size}, seed_of(size));
    ASSERT_EQ(p.a.post(fi_inject, source.data(), size, p.to_b), 0);
    std::memset(source.data(), 0xEE, size);
    ASSERT_EQ(p.b.wait(&receive).err, 0);
    ASSERT_FALSE(first_difference(in.span(), seed_of(size))) << size;
    ASSERT_TRUE(in.intact());
  }
  EXPECT_TRUE(p.a.quiet()) << "inject writes no completion";
}

TEST(MsgCall, inject_above_its_limit_is_refused_and_sends_nothing) {
  NodePair p;
  const size_t size = p.a.info()->tx_attr->inject_size + 1;
  Guarded out(size, 1), in(size);
  Op receive;
  ASSERT_EQ(fi_recv(p.b.ep(), in.data(), size, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  EXPECT_LT(fi_inject(p.a.ep(), out.data(), size, p.to_b), 0);
  if (on_aperture()) {
    EXPECT_EQ(fi_inject(p.a.ep(), out.data(), size, p.to_b), -FI_EMSGSIZE);
    EXPECT_EQ(fi_injectdata(p.a.ep(), out.data(), size, 1, p.to_b), -FI_EMSGSIZE);
    iovec iov{out.data(), size};
    fi_msg message{&iov, nullptr, 1, p.to_b, &receive, 0};
    EXPECT_EQ(fi_sendmsg(p.a.ep(), &message, FI_INJECT), -FI_EMSGSIZE);
  }
  EXPECT_TRUE(p.b.quiet());
}

TEST(MsgCall, a_lowered_inject_size_holds_for_the_smallest_messages) {
  if (!on_aperture()) GTEST_SKIP() << "a limit that is told, and not kept by all";
  Info hints = make_hints({});
  hints->tx_attr->inject_size = 8;
  fi_info* raw = nullptr;
  ASSERT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &raw), 0);
  const Info info(raw);
  info->tx_attr->inject_size = 8;
  NodePair p;
  const Fid<fid_ep> ep = DOOR_MADE(fi_endpoint, p.a.domain(), info.get());
  ASSERT_EQ(fi_ep_bind(ep.get(), &p.a.av()->fid, 0), 0);
  ASSERT_EQ(fi_ep_bind(ep.get(), &p.a.cq()->fid, FI_TRANSMIT | FI_RECV), 0);
  ASSERT_EQ(fi_enable(ep.get()), 0);
  const auto inject = [&](size_t len) {
    return post([&] { return fi_inject(ep.get(), "0123456789abcdef", len, p.to_b); });
  };
  for (int round = 0; round < 2; ++round) {  // before there is a connection, and then
    EXPECT_EQ(inject(9), -FI_EMSGSIZE) << round;
    uint8_t in[16] = {};
    Op op;
    ASSERT_EQ(fi_recv(p.b.ep(), in, sizeof in, nullptr, FI_ADDR_UNSPEC, &op), 0);
    ASSERT_EQ(inject(8), 0);
    EXPECT_EQ(p.b.wait(&op).len, 8u);
  }
}

// "Discarded operations will silently be dropped, with no completions reported."
TEST(MsgCall, closing_the_endpoint_drops_what_is_posted_in_silence) {
  if (!on_aperture()) GTEST_SKIP() << "others tell of it";
  Options options;
  options.counters = true;
  NodePair p(options);
  Op receives[2], send;
  uint8_t in[2];
  ASSERT_EQ(fi_recv(p.b.ep(), &in[0], 1, nullptr, FI_ADDR_UNSPEC, &receives[0]), 0);
  ASSERT_EQ(fi_trecv(p.b.ep(), &in[1], 1, nullptr, FI_ADDR_UNSPEC, 5, 0, &receives[1]), 0);
  const Guarded large(1 << 20, 1);  // which nobody receives
  ASSERT_EQ(p.b.post(fi_tsend, large.data(), large.size(), nullptr, p.to_a, 9, &send), 0);
  const uint64_t errors = fi_cntr_readerr(p.b.rx_cntr()) + fi_cntr_readerr(p.b.tx_cntr());
  p.b.close_endpoint();
  EXPECT_TRUE(p.b.quiet());
  EXPECT_EQ(fi_cntr_readerr(p.b.rx_cntr()) + fi_cntr_readerr(p.b.tx_cntr()), errors);
}

TEST(MsgCall, what_has_no_context_cannot_be_cancelled) {
  if (!on_aperture()) GTEST_SKIP() << "others cancel one of them";
  NodePair p;
  uint8_t in[2] = {};
  Op op;
  ASSERT_EQ(fi_recv(p.b.ep(), &in[0], 1, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  ASSERT_EQ(fi_recv(p.b.ep(), &in[1], 1, nullptr, FI_ADDR_UNSPEC, &op), 0);
  EXPECT_LT(fi_cancel(&p.b.ep()->fid, nullptr), 0);
  ASSERT_EQ(p.a.post(fi_inject, "1", 1, p.to_b), 0);
  ASSERT_EQ(p.a.post(fi_inject, "2", 1, p.to_b), 0);
  EXPECT_EQ(p.b.wait(&op).err, 0);
  EXPECT_EQ(in[0], '1');
  EXPECT_EQ(in[1], '2');
}

TEST(MsgCall, a_receive_without_a_buffer_takes_no_bytes) {
  if (!on_aperture()) GTEST_SKIP() << "others write to NULL";
  for (const int mr_mode : {0, FI_MR_LOCAL}) {
    NodePair p({.mr_mode = mr_mode});
    iovec none{nullptr, 64};
    Op op;
    const fi_msg message{&none, nullptr, 1, FI_ADDR_UNSPEC, &op, 0};
    const fi_msg_tagged tagged{&none, nullptr, 1, FI_ADDR_UNSPEC, 5, 0, &op, 0};
    const std::function<int64_t()> calls[] = {
        [&] { return fi_recv(p.b.ep(), nullptr, 64, nullptr, FI_ADDR_UNSPEC, &op); },
        [&] { return fi_recvv(p.b.ep(), &none, nullptr, 1, FI_ADDR_UNSPEC, &op); },
        [&] { return fi_recvmsg(p.b.ep(), &message, FI_COMPLETION); },
        [&] { return fi_trecv(p.b.ep(), nullptr, 64, nullptr, FI_ADDR_UNSPEC, 5, 0, &op); },
        [&] { return fi_trecvmsg(p.b.ep(), &tagged, FI_COMPLETION); }};
    for (size_t i = 0; i < std::size(calls); ++i) {
      for (const std::string& text : {std::string(), std::string("four")}) {
        for (const bool early : {false, true}) {
          SCOPED_TRACE(i);
          const auto send = [&] {
            return i < 3 ? p.a.post(fi_inject, text.data(), text.size(), p.to_b)
                         : p.a.post(fi_tinject, text.data(), text.size(), p.to_b, uint64_t{5});
          };
          if (early) {
            ASSERT_EQ(send(), 0);
            pump_for(3);
          }
          ASSERT_EQ(calls[i](), 0);
          if (!early) {
            ASSERT_EQ(send(), 0);
          }
          const Completion c = p.b.wait(&op);
          EXPECT_EQ(c.err, text.empty() ? 0 : FI_ETRUNC);
          EXPECT_EQ(c.len, 0u);
          EXPECT_EQ(c.olen, text.size());
        }
      }
    }
  }
}

TEST(MsgCall, a_message_above_max_msg_size_is_refused) {
  if (!on_aperture()) GTEST_SKIP() << "other providers do not check";
  NodePair p;
  const size_t limit = p.a.info()->ep_attr->max_msg_size;
  ASSERT_GE(limit, 8 * kMiB);
  ASSERT_NE(limit, SIZE_MAX);  // there is a length above it
  uint8_t byte = 0;
  Op op;
  EXPECT_EQ(fi_send(p.a.ep(), &byte, limit + 1, nullptr, p.to_b, &op), -FI_EMSGSIZE);
  EXPECT_TRUE(p.a.quiet());
}

TEST(MsgCall, remote_cq_data_arrives_with_the_message) {
  NodePair p({.cq_data_size = 4});
  ASSERT_GE(p.a.info()->domain_attr->cq_data_size, 4u);
  const bool wide = p.a.info()->domain_attr->cq_data_size >= 8;
  for (uint64_t data : {0ull, 1ull, 0xFFFFFFFFull, wide ? 0x8000000000000001ull : 7ull}) {
    for (size_t size : few_sizes()) {
      Guarded out(size, 5), in(size);
      Op send, receive;
      ASSERT_EQ(p.b.post(fi_recv, in.data(), size, nullptr, FI_ADDR_UNSPEC, &receive), 0);
      ASSERT_EQ(p.a.post(fi_senddata, out.data(), size, nullptr, data, p.to_b, &send), 0);
      const Completion c = p.b.wait(&receive);
      ASSERT_EQ(c.err, 0);
      ASSERT_TRUE(c.flags & FI_REMOTE_CQ_DATA);
      ASSERT_EQ(c.data, data);
      ASSERT_EQ(c.len, size);
      ASSERT_EQ(p.a.wait(&send).err, 0);
    }
    Op receive;
    uint8_t byte = 0;
    ASSERT_EQ(fi_recv(p.b.ep(), &byte, 1, nullptr, FI_ADDR_UNSPEC, &receive), 0);
    ASSERT_EQ(p.a.post(fi_injectdata, "x", 1, data, p.to_b), 0);
    const Completion c = p.b.wait(&receive);
    ASSERT_EQ(c.data, data);
    ASSERT_TRUE(c.flags & FI_REMOTE_CQ_DATA);
    // and a message without data does not carry the flag
    ASSERT_FALSE(p.pass("y").flags & FI_REMOTE_CQ_DATA);
  }
}

TEST(MsgCall, selective_completion_reports_only_what_was_asked) {
  NodePair p({.cq_flags = FI_SELECTIVE_COMPLETION, .counters = true});
  uint8_t in[4] = {};
  Op silent_receive, loud_receive, silent, loud;
  iovec in_iov{&in[1], 1};
  fi_msg in_message{&in_iov, nullptr, 1, FI_ADDR_UNSPEC, &loud_receive, 0};
  ASSERT_EQ(fi_recv(p.b.ep(), &in[0], 1, nullptr, FI_ADDR_UNSPEC, &silent_receive), 0);
  ASSERT_EQ(fi_recvmsg(p.b.ep(), &in_message, FI_COMPLETION), 0);
  uint8_t byte = 3;
  iovec out_iov{&byte, 1};
  fi_msg out_message{&out_iov, nullptr, 1, p.to_b, &loud, 0};
  ASSERT_EQ(p.a.post(fi_send, &byte, 1, nullptr, p.to_b, &silent), 0);
  ASSERT_EQ(p.a.post(fi_sendmsg, &out_message, FI_COMPLETION), 0);
  EXPECT_EQ(p.b.wait(&loud_receive).err, 0);
  EXPECT_EQ(p.a.wait(&loud).err, 0);
  EXPECT_EQ(in[0], 3) << "the silent receive did take place";
  EXPECT_TRUE(p.a.quiet());
  EXPECT_TRUE(p.b.quiet());
  EXPECT_EQ(fi_cntr_read(p.a.tx_cntr()), 2u);
  EXPECT_EQ(fi_cntr_read(p.b.rx_cntr()), 2u);
}

TEST(MsgCall, selective_completion_still_reports_errors) {
  NodePair p({.cq_flags = FI_SELECTIVE_COMPLETION});
  EXPECT_EQ(p.pass("12").err, FI_ETRUNC);
}

TEST(MsgCall, op_flags_of_the_endpoint_ask_for_completions) {
  NodePair p({.cq_flags = FI_SELECTIVE_COMPLETION,
              .tx_op_flags = FI_COMPLETION,
              .rx_op_flags = FI_COMPLETION});
  uint8_t in = 0, out = 9;
  Op send, receive;
  ASSERT_EQ(fi_recv(p.b.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(p.a.post(fi_send, &out, 1, nullptr, p.to_b, &send), 0);
  EXPECT_EQ(p.b.wait(&receive).err, 0);
  EXPECT_EQ(p.a.wait(&send).err, 0);
}

TEST(MsgCall, source_is_reported_where_asked) {
  NodePair p({.caps = kUsualCaps | FI_SOURCE});
  for (int round = 0; round < 3; ++round) {
    const Completion c = p.pass("x");
    EXPECT_EQ(c.err, 0);
    EXPECT_EQ(c.source, p.to_a);
  }
}

TEST(MsgCall, source_of_a_stranger_is_not_available) {
  const Options options{.caps = kUsualCaps | FI_SOURCE};
  Node a(options), b(options);
  const fi_addr_t to_b = a.insert(b.name());
  uint8_t in = 0;
  Op receive;
  ASSERT_EQ(fi_recv(b.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(a.post(fi_inject, "x", 1, to_b), 0);
  const Completion c = b.wait(&receive);
  EXPECT_EQ(c.err, 0);
  EXPECT_EQ(c.source, FI_ADDR_NOTAVAIL);
}

TEST(MsgCall, directed_receive_takes_only_its_sender) {
  const Options options{.caps = kUsualCaps | FI_DIRECTED_RECV | FI_SOURCE};
  Node target(options), one(options), two(options);
  const fi_addr_t from_one = target.insert(one.name());
  const fi_addr_t from_two = target.insert(two.name());
  const fi_addr_t one_to = one.insert(target.name()), two_to = two.insert(target.name());
  for (bool expected : {true, false}) {
    char in_two = 0, in_one = 0;
    Op receive_two, receive_one;
    const auto post_receives = [&] {
      ASSERT_EQ(fi_recv(target.ep(), &in_two, 1, nullptr, from_two, &receive_two), 0);
      ASSERT_EQ(fi_recv(target.ep(), &in_one, 1, nullptr, from_one, &receive_one), 0);
    };
    if (expected) post_receives();
    ASSERT_EQ(one.post(fi_inject, "1", 1, one_to), 0);
    pump_for(5);
    if (expected) {
      EXPECT_EQ(in_two, 0) << "a message of `one` went into the receive for `two`";
    }
    ASSERT_EQ(two.post(fi_inject, "2", 1, two_to), 0);
    pump_for(5);
    if (!expected) post_receives();
    EXPECT_EQ(target.wait(&receive_two).source, from_two);
    EXPECT_EQ(target.wait(&receive_one).source, from_one);
    EXPECT_EQ(in_one, '1');
    EXPECT_EQ(in_two, '2');
  }
}

TEST(MsgCall, cancel_ends_a_receive_once_and_the_next_one_gets_the_message) {
  NodePair p;
  uint8_t first = 0, second = 0;
  Op canceled, receive;
  ASSERT_EQ(fi_recv(p.b.ep(), &first, 1, nullptr, FI_ADDR_UNSPEC, &canceled), 0);
  ASSERT_EQ(fi_recv(p.b.ep(), &second, 1, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  EXPECT_EQ(fi_cancel(&p.b.ep()->fid, &canceled), 0);
  EXPECT_EQ(p.b.wait(&canceled).err, FI_ECANCELED);
  ASSERT_EQ(p.a.post(fi_inject, "m", 1, p.to_b), 0);
  EXPECT_EQ(p.b.wait(&receive).err, 0);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(second, 'm');
  // neighbours: an operation that is over, one that never was
  if (on_aperture()) {
    EXPECT_EQ(fi_cancel(&p.b.ep()->fid, &receive), -FI_ENOENT);
    Op never;
    EXPECT_EQ(fi_cancel(&p.b.ep()->fid, &never), -FI_ENOENT);
  }
  EXPECT_TRUE(p.b.quiet());
}

TEST(MsgCall, back_pressure_is_eagain_and_nothing_is_lost) {
  NodePair p;
  ASSERT_EQ(p.pass("h").err, 0) << "now they are connected";
  constexpr size_t kTarget = 20000;
  size_t sent = 0, refused = 0;
  // nobody reads the target's queue and no receive is posted: the sender must be held up or be
  // taken in, never lose
  for (int spins = 0; sent < kTarget && spins < 2'000'000; ++spins) {
    const uint64_t value = sent;
    const ssize_t r = fi_inject(p.a.ep(), &value, sizeof value, p.to_b);
    if (r == 0) {
      ++sent;
      continue;
    }
    ASSERT_EQ(r, -FI_EAGAIN);
    ++refused;
    if (refused > 2000) break;
    p.a.poll();
  }
  std::printf("taken in before back-pressure: %zu, refused %zu times\n", sent, refused);
  ASSERT_GT(sent, 0u);
  for (uint64_t i = 0; i < sent; ++i) {
    uint64_t in = ~0ull;
    ASSERT_EQ(p.b.run(fi_recv, &in, sizeof in, nullptr, FI_ADDR_UNSPEC), 0) << i;
    ASSERT_EQ(in, i);
  }
  EXPECT_TRUE(p.b.quiet());
}

TEST(MsgCall, more_receives_than_the_queue_holds_are_eagain_and_all_taken_in_are_served) {
  NodePair p;
  const size_t limit = std::min<size_t>(p.b.info()->rx_attr->size * 4, 70000);
  std::vector<uint64_t> in(limit, ~0ull);
  std::vector<Op> ops(limit);
  size_t posted = 0;
  for (; posted < limit; ++posted) {
    const ssize_t r = fi_recv(p.b.ep(), &in[posted], 8, nullptr, FI_ADDR_UNSPEC, &ops[posted]);
    if (r == -FI_EAGAIN) break;
    ASSERT_EQ(r, 0);
  }
  if (on_aperture()) {
    EXPECT_GE(posted, p.b.info()->rx_attr->size);
  }
  const size_t n = std::min<size_t>(posted, 5000);
  for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(p.a.post(fi_inject, &i, sizeof i, p.to_b), 0);
  for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(p.b.wait(&ops[i]).err, 0);
  for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(in[i], i);
}

TEST(MsgCall, closing_an_endpoint_with_receives_posted_is_clean) {
  NodePair p;
  uint8_t in[64];
  Op ops[64];
  for (int i = 0; i < 64; ++i)
    ASSERT_EQ(fi_recv(p.b.ep(), &in[i], 1, nullptr, FI_ADDR_UNSPEC, &ops[i]), 0);
  p.b.close_endpoint();
  pump_for(10);
}

}  // namespace
}  // namespace aperture::doors
