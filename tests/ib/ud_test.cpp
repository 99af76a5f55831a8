// Unreliable datagrams: what arrives, what is dropped, and what an error ends.
#include "ib/datagram_side.hpp"

namespace aperture::ib::test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

bool is_readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

TEST(Ud, messages_of_all_sizes_arrive_behind_their_route_header) {
  UdSide a, b;
  uint64_t id = 0;
  for (const size_t n : {size_t{0}, size_t{1}, size_t{8}, size_t{1000}, size_t{4096}}) {
    a.fill(0, pattern(n, static_cast<unsigned>(n)));
    ASSERT_TRUE(b.post_recv(100 + id, 0));
    ASSERT_TRUE(a.send(id, b.qp->qpn(), 0, n));
    ASSERT_TRUE(b.received(1));
    const Wc sent = UdSide::take(a.send_cq);
    EXPECT_EQ(sent.id, id);
    EXPECT_EQ(sent.status, WcStatus::success);
    EXPECT_EQ(sent.opcode, WcOpcode::send);
    const Wc got = UdSide::take(b.recv_cq);
    EXPECT_EQ(got.id, 100 + id);
    EXPECT_EQ(got.status, WcStatus::success);
    EXPECT_EQ(got.opcode, WcOpcode::recv);
    EXPECT_EQ(got.byte_len, kGrh + n);
    EXPECT_EQ(got.src_qpn, a.qp->qpn());
    EXPECT_EQ(got.flags, kWcGrh);
    EXPECT_FALSE(got.solicited);
    EXPECT_EQ(b.bytes(kGrh, n), pattern(n, static_cast<unsigned>(n)));
    const auto grh = b.bytes(0, kGrh);
    EXPECT_EQ(grh[0], std::byte{0x60});
    EXPECT_EQ(std::memcmp(&grh[8], kLoopback.ip.data(), 16), 0) << "where it came from";
    EXPECT_EQ(std::memcmp(&grh[24], kLoopback.ip.data(), 16), 0) << "where it went to";
    ++id;
  }
}

TEST(Ud, immediate_data_and_the_solicited_flag_arrive) {
  UdSide a, b;
  ASSERT_TRUE(b.post_recv(1, 0));
  SendWr wr = a.work(1, b.qp->qpn());
  wr.op = SendOp::send_with_imm;
  wr.imm = 0x12345678;
  wr.flags |= kSolicited;
  const InlinePart parts[] = {{"ab", 2}, {"cd", 2}};
  wr.inline_parts = parts;
  wr.inline_count = 2;
  ASSERT_TRUE(a.qp->post_send(wr));
  ASSERT_TRUE(b.received(1));
  const Wc got = UdSide::take(b.recv_cq);
  EXPECT_EQ(got.flags, kWcGrh | kWcWithImm);
  EXPECT_EQ(got.imm, 0x12345678u);
  EXPECT_TRUE(got.solicited);
  EXPECT_EQ(std::memcmp(b.memory.data() + kGrh, "abcd", 4), 0);
}

TEST(Ud, what_no_datagram_can_carry_is_refused_at_the_post) {
  UdSide a;
  EXPECT_EQ(a.send(1, 0x123400, 0, 4097).error(), Errc::invalid);
  SendWr nowhere = a.work(1, 0x123400);
  nowhere.route = nullptr;
  EXPECT_EQ(a.qp->post_send(nowhere).error(), Errc::invalid);
  EXPECT_EQ(a.qp->post_send(a.work(1, 0x1000000)).error(), Errc::invalid);
  for (const SendOp op : {SendOp::write, SendOp::read, SendOp::fetch_add, SendOp::send_with_inv,
                          SendOp::bind_mw, SendOp::local_inv}) {
    SendWr wr = a.work(1, 0x123400);
    wr.op = op;
    EXPECT_EQ(a.qp->post_send(wr).error(), Errc::invalid);
  }
  UdSide early({.state = QpState::rtr});
  EXPECT_EQ(early.send(1, 0x123400, 0, 8).error(), Errc::bad_state);
  EXPECT_TRUE(a.send_cq.empty());
}

