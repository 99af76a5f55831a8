// FI_EP_DGRAM: fi_endpoint(3), fi_msg(3), fi_cq(3). Messages come whole or not at all; on the
// loopback interface, with room for them, they all come.
#include <gtest/gtest.h>

#include <thread>

#include "doors/dgram.hpp"
#include "doors/window.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kSizes[] = {0, 1, 8, 255, 256, 257, 1472, 4095, kDatagramBytes};

int asked(const std::function<void(fi_info&)>& change, uint64_t caps = FI_MSG) {
  Info hints = make_hints(dgram_options(caps));
  change(*hints);
  fi_info* info = nullptr;
  const int rc = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &info);
  const Info owner(rc == 0 ? info : nullptr);
  return rc;
}

TEST(DgramInfo, says_what_datagrams_are) {
  const Info info = get_info(dgram_options());
  EXPECT_EQ(info->ep_attr->type, FI_EP_DGRAM);
  EXPECT_EQ(info->ep_attr->max_msg_size, kDatagramBytes);
  EXPECT_EQ(info->ep_attr->msg_prefix_size, 0u);
  EXPECT_EQ(info->mode & FI_MSG_PREFIX, 0u);
  EXPECT_EQ(info->tx_attr->msg_order, 0u);
  EXPECT_EQ(info->rx_attr->msg_order, 0u);
  EXPECT_EQ(info->ep_attr->max_order_waw_size, 0u);
  EXPECT_EQ(info->rx_attr->total_buffered_recv, 0u);
  EXPECT_EQ(info->domain_attr->cq_data_size, 8u);
  EXPECT_EQ(info->caps & (FI_MSG | FI_MULTICAST | FI_SEND | FI_RECV), FI_MSG | FI_SEND | FI_RECV);
}

TEST(DgramInfo, what_datagrams_cannot_do_is_refused) {
  EXPECT_EQ(asked([](fi_info&) {}), 0);
  for (const uint64_t caps : {FI_TAGGED, FI_RMA, FI_ATOMIC, FI_RMA_EVENT, FI_COLLECTIVE}) {
    SCOPED_TRACE(caps);
    EXPECT_EQ(asked([](fi_info&) {}, FI_MSG | caps), -FI_ENODATA);
  }
  EXPECT_EQ(asked([](fi_info&) {}, FI_MULTICAST), -FI_ENODATA) << "it is paired with FI_MSG";
  EXPECT_EQ(asked([](fi_info&) {}, FI_MULTICAST | FI_MSG), 0);
  EXPECT_EQ(asked([](fi_info& h) { h.ep_attr->max_msg_size = kDatagramBytes; }), 0);
  EXPECT_EQ(asked([](fi_info& h) { h.ep_attr->max_msg_size = kDatagramBytes + 1; }), -FI_ENODATA);
  EXPECT_EQ(asked([](fi_info& h) { h.tx_attr->msg_order = FI_ORDER_SAS; }), -FI_ENODATA);
  EXPECT_EQ(asked([](fi_info& h) { h.rx_attr->msg_order = FI_ORDER_SAS; }), -FI_ENODATA);
  EXPECT_EQ(asked([](fi_info& h) { h.tx_attr->op_flags = FI_TRANSMIT_COMPLETE; }), 0);
  for (const uint64_t level : {FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE, FI_COMMIT_COMPLETE})
    EXPECT_EQ(asked([&](fi_info& h) { h.tx_attr->op_flags = level; }), -FI_ENODATA);
  EXPECT_EQ(asked([](fi_info& h) { h.tx_attr->op_flags = FI_MULTICAST; }), -FI_ENODATA);
  EXPECT_EQ(asked([](fi_info& h) { h.tx_attr->op_flags = FI_MULTICAST; }, FI_MSG | FI_MULTICAST),
            0);
  EXPECT_EQ(asked([](fi_info& h) { set_auth_key(*h.ep_attr, "key"); }), -FI_ENODATA);
  EXPECT_EQ(asked([](fi_info& h) { set_auth_key(*h.domain_attr, "key"); }), -FI_ENODATA);
  EXPECT_EQ(asked([](fi_info& h) { h.rx_attr->total_buffered_recv = 1; }), -FI_ENODATA);
}

