// What fi_msg(3) says of flags, addresses, lengths and errors, call by call.
#include <gtest/gtest.h>

#include "doors/connected.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kReceived = FI_RECV | FI_MSG;
constexpr uint64_t kAuthKey = 1ull << 57;  // FI_AUTH_KEY, of API 1.20 on

TEST(MsgAddress, of_a_receive_is_ignored_without_fi_directed_recv) {
  NodePair p;
  const fi_addr_t nobody = 12345;
  char in[5] = {};
  Op ops[5];
  iovec iov{&in[1], 1}, msg_iov{&in[2], 1}, tagged_iov{&in[4], 1};
  const fi_msg m{&msg_iov, nullptr, 1, nobody, &ops[2], 0};
  const fi_msg_tagged t{&tagged_iov, nullptr, 1, nobody, 4, 0, &ops[4], 0};
  ASSERT_EQ(fi_recv(p.b.ep(), &in[0], 1, nullptr, nobody, &ops[0]), 0);
  ASSERT_EQ(fi_recvv(p.b.ep(), &iov, nullptr, 1, nobody, &ops[1]), 0);
  ASSERT_EQ(fi_recvmsg(p.b.ep(), &m, 0), 0);
  ASSERT_EQ(fi_trecv(p.b.ep(), &in[3], 1, nullptr, nobody, 3, 0, &ops[3]), 0);
  ASSERT_EQ(fi_trecvmsg(p.b.ep(), &t, 0), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(p.a.post(fi_inject, "m", 1, p.to_b), 0);
  for (uint64_t tag : {3, 4}) ASSERT_EQ(p.a.post(fi_tinject, "t", 1, p.to_b, tag), 0);
  for (Op& op : ops) EXPECT_EQ(p.b.wait(&op).err, 0);
  EXPECT_EQ(std::string(in, 5), "mmmtt");
  // and where the message was there first
  ASSERT_EQ(p.a.post(fi_inject, "u", 1, p.to_b), 0);
  pump_for(5);
  ASSERT_EQ(fi_recv(p.b.ep(), &in[0], 1, nullptr, nobody, &ops[0]), 0);
  EXPECT_EQ(p.b.wait(&ops[0]).err, 0);
}

TEST(MsgAddress, is_ignored_over_a_connection) {
  Station station;
  Connected c(station, station);
  for (const fi_addr_t any : {fi_addr_t{0}, fi_addr_t{77}, FI_ADDR_UNSPEC, FI_ADDR_NOTAVAIL}) {
    char in[2] = {};
    Op receive[2], send;
    iovec to_iov{&in[1], 1}, from_iov{const_cast<char*>("b"), 1};
    const fi_msg to{&to_iov, nullptr, 1, any, &receive[1], 0};
    const fi_msg from{&from_iov, nullptr, 1, any, &send, 0};
    ASSERT_EQ(post(fi_recv, c.at_b.get(), &in[0], size_t{1}, nullptr, any, &receive[0]), 0);
    ASSERT_EQ(post(fi_recvmsg, c.at_b.get(), &to, uint64_t{0}), 0);
    ASSERT_EQ(post(fi_inject, c.at_a.get(), "a", size_t{1}, any), 0);
    ASSERT_EQ(post(fi_sendmsg, c.at_a.get(), &from, uint64_t{0}), 0);
    EXPECT_EQ(station.wait(&receive[0]).err, 0);
    EXPECT_EQ(station.wait(&receive[1]).err, 0);
    EXPECT_EQ(station.wait(&send).err, 0);
    EXPECT_EQ(std::string(in, 2), "ab");
  }
}

// Every call of both tables; the first that is not refused with `code`, or null.
const char* first_not_refused(fid_ep* ep, fi_addr_t to, int64_t code) {
  uint8_t byte = 0;
  iovec iov{&byte, 1};
  Op op;
  const fi_msg m{&iov, nullptr, 1, to, &op, 0};
  const fi_msg_tagged t{&iov, nullptr, 1, to, 1, 0, &op, 0};
  const struct {
    const char* call;
    int64_t answer;
  } answers[] = {
      {"fi_send", fi_send(ep, &byte, 1, nullptr, to, &op)},
      {"fi_sendv", fi_sendv(ep, &iov, nullptr, 1, to, &op)},
      {"fi_sendmsg", fi_sendmsg(ep, &m, 0)},
      {"fi_inject", fi_inject(ep, &byte, 1, to)},
      {"fi_senddata", fi_senddata(ep, &byte, 1, nullptr, 5, to, &op)},
      {"fi_injectdata", fi_injectdata(ep, &byte, 1, 5, to)},
      {"fi_recv", fi_recv(ep, &byte, 1, nullptr, to, &op)},
      {"fi_recvv", fi_recvv(ep, &iov, nullptr, 1, to, &op)},
      {"fi_recvmsg", fi_recvmsg(ep, &m, 0)},
      {"fi_tsend", fi_tsend(ep, &byte, 1, nullptr, to, 1, &op)},
      {"fi_tsendv", fi_tsendv(ep, &iov, nullptr, 1, to, 1, &op)},
      {"fi_tsendmsg", fi_tsendmsg(ep, &t, 0)},
      {"fi_tinject", fi_tinject(ep, &byte, 1, to, 1)},
      {"fi_tsenddata", fi_tsenddata(ep, &byte, 1, nullptr, 5, to, 1, &op)},
      {"fi_tinjectdata", fi_tinjectdata(ep, &byte, 1, 5, to, 1)},
      {"fi_trecv", fi_trecv(ep, &byte, 1, nullptr, to, 1, 0, &op)},
      {"fi_trecvv", fi_trecvv(ep, &iov, nullptr, 1, to, 1, 0, &op)},
      {"fi_trecvmsg", fi_trecvmsg(ep, &t, 0)},
  };
  for (const auto& a : answers) {
    if (a.answer != code) return a.call;
  }
  return nullptr;
}

TEST(MsgState, every_call_is_refused_until_the_endpoint_is_enabled) {
  Node n({.enable = false});
  EXPECT_EQ(first_not_refused(n.ep(), 0, -FI_EOPBADSTATE), nullptr);
  Options buffered{.mode = FI_CONTEXT | FI_CONTEXT2 | (1ull << 51), .enable = false};
  Node b(buffered);
  EXPECT_EQ(first_not_refused(b.ep(), 0, -FI_EOPBADSTATE), nullptr);
  Station station;
  const Fid<fid_ep> connected = station.open();
  EXPECT_EQ(first_not_refused(connected.get(), 0, -FI_EOPBADSTATE), nullptr);
}

TEST(MsgFlag, a_receive_may_ask_for_each_level_of_completion) {
  NodePair p;
  for (const uint64_t flags :
       {uint64_t{0}, uint64_t{FI_TRANSMIT_COMPLETE}, uint64_t{FI_INJECT_COMPLETE},
        uint64_t{FI_DELIVERY_COMPLETE}, uint64_t{FI_TRANSMIT_COMPLETE | FI_COMPLETION}}) {
    for (const size_t size : few_sizes()) {
      Guarded in(size), out(size, 4);
      fill(out.span(), 4);
      iovec iov{in.data(), size};
      Op receive, send;
      const fi_msg m{&iov, nullptr, 1, FI_ADDR_UNSPEC, &receive, 0};
      ASSERT_EQ(p.b.post(fi_recvmsg, &m, flags), 0);
      ASSERT_EQ(p.a.post(fi_send, out.data(), size, nullptr, p.to_b, &send), 0);
      const Completion c = p.b.wait(&receive);
      ASSERT_EQ(c.err, 0);
      EXPECT_EQ(c.flags, kReceived) << "the flags of a receive are not its completion's";
      ASSERT_FALSE(first_difference(in.span(), 4)) << "the data is visible all the same";
      ASSERT_EQ(p.a.wait(&send).err, 0);
    }
  }
}

TEST(MsgFlag, more_holds_nothing_back_and_promises_nothing) {
  NodePair p;
  std::vector<Guarded> in, out;
  std::vector<Op> receives(few_sizes().size()), sends(few_sizes().size());
  for (size_t i = 0; i < few_sizes().size(); ++i) {
    in.emplace_back(few_sizes()[i]);
    out.emplace_back(few_sizes()[i]);
    fill(out[i].span(), i);
    iovec to{in[i].data(), in[i].size()}, from{out[i].data(), out[i].size()};
    const fi_msg receive{&to, nullptr, 1, FI_ADDR_UNSPEC, &receives[i], 0};
    const fi_msg send{&from, nullptr, 1, p.to_b, &sends[i], 0};
    ASSERT_EQ(p.b.post(fi_recvmsg, &receive, FI_MORE), 0);
    ASSERT_EQ(p.a.post(fi_sendmsg, &send, FI_MORE), 0);  // and nothing follows the last one
  }
  for (size_t i = 0; i < few_sizes().size(); ++i) {
    ASSERT_EQ(p.b.wait(&receives[i]).err, 0);
    ASSERT_EQ(p.a.wait(&sends[i]).err, 0);
    EXPECT_FALSE(first_difference(in[i].span(), i));
  }
}

TEST(MsgFlag, those_of_a_call_replace_the_defaults_of_the_endpoint) {
  Options options{.caps = kUsualCaps | FI_MULTI_RECV,
                  .cq_flags = FI_SELECTIVE_COMPLETION,
                  .tx_op_flags = FI_INJECT | FI_COMPLETION | FI_MATCH_COMPLETE,
                  .rx_op_flags = FI_MULTI_RECV | FI_COMPLETION};
  NodePair p(options);
  const size_t size = p.a.info()->tx_attr->inject_size + 1;
  Guarded out(size), in(size);
  fill(out.span(), 2);
  Op op;
  EXPECT_EQ(fi_send(p.a.ep(), out.data(), size, nullptr, p.to_b, &op), -FI_EMSGSIZE)
      << "by default it is injected";
  iovec from{out.data(), size}, to{in.data(), size};
  const fi_msg send{&from, nullptr, 1, p.to_b, &op, 0};
  ASSERT_EQ(p.a.post(fi_sendmsg, &send, uint64_t{0}), 0) << "here it is not";
  // by default it is told of, once it is matched, and takes a buffer for many
  const fi_msg_tagged tagged{&from, nullptr, 1, p.to_b, 1, 0, &op, 0};
  ASSERT_EQ(p.a.post(fi_tsendmsg, &tagged, FI_COMPLETION), 0);
  EXPECT_EQ(p.a.wait(&op).err, 0) << "nobody has matched it";
  Op receive;
  const fi_msg single{&to, nullptr, 1, FI_ADDR_UNSPEC, &receive, 0};
  ASSERT_EQ(p.b.post(fi_recvmsg, &single, FI_COMPLETION), 0);
  const Completion c = p.b.wait(&receive);
  EXPECT_EQ(c.flags, kReceived) << "one message, and no release";
  EXPECT_FALSE(first_difference(in.span(), 2));
  EXPECT_TRUE(p.a.quiet()) << "the first asked for no completion";
}

TEST(MsgFlag, inject_takes_lengths_up_to_inject_size_and_completes) {
  NodePair p;
  const size_t limit = p.a.info()->tx_attr->inject_size;
  for (const size_t size : {size_t{0}, size_t{1}, limit - 1, limit}) {
    Guarded out(size), in(size);
    fill(out.span(), 3);
    iovec iov{out.data(), size};
    Op send, receive;
    const fi_msg m{&iov, nullptr, 1, p.to_b, &send, 0};
    ASSERT_EQ(p.a.post(fi_sendmsg, &m, FI_INJECT), 0);
    std::fill_n(out.data(), size, uint8_t{0});
    EXPECT_EQ(p.a.wait(&send).err, 0) << "the flag is not the call: this is told";
    ASSERT_EQ(p.b.post(fi_recv, in.data(), size, nullptr, FI_ADDR_UNSPEC, &receive), 0);
    EXPECT_EQ(p.b.wait(&receive).err, 0);
    EXPECT_FALSE(first_difference(in.span(), 3));
  }
}

TEST(MsgFlag, data_is_sent_with_its_flag_alone) {
  NodePair p({.cq_data_size = 8});
  uint8_t byte = 1, in = 0;
  iovec iov{&byte, 1};
  for (const uint64_t flags : {uint64_t{0}, uint64_t{FI_REMOTE_CQ_DATA}}) {
    Op send, receive;
    const fi_msg m{&iov, nullptr, 1, p.to_b, &send, 0x1234};
    ASSERT_EQ(fi_recv(p.b.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &receive), 0);
    ASSERT_EQ(p.a.post(fi_sendmsg, &m, flags), 0);
    const Completion c = p.b.wait(&receive);
    EXPECT_EQ(c.flags, kReceived | flags);
    EXPECT_EQ(c.data, flags != 0 ? 0x1234u : 0u);
    EXPECT_EQ(p.a.wait(&send).err, 0);
  }
}

TEST(MsgFlag, a_key_in_the_place_of_a_source_is_refused_where_domains_have_one_key) {
  for (const uint64_t more : {uint64_t{0}, uint64_t{FI_DIRECTED_RECV}}) {
    NodePair p({.caps = kUsualCaps | more});
    uint8_t byte = 0;
    iovec iov{&byte, 1};
    Op op;
    const fi_msg m{&iov, nullptr, 1, 0, &op, 0};
    const fi_msg_tagged t{&iov, nullptr, 1, 0, 1, 0, &op, 0};
    EXPECT_EQ(fi_recvmsg(p.b.ep(), &m, kAuthKey), -FI_EBADFLAGS);
    EXPECT_EQ(fi_trecvmsg(p.b.ep(), &t, kAuthKey), -FI_EBADFLAGS);
    EXPECT_EQ(fi_cancel(&p.b.ep()->fid, &op), -FI_ENOENT) << "nothing was posted";
  }
}

TEST(MsgLength, of_max_msg_size_is_taken_and_told) {
  NodePair p;
  const size_t limit = p.a.info()->ep_attr->max_msg_size;
  // the same bytes over and over: no memory is that long
  std::vector<uint8_t> bytes(64, 7), in(64);
  iovec pieces[8];
  for (iovec& piece : pieces) piece = {bytes.data(), limit / 8};
  Op send, receive;
  ASSERT_EQ(p.b.post(fi_recv, in.data(), in.size(), nullptr, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(p.a.post(fi_sendv, pieces, nullptr, size_t{8}, p.to_b, &send), 0);
  const Completion c = p.b.wait(&receive);
  EXPECT_EQ(c.err, FI_ETRUNC);
  EXPECT_EQ(c.len, in.size());
  EXPECT_EQ(c.olen, limit - in.size());
  EXPECT_EQ(in, bytes);
  EXPECT_EQ(p.a.wait(&send).err, 0);
  pieces[7].iov_len += 1;
  EXPECT_EQ(fi_sendv(p.a.ep(), pieces, nullptr, 8, p.to_b, &send), -FI_EMSGSIZE);
}

// ---- errors ----

// The error that comes next at `at`, while `peer` goes on.
fi_cq_err_entry error_of(Node& at, Node& peer) {
  fi_cq_tagged_entry entry;
  int64_t code = -FI_EAGAIN;
  for (const int64_t end = now_ns() + 10'000'000'000; code == -FI_EAGAIN && now_ns() < end;) {
    code = fi_cq_read(at.cq(), &entry, 1);
    if (&peer != &at) peer.poll();
  }
  fi_cq_err_entry e;
  std::memset(&e, 0xEE, sizeof e);
  e.err_data_size = 0;  // it is lent out
  const int64_t read = code == -FI_EAVAIL ? fi_cq_readerr(at.cq(), &e, 0) : code;
  if (read != 1) throw DoorError("fi_cq_readerr", read);
  EXPECT_NE(e.err_data, nullptr);
  EXPECT_NE(e.err_data_size, 0u);
  EXPECT_NE(fi_cq_strerror(at.cq(), e.prov_errno, e.err_data, nullptr, 0), nullptr);
  return e;
}

TEST(MsgError, of_a_truncated_message_has_every_field) {
  NodePair p({.cq_data_size = 8});
  for (const size_t size : {size_t{9}, size_t{5000}, size_t{100000}}) {
    for (const bool tagged : {false, true}) {
      Guarded in(8), out(size);
      fill(out.span(), 6);
      Op receive, send;
      if (tagged) {
        ASSERT_EQ(fi_trecv(p.b.ep(), in.data(), 8, nullptr, FI_ADDR_UNSPEC, 0xF0, 0xF, &receive),
                  0);
        ASSERT_EQ(p.a.post(fi_tsenddata, out.data(), size, nullptr, 0x55, p.to_b, 0xF3, &send), 0);
      } else {
        ASSERT_EQ(fi_recv(p.b.ep(), in.data(), 8, nullptr, FI_ADDR_UNSPEC, &receive), 0);
        ASSERT_EQ(p.a.post(fi_senddata, out.data(), size, nullptr, 0x55, p.to_b, &send), 0);
      }
      const fi_cq_err_entry e = error_of(p.b, p.a);
      EXPECT_EQ(e.op_context, &receive);
      EXPECT_EQ(e.flags, FI_RECV | FI_REMOTE_CQ_DATA | (tagged ? FI_TAGGED : FI_MSG));
      EXPECT_EQ(e.len, 8u);
      EXPECT_EQ(e.buf, in.data());
      EXPECT_EQ(e.data, 0x55u);
      EXPECT_EQ(e.tag, tagged ? 0xF3u : 0u);
      EXPECT_EQ(e.olen, size - 8);
      EXPECT_EQ(e.err, FI_ETRUNC);
      EXPECT_FALSE(first_difference(in.span(), 6)) << "what fits is there";
      EXPECT_TRUE(in.intact());
      EXPECT_EQ(p.a.wait(&send).err, 0) << "of no concern to its sender";
    }
  }
}

TEST(MsgError, of_a_canceled_receive_has_every_field) {
  NodePair p;
  uint8_t in[8];
  for (const bool tagged : {false, true}) {
    Op op;
    if (tagged) {
      ASSERT_EQ(fi_trecv(p.b.ep(), in, 8, nullptr, FI_ADDR_UNSPEC, 0xF0, 0, &op), 0);
    } else {
      ASSERT_EQ(fi_recv(p.b.ep(), in, 8, nullptr, FI_ADDR_UNSPEC, &op), 0);
    }
    ASSERT_EQ(fi_cancel(&p.b.ep()->fid, &op), 0);
    const fi_cq_err_entry e = error_of(p.b, p.a);
    EXPECT_EQ(e.op_context, &op);
    EXPECT_EQ(e.flags, FI_RECV | (tagged ? FI_TAGGED : FI_MSG));
    EXPECT_EQ(e.len, 0u);
    EXPECT_EQ(e.buf, in);
    EXPECT_EQ(e.data, 0u);
    EXPECT_EQ(e.tag, tagged ? 0xF0u : 0u);
    EXPECT_EQ(e.olen, 0u);
    EXPECT_EQ(e.err, FI_ECANCELED);
  }
}

TEST(MsgError, of_a_send_to_nobody_has_every_field) {
  Node a;
  std::vector<uint8_t> name;
  {
    Node gone;
    name = gone.name();
  }
  const fi_addr_t nobody = a.insert(name);
  uint8_t byte = 0;
  Op op;
  ASSERT_EQ(a.post(fi_tsend, &byte, 1, nullptr, nobody, uint64_t{5}, &op), 0);
  const fi_cq_err_entry e = error_of(a, a);
  EXPECT_EQ(e.op_context, &op);
  EXPECT_EQ(e.flags, FI_SEND | FI_TAGGED);
  EXPECT_EQ(e.olen, 0u);
  EXPECT_NE(e.err, 0);
}

}  // namespace
}  // namespace aperture::doors