TEST(Ud, a_send_to_nobody_completes) {
  UdSide a;
  uint32_t gone;
  {
    const UdSide b;
    gone = b.qp->qpn();
  }
  uint64_t id = 0;
  for (const uint32_t qpn : {gone, gone, gone | 3, 0u, 1u}) ASSERT_TRUE(a.send(++id, qpn, 0, 8));
  a.route.remote = Address::v4(0x7f000009, 0);
  ASSERT_TRUE(a.send(++id, gone, 0, 8));
  a.route.remote.ip = {0x20, 0x01, 0x0d, 0xb8};  // no socket of that family
  ASSERT_TRUE(a.send(++id, gone, 0, 8));
  a.settle();
  ASSERT_EQ(a.send_cq.size(), id);
  EXPECT_EQ(ends_of(a.send_cq), Ends(id, success));
  EXPECT_EQ(a.qp->state(), QpState::rts);
}

TEST(Ud, another_qkey_is_dropped_and_the_top_bit_means_the_senders_own) {
  UdSide a({.qkey = 77}), b({.qkey = 77}), c;
  ASSERT_TRUE(b.post_recv(1, 0));
  ASSERT_TRUE(c.post_recv(1, 0));
  ASSERT_TRUE(a.send(1, b.qp->qpn(), 0, 8, 78));
  ASSERT_TRUE(a.send(2, c.qp->qpn(), 0, 8, 0x80000000));
  ASSERT_TRUE(b.until([&] { return b.qp->drops().wrong_qkey == 1; }));
  ASSERT_TRUE(c.until([&] { return c.qp->drops().wrong_qkey == 1; }));
  ASSERT_TRUE(a.send(3, b.qp->qpn(), 0, 8, 0x80000000));
  ASSERT_TRUE(a.send(4, c.qp->qpn(), 0, 8, kQkey));
  EXPECT_TRUE(b.received(1));
  EXPECT_TRUE(c.received(1));
}

TEST(Ud, a_message_waits_a_moment_for_a_receive_and_is_dropped_then) {
  UdSide a, b;
  ASSERT_TRUE(a.send(1, b.qp->qpn(), 0, 8));
  for (int i = 0; i < 10; ++i) b.qp->poll(1);
  ASSERT_TRUE(b.post_recv(1, 0));
  ASSERT_TRUE(b.received(1)) << "the receive came soon enough";
  UdSide::take(b.recv_cq);
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(a.send(i, b.qp->qpn(), 0, 8));
  ASSERT_TRUE(b.until([&] { return b.qp->drops().no_receive == 40; }));
  ASSERT_TRUE(b.post_recv(2, 0));
  b.settle();
  EXPECT_TRUE(b.recv_cq.empty());
  ASSERT_TRUE(a.send(50, b.qp->qpn(), 0, 8));
  EXPECT_TRUE(b.received(1));
}

TEST(Ud, who_sleeps_is_not_woken_for_what_waits_but_for_its_receive) {
  UdSide a, b;
  const int wake = b.qp->datagrams().wake_fd();
  ASSERT_TRUE(a.send(1, b.qp->qpn(), 0, 8));
  b.qp->poll(1);
  EXPECT_FALSE(b.qp->anything_arrived());
  b.qp->fall_asleep(ring::kUnnumbered);
  EXPECT_FALSE(is_readable(wake));
  ASSERT_TRUE(b.post_recv(1, 0));
  EXPECT_TRUE(is_readable(wake));
  b.qp->wake_up();
  ASSERT_TRUE(b.received(1));
}