TEST(DgramInfo, an_unspecified_type_lists_datagrams_last) {
  Info hints = make_hints(dgram_options());
  hints->ep_attr->type = FI_EP_UNSPEC;
  fi_info* info = nullptr;
  ASSERT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &info), 0);
  const Info owner(info);
  std::vector<fi_ep_type> types;
  for (const fi_info* i = info; i != nullptr; i = i->next) types.push_back(i->ep_attr->type);
  EXPECT_EQ(types, (std::vector<fi_ep_type>{FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM}));
  hints->caps = FI_MSG | FI_MULTICAST;
  ASSERT_EQ(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &info), 0);
  const Info multicast(info);
  EXPECT_EQ(info->ep_attr->type, FI_EP_DGRAM);
  EXPECT_EQ(info->next, nullptr);
}

TEST(Dgram, messages_of_all_sizes_come_whole_by_each_call) {
  NodePair p(dgram_options());
  uint64_t n = 0;
  for (const size_t size : kSizes) {
    const auto arrives = [&](const char* call, const std::function<int64_t(uint8_t*)>& send,
                             uint64_t data = 0) {
      SCOPED_TRACE(std::string(call) + " of " + std::to_string(size));
      const uint64_t seed = seed_of(++n);
      Receiving r(p.b, kDatagramBytes);
      Guarded from(size, seed);
      ASSERT_EQ(send(from.data()), 0);
      const Completion c = r.wait();
      ASSERT_EQ(c.err, 0);
      EXPECT_EQ(c.len, size);
      EXPECT_EQ(c.flags, FI_RECV | FI_MSG | (data != 0 ? FI_REMOTE_CQ_DATA : 0));
      EXPECT_EQ(c.data, data);
      EXPECT_TRUE(r.holds(size, seed));
    };
    arrives("fi_send", [&](uint8_t* at) { return p.a.run(fi_send, at, size, nullptr, p.to_b); });
    arrives("fi_sendv", [&](uint8_t* at) {
      const size_t half = size / 2;
      const iovec iov[2] = {{at, half}, {at + half, size - half}};
      return p.a.run(fi_sendv, iov, nullptr, size_t{2}, p.to_b);
    });
    constexpr uint64_t kData = 0x1122334455667788;
    arrives(
        "fi_senddata",
        [&](uint8_t* at) { return p.a.run(fi_senddata, at, size, nullptr, kData, p.to_b); }, kData);
    arrives(
        "fi_sendmsg",
        [&](uint8_t* at) {
          Op op;
          const iovec iov{at, size};
          const fi_msg msg{&iov, nullptr, 1, p.to_b, &op, kData + 1};
          return p.a.run_message(fi_sendmsg, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_MORE);
        },
        kData + 1);
    if (size > p.a.info()->tx_attr->inject_size) continue;
    arrives("fi_inject", [&](uint8_t* at) { return p.a.post(fi_inject, at, size, p.to_b); });
    arrives(
        "fi_injectdata",
        [&](uint8_t* at) { return p.a.post(fi_injectdata, at, size, kData + 2, p.to_b); },
        kData + 2);
  }
  EXPECT_TRUE(p.a.quiet());
  EXPECT_TRUE(p.b.quiet());
}

TEST(Dgram, what_is_too_large_is_refused_at_the_call) {
  NodePair p(dgram_options());
  std::vector<uint8_t> bytes(kDatagramBytes + 1);
  Op op;
  EXPECT_EQ(fi_send(p.a.ep(), bytes.data(), bytes.size(), nullptr, p.to_b, &op), -FI_EMSGSIZE);
  const size_t injected = p.a.info()->tx_attr->inject_size;
  EXPECT_EQ(fi_inject(p.a.ep(), bytes.data(), injected, p.to_b), 0);
  EXPECT_EQ(fi_inject(p.a.ep(), bytes.data(), injected + 1, p.to_b), -FI_EMSGSIZE);
  EXPECT_TRUE(p.a.quiet());
}

TEST(Dgram, a_message_longer_than_its_receive_is_an_error_that_tells_all) {
  NodePair p(dgram_options());
  const uint64_t seed = seed_of(1);
  Receiving r(p.b, 100), next(p.b, 100);
  Guarded from(300, seed);
  ASSERT_EQ(p.a.run(fi_senddata, from.data(), size_t{300}, nullptr, uint64_t{7}, p.to_b), 0);
  const Completion c = r.wait();
  EXPECT_EQ(c.err, FI_ETRUNC);
  EXPECT_EQ(c.context, &r.op);
  EXPECT_EQ(c.len, 100u);
  EXPECT_EQ(c.olen, 200u);
  EXPECT_EQ(c.data, 7u);
  EXPECT_EQ(c.buf, r.memory.data());
  EXPECT_EQ(c.flags, FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA);
  EXPECT_TRUE(r.holds(100, seed)) << "what there was room for, and no more";
  ASSERT_EQ(p.a.post(fi_inject, from.data(), size_t{100}, p.to_b), 0);
  EXPECT_EQ(next.wait().err, 0) << "the endpoint goes on";
}

TEST(Dgram, the_sender_is_told_and_a_stranger_has_no_address) {
  const Options options = dgram_options(FI_MSG | FI_SOURCE);
  NodePair p(options);
  Node stranger(options);
  const fi_addr_t to_b = stranger.insert(p.b.name());
  Receiving first(p.b, 8), second(p.b, 8);
  ASSERT_EQ(p.a.post(fi_inject, "known", size_t{5}, p.to_b), 0);
  EXPECT_EQ(first.wait().source, p.to_a);
  ASSERT_EQ(stranger.post(fi_inject, "unknown", size_t{7}, to_b), 0);
  EXPECT_EQ(second.wait().source, FI_ADDR_NOTAVAIL);
  const fi_addr_t now = p.b.insert(stranger.name());
  Receiving third(p.b, 8);
  ASSERT_EQ(stranger.post(fi_inject, "known", size_t{5}, to_b), 0);
  EXPECT_EQ(third.wait().source, now);
}

TEST(Dgram, a_directed_receive_takes_from_its_source_alone) {
  const Options options = dgram_options(FI_MSG | FI_SOURCE | FI_DIRECTED_RECV);
  NodePair p(options);
  Node other(options);
  const fi_addr_t to_b = other.insert(p.b.name());
  const fi_addr_t from_other = p.b.insert(other.name());
  Receiving of_other(p.b, 8, from_other), of_a(p.b, 8, p.to_a), of_any(p.b, 8);
  ASSERT_EQ(p.a.post(fi_inject, "a", size_t{1}, p.to_b), 0);
  EXPECT_EQ(of_a.wait().source, p.to_a);
  ASSERT_EQ(p.a.post(fi_inject, "a", size_t{1}, p.to_b), 0);
  EXPECT_EQ(of_any.wait().source, p.to_a);
  ASSERT_EQ(other.post(fi_inject, "o", size_t{1}, to_b), 0);
  EXPECT_EQ(of_other.wait().source, from_other);
}

TEST(Dgram, without_directed_receives_the_source_is_ignored) {
  NodePair p(dgram_options());
  Receiving r(p.b, 8, p.to_a + 1);
  ASSERT_EQ(p.a.post(fi_inject, "a", size_t{1}, p.to_b), 0);
  EXPECT_EQ(r.wait().err, 0);
}

TEST(Dgram, one_buffer_takes_many_messages) {
  Options options = dgram_options(FI_MSG | FI_MULTI_RECV);
  options.min_multi_recv = 64;
  NodePair p(options);
  Guarded memory(164);
  Op op;
  const iovec iov{memory.data(), memory.size()};
  const fi_msg msg{&iov, nullptr, 1, FI_ADDR_UNSPEC, &op, 0};
  ASSERT_EQ(p.b.post(fi_recvmsg, &msg, FI_MULTI_RECV), 0);
  for (size_t i = 0; i < 3; ++i) {
    Guarded from(50, seed_of(i));
    ASSERT_EQ(p.a.post(fi_inject, from.data(), size_t{50}, p.to_b), 0);
    const Completion c = p.b.wait(&op);
    ASSERT_EQ(c.err, 0);
    EXPECT_EQ(c.len, 50u);
    EXPECT_EQ(c.buf, memory.data() + 50 * i);
    EXPECT_EQ(c.flags, FI_RECV | FI_MSG | (i == 2 ? FI_MULTI_RECV : 0));
    EXPECT_FALSE(first_difference(memory.span().subspan(50 * i, 50), seed_of(i)));
  }
  EXPECT_TRUE(memory.intact());
}

TEST(Dgram, completions_are_written_where_they_are_asked_for) {
  Options options = dgram_options();
  options.cq_flags = FI_SELECTIVE_COMPLETION;
  options.counters = true;
  NodePair p(options);
  Op op, recv_op;
  char byte = 'x', got = 0;
  ASSERT_EQ(p.b.post(fi_recv, &got, size_t{1}, nullptr, FI_ADDR_UNSPEC, &recv_op), 0);
  ASSERT_EQ(p.a.post(fi_send, &byte, size_t{1}, nullptr, p.to_b, &op), 0);
  ASSERT_TRUE(pump_until([&] { return fi_cntr_read(p.b.rx_cntr()) == 1; }));
  EXPECT_EQ(fi_cntr_read(p.a.tx_cntr()), 1u);
  EXPECT_TRUE(p.a.quiet());
  EXPECT_TRUE(p.b.quiet());
  const iovec iov{&byte, 1};
  const fi_msg msg{&iov, nullptr, 1, p.to_b, &op, 0};
  EXPECT_EQ(p.a.run_message(fi_sendmsg, &msg, FI_COMPLETION), 0);
}