TEST(Ud, what_has_waited_too_long_while_all_slept_is_dropped_by_the_next_receive) {
  for (const bool shared : {false, true}) {
    SCOPED_TRACE(shared ? "shared" : "its own");
    Events events;
    ReceiveQueue srq(8, 1, &events);
    UdSide a, b({.srq = shared ? &srq : nullptr});
    const Sge sge = b.sge(0, 200);
    const auto post = [&] {
      return shared ? srq.post({1, &sge, 1}) : b.qp->post_recv({1, &sge, 1});
    };
    for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(a.send(i, b.qp->qpn(), 0, 8));
    b.qp->poll(1);
    b.qp->fall_asleep(ring::kUnnumbered);
    std::this_thread::sleep_for(std::chrono::nanoseconds(UdQp::kReceiveTimeoutNs));
    ASSERT_TRUE(post());
    EXPECT_EQ(b.qp->drops().no_receive, 20u);
    EXPECT_FALSE(is_readable(b.qp->datagrams().wake_fd()));
    ASSERT_TRUE(a.send(21, b.qp->qpn(), 0, 8));
    EXPECT_TRUE(is_readable(b.qp->datagrams().wake_fd())) << "this one has its receive";
    b.qp->wake_up();
    EXPECT_TRUE(b.received(1));
  }
}

TEST(Ud, a_message_longer_than_the_receive_is_dropped_and_the_receive_stays) {
  UdSide a, b;
  ASSERT_TRUE(b.post_recv(7, 0, kGrh + 8));
  ASSERT_TRUE(a.send(1, b.qp->qpn(), 0, 9));
  ASSERT_TRUE(b.until([&] { return b.qp->drops().too_long == 1; }));
  EXPECT_EQ(b.qp->state(), QpState::rts);
  EXPECT_EQ(b.bytes(0, 100), std::vector<std::byte>(100));
  ASSERT_TRUE(a.send(2, b.qp->qpn(), 0, 8));
  ASSERT_TRUE(b.received(1));
  EXPECT_EQ(UdSide::take(b.recv_cq).id, 7u);
}

TEST(Ud, a_send_from_foreign_memory_ends_the_send_queue_alone_until_it_is_mended) {
  UdSide a, b;
  ASSERT_TRUE(a.post_recv(9, 0));
  ASSERT_TRUE(b.post_recv(8, 0));
  SendWr bad = a.work(1, b.qp->qpn());
  Sge sge = a.sge(0, 8);
  sge.lkey ^= 0x5555;
  bad.flags = 0;  // an error is told all the same
  ASSERT_TRUE(a.post(bad, sge));
  ASSERT_TRUE(a.send(2, b.qp->qpn(), 0, 8));
  EXPECT_EQ(a.qp->state(), QpState::sqe);
  EXPECT_EQ(ends_of(a.send_cq), (Ends{loc_prot_err, wr_flush_err}));
  ASSERT_TRUE(b.send(3, a.qp->qpn(), 0, 8));
  ASSERT_TRUE(a.received(1)) << "receiving goes on";
  EXPECT_EQ(UdSide::take(a.recv_cq).status, WcStatus::success);
  EXPECT_TRUE(validate_modify(QpType::ud, QpState::sqe, QpState::rts, kAttrState).fault ==
              ModifyFault::none);
  a.go_to(QpState::rts);
  ASSERT_TRUE(a.send(4, b.qp->qpn(), 0, 8));
  EXPECT_EQ(UdSide::take(a.send_cq).status, WcStatus::success);
  ASSERT_TRUE(b.received(1));
  EXPECT_EQ(b.recv_cq.size(), 1u) << "neither the bad nor the flushed one was sent";
  EXPECT_TRUE(a.events.async.empty());
}

TEST(Ud, a_receive_into_foreign_memory_ends_the_queue_pair) {
  UdSide a, b;
  Sge sge = b.sge(0, 1000);
  sge.lkey ^= 0x5555;
  ASSERT_TRUE(b.qp->post_recv({5, &sge, 1}));
  ASSERT_TRUE(b.post_recv(6, 0));
  ASSERT_TRUE(a.send(1, b.qp->qpn(), 0, 8));
  ASSERT_TRUE(b.received(2));
  EXPECT_EQ(b.qp->state(), QpState::err);
  EXPECT_EQ(ends_of(b.recv_cq), (Ends{loc_prot_err, wr_flush_err}));
  ASSERT_TRUE(b.send(2, a.qp->qpn(), 0, 8));
  EXPECT_EQ(UdSide::take(b.send_cq).status, WcStatus::wr_flush_err);
}

TEST(Ud, nothing_comes_in_before_rtr_nor_after_an_error) {
  UdSide a, b({.state = QpState::init});
  ASSERT_TRUE(b.post_recv(1, 0));
  ASSERT_TRUE(a.send(1, b.qp->qpn(), 0, 8));
  ASSERT_TRUE(b.until([&] { return b.qp->drops().not_ready == 1; }));
  b.bring_to(QpState::rtr);
  ASSERT_TRUE(a.send(2, b.qp->qpn(), 0, 8));
  ASSERT_TRUE(b.received(1)) << "ready to receive";
  b.qp->fail();
  ASSERT_TRUE(a.send(3, b.qp->qpn(), 0, 8));
  ASSERT_TRUE(b.until([&] { return b.qp->drops().not_ready == 2; }));
  EXPECT_EQ(b.recv_cq.size(), 1u);
}

TEST(Ud, sends_wait_in_sqd_and_go_on_afterwards) {
  UdSide a, b;
  ASSERT_TRUE(b.post_recv(1, 0));
  QpAttributes attr;
  attr.en_sqd_async = true;
  a.go_to(QpState::sqd, kAttrEnSqdAsync, attr);
  EXPECT_EQ(a.events.async, std::vector<AsyncEvent>{AsyncEvent::sq_drained});
  ASSERT_TRUE(a.send(1, b.qp->qpn(), 0, 8));
  a.settle();
  EXPECT_TRUE(a.send_cq.empty());
  a.go_to(QpState::rts);
  EXPECT_EQ(a.send_cq.size(), 1u);
  EXPECT_TRUE(b.received(1));
}

TEST(Ud, a_shared_receive_queue_serves_datagrams_too) {
  Events events;
  ReceiveQueue srq(8, 1, &events);
  UdSide a, b({.srq = &srq});
  const Sge sge = b.sge(0, 200);
  ASSERT_TRUE(srq.post({3, &sge, 1}));
  ASSERT_TRUE(a.send(1, b.qp->qpn(), 0, 8));
  ASSERT_TRUE(b.received(1));
  EXPECT_EQ(UdSide::take(b.recv_cq).id, 3u);
}

// Has room for as many as it is told.
class Narrow final : public link::Datagrams {
 public:
  int room = 0;
  int sent = 0;
  uint16_t port() const noexcept override { return 4000; }
  bool is_own(const Address&) const noexcept override { return false; }
  Status send(const Address&, const Address&, std::span<const iovec>) noexcept override {
    if (room == 0) return Errc::again;
    --room;
    ++sent;
    return {};
  }
  size_t receive(link::DatagramSink&, size_t) noexcept override { return 0; }
  bool anything_arrived() const noexcept override { return false; }
  void ask_wake(bool) noexcept override {}
  int wake_fd() const noexcept override { return -1; }
  Status join(const Address&, const Address&) noexcept override { return {}; }
  Status leave(const Address&) noexcept override { return {}; }
};

TEST(Ud, a_send_that_finds_no_room_is_tried_again_in_its_order) {
  auto made = std::make_unique<Narrow>();
  Narrow& narrow = *made;
  UdSide a({.link = std::move(made)});
  for (uint64_t id = 0; id < 64; ++id) ASSERT_TRUE(a.send(id, 0x123400, 0, 8));
  EXPECT_EQ(a.send(64, 0x123400, 0, 8).error(), Errc::no_space);
  EXPECT_TRUE(a.send_cq.empty());
  EXPECT_TRUE(a.qp->needs_polling());
  EXPECT_EQ(a.qp->look(), link::Pollable::Look::poll);
  narrow.room = 3;
  a.settle();
  EXPECT_EQ(narrow.sent, 3);
  ASSERT_EQ(a.send_cq.size(), 3u);
  for (uint64_t id = 0; id < 3; ++id) EXPECT_EQ(UdSide::take(a.send_cq).id, id);
  narrow.room = 1000;
  a.settle();
  EXPECT_EQ(a.send_cq.size(), 61u);
  EXPECT_FALSE(a.qp->needs_polling());
}