TEST(Dgram, what_needs_an_answer_is_refused) {
  NodePair p(dgram_options());
  char byte = 0;
  Op op;
  const iovec iov{&byte, 1};
  const fi_msg msg{&iov, nullptr, 1, p.to_b, &op, 0};
  EXPECT_EQ(p.a.run_message(fi_sendmsg, &msg, FI_TRANSMIT_COMPLETE | FI_FENCE), 0);
  for (const uint64_t level : {FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE, FI_COMMIT_COMPLETE})
    EXPECT_EQ(fi_sendmsg(p.a.ep(), &msg, level), -FI_EBADFLAGS);
  EXPECT_EQ(fi_sendmsg(p.a.ep(), &msg, 1ull << 57), -FI_EBADFLAGS);
  EXPECT_EQ(fi_sendmsg(p.a.ep(), nullptr, 0), -FI_EINVAL);
  EXPECT_EQ(fi_tsend(p.a.ep(), &byte, 1, nullptr, p.to_b, 0, &op), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_write(p.a.ep(), &byte, 1, nullptr, p.to_b, 0, 0, &op), -FI_EOPNOTSUPP);
  const auto send_inv = mr::window_ops(p.a.domain()).send_inv;
  EXPECT_EQ(send_inv(p.a.ep(), &byte, 1, nullptr, p.to_b, 1, &op), -FI_EOPNOTSUPP);
  uint64_t flags = FI_TRANSMIT | FI_DELIVERY_COMPLETE;
  EXPECT_EQ(fi_control(&p.a.ep()->fid, FI_SETOPSFLAG, &flags), -FI_EBADFLAGS);
  EXPECT_TRUE(p.a.quiet());
}

TEST(Dgram, wrong_buffers_and_addresses_are_refused) {
  NodePair p(dgram_options());
  Op op;
  char byte = 0;
  EXPECT_EQ(fi_send(p.a.ep(), &byte, 1, nullptr, p.to_b + 1, &op), -FI_EINVAL);
  EXPECT_EQ(fi_send(p.a.ep(), &byte, 1, nullptr, FI_ADDR_UNSPEC, &op), -FI_EINVAL);
  EXPECT_EQ(fi_send(p.a.ep(), nullptr, 1, nullptr, p.to_b, &op), -FI_EINVAL);
  void* unmapped = reinterpret_cast<void*>(0x1000);
  EXPECT_EQ(fi_send(p.a.ep(), unmapped, 64, nullptr, p.to_b, &op), -FI_EFAULT);
  const std::vector<iovec> many(p.a.info()->tx_attr->iov_limit + 1, iovec{&byte, 1});
  EXPECT_EQ(fi_sendv(p.a.ep(), many.data(), nullptr, many.size(), p.to_b, &op), -FI_EINVAL);
  EXPECT_EQ(fi_sendv(p.a.ep(), many.data(), nullptr, many.size() - 1, p.to_b, &op), 0);
  EXPECT_EQ(p.a.wait(&op).err, 0);
  EXPECT_TRUE(p.a.quiet());
}

TEST(Dgram, sends_to_nobody_are_lost_and_no_error) {
  Node a(dgram_options());
  fi_addr_t gone = FI_ADDR_UNSPEC;
  {
    Node b(dgram_options());
    gone = a.insert(b.name());
  }
  char byte = 0;
  for (int i = 0; i < 100; ++i) ASSERT_EQ(a.run(fi_send, &byte, size_t{1}, nullptr, gone), 0);
}

TEST(Dgram, a_message_waits_a_moment_for_its_receive_and_is_lost_then) {
  NodePair p(dgram_options());
  ASSERT_EQ(p.a.post(fi_inject, "early", size_t{5}, p.to_b), 0);
  pump_for(10);
  {
    Receiving r(p.b, 8);
    EXPECT_EQ(r.wait().len, 5u);
  }
  ASSERT_EQ(p.a.post(fi_inject, "lost", size_t{4}, p.to_b), 0);
  pump_for(300);
  Receiving r(p.b, 8);
  ASSERT_EQ(p.a.post(fi_inject, "next", size_t{4}, p.to_b), 0);
  ASSERT_EQ(r.wait().err, 0);
  EXPECT_EQ(std::memcmp(r.memory.data(), "next", 4), 0);
}

TEST(Dgram, a_full_queue_leaves_messages_where_they_are) {
  NodePair p(dgram_options());
  std::vector<std::unique_ptr<Receiving>> receives;
  const size_t many = 3000;  // more than the queue has entries
  for (size_t i = 0; i < many; ++i) receives.push_back(std::make_unique<Receiving>(p.b, 8));
  size_t sent = 0, came = 0;
  while (came < many) {
    for (; sent < many && sent - came < 100; ++sent)
      ASSERT_EQ(p.a.post(fi_inject, &sent, sizeof sent, p.to_b), 0);
    const Completion c = receives[came]->wait(5000);
    ASSERT_EQ(c.err, 0) << came;
    size_t got = 0;
    std::memcpy(&got, receives[came]->memory.data(), sizeof got);
    EXPECT_EQ(got, came);
    ++came;
  }
}

TEST(Dgram, a_receive_is_cancelled) {
  NodePair p(dgram_options());
  Receiving r(p.b, 8), stays(p.b, 8);
  EXPECT_EQ(fi_cancel(&p.b.ep()->fid, &r.op), 0);
  const Completion c = r.wait();
  EXPECT_EQ(c.err, FI_ECANCELED);
  EXPECT_EQ(c.context, &r.op);
  EXPECT_EQ(c.buf, r.memory.data());
  ASSERT_EQ(p.a.post(fi_inject, "a", size_t{1}, p.to_b), 0);
  EXPECT_EQ(stays.wait().err, 0);
}

TEST(Dgram, a_flood_loses_messages_and_mixes_none_up) {
  NodePair p(dgram_options());
  constexpr size_t kReceives = 16;
  std::vector<std::unique_ptr<Receiving>> posted;
  for (size_t i = 0; i < kReceives; ++i)
    posted.push_back(std::make_unique<Receiving>(p.b, kDatagramBytes));
  uint64_t came = 0;
  for (uint64_t i = 0; i < 5000; ++i) {
    const size_t size = 8 + seed_of(i) % (kDatagramBytes - 8);
    std::vector<uint8_t> bytes(size);
    std::memcpy(bytes.data(), &i, sizeof i);
    fill(std::span(bytes).subspan(8), i + 1);
    ASSERT_EQ(p.a.run(fi_send, bytes.data(), size, nullptr, p.to_b), 0);
    for (auto& r : posted) {
      const auto c = p.b.take(&r->op);
      if (!c) continue;
      ASSERT_EQ(c->err, 0);
      uint64_t which = 0;
      std::memcpy(&which, r->memory.data(), sizeof which);
      ASSERT_EQ(c->len, 8 + seed_of(which) % (kDatagramBytes - 8));
      ASSERT_FALSE(first_difference(r->memory.span().subspan(8, c->len - 8), which + 1));
      ASSERT_TRUE(r->memory.intact());
      ++came;
      r = std::make_unique<Receiving>(p.b, kDatagramBytes);
    }
  }
  EXPECT_GT(came, 1000u);
}

TEST(Dgram, a_message_wakes_who_sleeps_in_fi_cq_sread) {
  Options options = dgram_options();
  options.wait = FI_WAIT_FD;
  NodePair p(options);
  Receiving r(p.b, 8);
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(fi_inject(p.a.ep(), "wake", 4, p.to_b), 0);
  });
  fi_cq_tagged_entry entry{};
  EXPECT_EQ(fi_cq_sread(p.b.cq(), &entry, 1, nullptr, 10'000), 1);
  EXPECT_EQ(entry.op_context, &r.op);
  sender.join();
}

TEST(Dgram, its_port_is_the_one_that_was_given) {
  Node first(dgram_options());
  const auto name = first.name();
  const auto open_there = [&] {
    Info info = get_info(dgram_options());
    free(info->src_addr);
    info->src_addr = malloc(name.size());
    std::memcpy(info->src_addr, name.data(), name.size());
    info->src_addrlen = name.size();
    auto ep = DOOR_MADE(fi_endpoint, first.domain(), info.get());
    DOOR(fi_ep_bind(ep.get(), &first.av()->fid, 0));
    DOOR(fi_ep_bind(ep.get(), &first.cq()->fid, FI_TRANSMIT | FI_RECV));
    const int rc = fi_enable(ep.get());
    EXPECT_TRUE(rc != 0 || name_of(&ep->fid) == name);
    return rc;
  };
  EXPECT_EQ(open_there(), -FI_EADDRINUSE);
  first.close_endpoint();
  EXPECT_EQ(open_there(), 0);
}

}  // namespace
}  // namespace aperture::doors