TEST(Ud, who_sleeps_is_woken_and_who_is_awake_is_not) {
  UdSide a, b;
  link::Datagrams& link = b.qp->datagrams();
  ASSERT_TRUE(b.post_recv(1, 0));
  ASSERT_TRUE(a.send(1, b.qp->qpn(), 0, 8));
  EXPECT_FALSE(is_readable(link.wake_fd())) << "it is awake";
  EXPECT_TRUE(b.qp->anything_arrived());
  b.qp->fall_asleep(ring::kUnnumbered);
  EXPECT_TRUE(is_readable(link.wake_fd())) << "what was there before counts";
  b.qp->wake_up();
  ASSERT_TRUE(b.received(1));
  EXPECT_FALSE(b.qp->anything_arrived());
  b.qp->fall_asleep(ring::kUnnumbered);
  EXPECT_FALSE(is_readable(link.wake_fd()));
  ASSERT_TRUE(a.send(2, b.qp->qpn(), 0, 8));
  EXPECT_TRUE(is_readable(link.wake_fd()));
  b.qp->wake_up();
  EXPECT_FALSE(is_readable(link.wake_fd()));
}

TEST(Ud, an_idle_one_costs_no_system_call_in_every_poll) {
  UdSide a;
  int polls = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (a.qp->look() == link::Pollable::Look::poll) ++polls;
  }
  EXPECT_LT(polls, 2'000);
  ASSERT_TRUE(a.send(1, 0x123400, 0, 8));
  EXPECT_EQ(a.qp->look(), link::Pollable::Look::poll) << "an answer may come";
}

TEST(Ud, its_number_is_the_port_that_it_has_on_every_address) {
  Address six;
  six.ip[15] = 1;
  std::vector<Address> ips = {kLoopback, Address::v4(0x7f000002, 0), Address::v4(0xc6336401, 0)};
  const bool has_six = link::udp::interface_of(six).index != 0;
  if (has_six) ips.push_back(six);
  UdSide a({.ips = ips}), b({.ips = ips});
  EXPECT_EQ(index_of(a.qp->qpn()), 0);
  EXPECT_NE(a.qp->qpn(), b.qp->qpn());
  for (size_t i = 0; i < ips.size(); ++i) {
    if (i == 2) continue;  // no address of this host: left out
    SCOPED_TRACE(ips[i].text());
    ASSERT_TRUE(b.post_recv(i, 0));
    a.route = {ips[i], ips[i]};
    ASSERT_TRUE(a.send(i, b.qp->qpn(), 0, 8));
    ASSERT_TRUE(b.received(1));
    UdSide::take(b.recv_cq);
    EXPECT_EQ(std::memcmp(b.memory.data() + 8, ips[i].ip.data(), 16), 0);
    EXPECT_EQ(std::memcmp(b.memory.data() + 24, ips[i].ip.data(), 16), 0);
  }
}

TEST(Ud, many_messages_between_two_that_poll_all_arrive) {
  UdSide a, b;
  constexpr uint64_t kMessages = 20'000;
  uint64_t got = 0, sent = 0, acked = 0;
  for (uint64_t i = 0; i < 64; ++i) ASSERT_TRUE(b.post_recv(i, i * 8192));
  const uint64_t end = now_ns() + 60 * kSecondNs;
  while (got < kMessages && now_ns() < end) {
    if (sent < kMessages && sent - got < 32 && a.send(sent, b.qp->qpn(), 0, 64)) ++sent;
    b.qp->poll(++b.polls);
    while (!a.send_cq.empty()) {
      EXPECT_EQ(UdSide::take(a.send_cq).status, WcStatus::success);
      ++acked;
    }
    while (!b.recv_cq.empty()) {
      const Wc wc = UdSide::take(b.recv_cq);
      ASSERT_TRUE(b.post_recv(wc.id, wc.id * 8192));
      ++got;
    }
  }
  EXPECT_EQ(got, kMessages);
  EXPECT_EQ(acked, kMessages);
}

}  // namespace
}  // namespace aperture::ib::test
