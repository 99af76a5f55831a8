// Connected endpoints in one process: connecting, private data, data transfer, rejection, shutdown,
// and every end at every state. fi_cm(3), fi_eq(3), fi_endpoint(3).
#include <gtest/gtest.h>

#include "doors/connected.hpp"

namespace aperture::doors {
namespace {

// Both ends in one domain, or each in its own, or in domains that leave locking to the application.
enum class Where { one_domain, two_domains, unlocked };

class Conn : public testing::TestWithParam<Where> {
 protected:
  Conn()
      : a(options()),
        own_b(GetParam() != Where::one_domain ? new Station(options())
                                              : new Station(options(), a)) {}
  static StationOptions options() {
    StationOptions o;
    if (GetParam() == Where::unlocked) o.threading = FI_THREAD_DOMAIN;
    return o;
  }
  Station a;
  std::unique_ptr<Station> own_b;
  Station& b = *own_b;
};
const char* text_of(Where where) {
  const char* const names[] = {"one_domain", "two_domains", "unlocked"};
  return names[static_cast<size_t>(where)];
}
INSTANTIATE_TEST_SUITE_P(Domains, Conn,
                         testing::Values(Where::one_domain, Where::two_domains, Where::unlocked),
                         [](const auto& param) { return std::string(text_of(param.param)); });

std::vector<uint8_t> bytes_of(size_t n, uint64_t seed) {
  std::vector<uint8_t> bytes(n);
  fill(bytes, seed);
  return bytes;
}

size_t data_limit(fid* object) {
  size_t limit = 0;
  size_t len = sizeof limit;
  DOOR(fi_getopt(object, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &limit, &len));
  return limit;
}

TEST_P(Conn, connects_and_tells_each_side_what_the_other_said) {
  Fid<fid_pep> pep = b.passive();
  const std::vector<uint8_t> asked = bytes_of(40, 1), answered = bytes_of(7, 2);
  Fid<fid_ep> at_a = ask_for_connection(a, pep.get(), asked);
  EXPECT_EQ(fi_getpeer(at_a.get(), nullptr, nullptr), -FI_EINVAL);
  const CmEvent request = b.expect(FI_CONNREQ, &pep->fid);
  EXPECT_EQ(request.data, asked);
  ASSERT_NE(request.info, nullptr);
  EXPECT_NE(request.info->handle, nullptr);
  EXPECT_EQ(request.info->ep_attr->type, FI_EP_MSG);
  EXPECT_STREQ(request.info->domain_attr->name, "aperture0");
  const auto* from = static_cast<const uint8_t*>(request.info->dest_addr);
  EXPECT_EQ(std::vector<uint8_t>(from, from + request.info->dest_addrlen), name_of(&at_a->fid));

  Fid<fid_ep> at_b = b.open(request.info.get());
  ASSERT_EQ(fi_accept(at_b.get(), answered.data(), answered.size()), 0);
  EXPECT_EQ(a.expect(FI_CONNECTED, &at_a->fid).data, answered);
  const CmEvent other = b.expect(FI_CONNECTED);
  EXPECT_EQ(other.fid, &at_b->fid);
  EXPECT_TRUE(other.data.empty()) << "the listening side gets none";

  uint8_t peer[64];
  size_t len = sizeof peer;
  ASSERT_EQ(fi_getpeer(at_a.get(), peer, &len), 0);
  EXPECT_EQ(std::vector<uint8_t>(peer, peer + len), name_of(&pep->fid));
  len = sizeof peer;
  ASSERT_EQ(fi_getpeer(at_b.get(), peer, &len), 0);
  EXPECT_EQ(std::vector<uint8_t>(peer, peer + len), name_of(&at_a->fid));
  EXPECT_EQ(name_of(&at_b->fid), name_of(&pep->fid));
  len = 3;
  EXPECT_EQ(fi_getpeer(at_b.get(), peer, &len), -FI_ETOOSMALL);
  EXPECT_EQ(len, sizeof(sockaddr_in));
}

TEST_P(Conn, private_data_is_taken_up_to_the_limit_and_cut_off_there) {
  Fid<fid_pep> pep = b.passive();
  const size_t limit = data_limit(&pep->fid);
  ASSERT_GE(limit, 56u);
  const std::vector<uint8_t> most = bytes_of(limit, 3), more = bytes_of(limit + 1, 3);
  Fid<fid_ep> at_a = a.open();
  EXPECT_EQ(data_limit(&at_a->fid), limit);
  const auto to = name_of(&pep->fid);
  EXPECT_EQ(fi_connect(at_a.get(), to.data(), nullptr, 1), -FI_EINVAL);
  ASSERT_EQ(fi_connect(at_a.get(), to.data(), more.data(), more.size()), 0);
  const CmEvent request = b.expect(FI_CONNREQ);
  EXPECT_EQ(request.data, most);
  Fid<fid_ep> at_b = b.open(request.info.get());
  EXPECT_EQ(fi_reject(pep.get(), request.info->handle, nullptr, 1), -FI_EINVAL);
  EXPECT_EQ(fi_accept(at_b.get(), nullptr, 1), -FI_EINVAL);
  ASSERT_EQ(fi_accept(at_b.get(), more.data(), more.size()), 0);
  EXPECT_EQ(a.expect(FI_CONNECTED, &at_a->fid).data, most);
}

TEST_P(Conn, an_event_buffer_without_room_for_the_data_gets_what_fits) {
  Fid<fid_pep> pep = b.passive();
  const std::vector<uint8_t> said = bytes_of(32, 4);
  Fid<fid_ep> at_a = ask_for_connection(a, pep.get(), said);
  uint32_t type = 0;
  alignas(8) uint8_t room[sizeof(fi_eq_cm_entry) + 8];
  ssize_t n = -FI_EAGAIN;
  pump_until([&] {
    return (n = fi_eq_read(b.eq(), &type, room, sizeof(fi_eq_cm_entry) - 1, 0)) != -FI_EAGAIN;
  });
  EXPECT_EQ(n, -FI_ETOOSMALL);
  n = fi_eq_read(b.eq(), &type, room, sizeof room, FI_PEEK);
  ASSERT_EQ(n, static_cast<ssize_t>(sizeof room));
  ASSERT_EQ(fi_eq_read(b.eq(), &type, room, sizeof room, 0), static_cast<ssize_t>(sizeof room));
  EXPECT_EQ(std::memcmp(room + sizeof(fi_eq_cm_entry), said.data(), 8), 0);
  fi_eq_cm_entry head;
  std::memcpy(static_cast<void*>(&head), room, sizeof head);
  Info info(head.info);
  EXPECT_EQ(fi_reject(pep.get(), info->handle, nullptr, 0), 0);
  a.expect_error(FI_ECONNREFUSED, &at_a->fid);
}

TEST_P(Conn, messages_of_every_size_go_both_ways) {
  Connected c(a, b);
  for (const size_t size : few_sizes()) {
    for (const bool there : {true, false}) {
      Guarded out(size, seed_of(size)), in(size);
      fill(out.span(), seed_of(size));
      Op received;
      fid_ep* from = there ? c.at_a.get() : c.at_b.get();
      fid_ep* to = there ? c.at_b.get() : c.at_a.get();
      Station& sender = there ? a : b;
      Station& receiver = there ? b : a;
      ASSERT_EQ(post(fi_recv, to, in.data(), size, nullptr, 0, &received), 0);
      ASSERT_EQ(sender.run_at(from, fi_send, out.data(), size, nullptr, 0), 0) << size;
      const Completion got = receiver.wait(&received);
      EXPECT_EQ(got.err, 0) << size;
      EXPECT_EQ(got.len, size);
      EXPECT_FALSE(first_difference(in.span(), seed_of(size))) << size;
      EXPECT_TRUE(in.intact());
    }
  }
}

TEST_P(Conn, tags_data_inject_counters_and_cancel_work_as_on_datagram_endpoints) {
  StationOptions counted{.counters = true};
  Station one(counted), two(counted);
  Connected c(one, two);
  uint64_t box[4] = {};
  Op r0, r1, r2, never, s0;
  ASSERT_EQ(fi_trecv(c.at_b.get(), &box[0], 8, nullptr, 0, 5, 0, &r0), 0);
  ASSERT_EQ(fi_trecv(c.at_b.get(), &box[1], 8, nullptr, 0, 6, 0, &r1), 0);
  ASSERT_EQ(fi_recv(c.at_b.get(), &box[2], 8, nullptr, 0, &r2), 0);
  ASSERT_EQ(fi_recv(c.at_b.get(), &box[3], 8, nullptr, 0, &never), 0);
  const uint64_t six = 66, five = 55, plain = 77;
  ASSERT_EQ(post(fi_tinject, c.at_a.get(), &six, 8, 0, 6), 0);
  ASSERT_EQ(post(fi_tsenddata, c.at_a.get(), &five, 8, nullptr, 0xfeed, 0, 5, &s0), 0);
  ASSERT_EQ(post(fi_inject, c.at_a.get(), &plain, 8, 0), 0);
  EXPECT_EQ(one.wait(&s0).err, 0);
  EXPECT_EQ(two.wait(&r1).tag, 6u);
  const Completion with_data = two.wait(&r0);
  EXPECT_EQ(with_data.data, 0xfeedu);
  EXPECT_NE(with_data.flags & FI_REMOTE_CQ_DATA, 0u);
  EXPECT_EQ(two.wait(&r2).len, 8u);
  EXPECT_EQ(box[0], 55u);
  EXPECT_EQ(box[1], 66u);
  EXPECT_EQ(box[2], 77u);
  EXPECT_TRUE(pump_until([&] { return fi_cntr_read(one.tx_cntr()) == 3; }));
  EXPECT_EQ(fi_cntr_read(two.rx_cntr()), 3u);
  EXPECT_EQ(fi_cancel(&c.at_b->fid, &never), 0);
  EXPECT_EQ(two.wait(&never).err, FI_ECANCELED);
  EXPECT_EQ(fi_cntr_readerr(two.rx_cntr()), 1u);
}

TEST_P(Conn, remote_access_reads_writes_and_is_refused_with_a_wrong_key) {
  Connected c(a, b);
  Guarded target(65536, 9);
  const Fid<fid_mr> mr =
      registered(b.domain(), target.data(), target.size(), FI_REMOTE_READ | FI_REMOTE_WRITE, 0);
  const uint64_t key = fi_mr_key(mr.get()), at = reinterpret_cast<uint64_t>(target.data());
  for (const size_t size : {size_t{8}, size_t{4096}, size_t{65536}}) {
    Guarded out(size), in(size);
    fill(out.span(), seed_of(size));
    fid_ep* ep = c.at_a.get();
    ASSERT_EQ(a.run_at(ep, fi_write, out.data(), size, nullptr, 0, at, key), 0);
    ASSERT_EQ(a.run_at(ep, fi_read, in.data(), size, nullptr, 0, at, key), 0);
    EXPECT_FALSE(first_difference(in.span(), seed_of(size)));
  }
  uint64_t word = 1;
  ASSERT_EQ(a.run_at(c.at_a.get(), fi_write, &word, 8, nullptr, 0, at, key + 1), FI_EACCES);
  ASSERT_EQ(a.run_at(c.at_a.get(), fi_write, &word, 8, nullptr, 0, at, key), 0)
      << "the connection lives on";
  EXPECT_TRUE(target.intact());
}

TEST_P(Conn, receives_posted_before_connect_and_accept_get_the_first_messages) {
  Fid<fid_pep> pep = b.passive();
  Fid<fid_ep> at_a = a.open();
  uint64_t box_a = 0, box_b = 0;
  Op ra, rb;
  EXPECT_LT(fi_recv(at_a.get(), &box_a, 8, nullptr, 0, &ra), 0) << "not enabled";
  ASSERT_EQ(fi_enable(at_a.get()), 0);
  ASSERT_EQ(fi_recv(at_a.get(), &box_a, 8, nullptr, 0, &ra), 0);
  uint64_t word = 1;
  EXPECT_EQ(fi_inject(at_a.get(), &word, 8, 0), -FI_ENOTCONN);
  ASSERT_EQ(fi_connect(at_a.get(), name_of(&pep->fid).data(), nullptr, 0), 0);
  EXPECT_EQ(fi_inject(at_a.get(), &word, 8, 0), -FI_ENOTCONN) << "not before FI_CONNECTED";
  const CmEvent request = b.expect(FI_CONNREQ);
  Fid<fid_ep> at_b = b.open(request.info.get());
  ASSERT_EQ(fi_enable(at_b.get()), 0);
  ASSERT_EQ(fi_recv(at_b.get(), &box_b, 8, nullptr, 0, &rb), 0);
  ASSERT_EQ(fi_accept(at_b.get(), nullptr, 0), 0);
  a.expect(FI_CONNECTED);
  b.expect(FI_CONNECTED);
  ASSERT_EQ(post(fi_inject, at_a.get(), &word, 8, 0), 0);
  word = 2;
  ASSERT_EQ(post(fi_inject, at_b.get(), &word, 8, 0), 0);
  EXPECT_EQ(b.wait(&rb).err, 0);
  EXPECT_EQ(a.wait(&ra).err, 0);
  EXPECT_EQ(box_b, 1u);
  EXPECT_EQ(box_a, 2u);
}

TEST_P(Conn, a_rejection_carries_its_data) {
  Fid<fid_pep> pep = b.passive();
  const std::vector<uint8_t> no = bytes_of(19, 6);
  for (const bool with_data : {true, false}) {
    Fid<fid_ep> at_a = a.open();
    uint64_t box = 0;
    Op early;
    ASSERT_EQ(fi_enable(at_a.get()), 0);
    ASSERT_EQ(fi_recv(at_a.get(), &box, 8, nullptr, 0, &early), 0);
    ASSERT_EQ(fi_connect(at_a.get(), name_of(&pep->fid).data(), nullptr, 0), 0);
    const CmEvent request = b.expect(FI_CONNREQ);
    ASSERT_EQ(fi_reject(pep.get(), request.info->handle, no.data(), with_data ? no.size() : 0), 0);
    const CmEvent error = a.expect_error(FI_ECONNREFUSED, &at_a->fid);
    EXPECT_EQ(error.data, with_data ? no : std::vector<uint8_t>());
    EXPECT_EQ(a.wait(&early).err, FI_ECONNREFUSED) << "a receive ends with the attempt";
    EXPECT_EQ(fi_inject(at_a.get(), &box, 8, 0), -FI_ESHUTDOWN);
    EXPECT_EQ(fi_connect(at_a.get(), name_of(&pep->fid).data(), nullptr, 0), -FI_EOPBADSTATE)
        << "once in its lifetime";
    EXPECT_EQ(fi_reject(pep.get(), request.info->handle, nullptr, 0), -FI_EINVAL) << "answered";
    EXPECT_TRUE(a.no_event());
  }
}

TEST_P(Conn, where_no_passive_endpoint_listens_the_connect_is_refused) {
  std::vector<uint8_t> gone;
  {
    Fid<fid_pep> pep = b.passive();
    gone = name_of(&pep->fid);
  }
  Fid<fid_ep> at_a = a.open();
  ASSERT_EQ(fi_connect(at_a.get(), gone.data(), nullptr, 0), 0);
  EXPECT_TRUE(a.expect_error(FI_ECONNREFUSED, &at_a->fid).data.empty());

  Node datagram;  // another kind of endpoint
  Fid<fid_ep> second = a.open();
  ASSERT_EQ(fi_connect(second.get(), datagram.name().data(), nullptr, 0), 0);
  a.expect_error(FI_ECONNREFUSED, &second->fid);
  Fid<fid_pep> pep = b.passive();
  Op op;
  ASSERT_EQ(fi_send(datagram.ep(), "x", 1, nullptr, datagram.insert(name_of(&pep->fid)), &op), 0);
  EXPECT_EQ(datagram.wait(&op).err, FI_ECONNREFUSED);
  EXPECT_TRUE(b.no_event());

  Fid<fid_ep> third = a.open();  // one that connects itself
  ASSERT_EQ(fi_enable(third.get()), 0);
  ASSERT_EQ(fi_connect(third.get(), name_of(&third->fid).data(), nullptr, 0), 0);
  a.expect_error(FI_ECONNREFUSED, &third->fid);
}

// Both have one queue, and whoever counts messages there meets the error only after them.
TEST_P(Conn, what_came_over_another_connection_is_told_before_the_end_of_this_one) {
  Connected c(a, b), other(a, b);
  uint64_t box[2] = {};
  Op gone, came;
  ASSERT_EQ(fi_recv(c.at_b.get(), &box[0], 8, nullptr, 0, &gone), 0);
  ASSERT_EQ(fi_recv(other.at_b.get(), &box[1], 8, nullptr, 0, &came), 0);
  const uint64_t word = 7;
  ASSERT_EQ(post(fi_inject, other.at_a.get(), &word, 8, 0), 0);
  ASSERT_EQ(fi_shutdown(c.at_a.get(), 0), 0);
  usleep(50'000);  // nobody polls
  std::vector<const void*> order;
  EXPECT_TRUE(pump_until([&] {
    for (; !b.done().empty(); b.done().pop_front()) {
      const void* context = b.done().front().context;
      if (context == &gone || context == &came) order.push_back(context);
    }
    return order.size() == 2;
  }));
  EXPECT_EQ(order, (std::vector<const void*>{&came, &gone}));
  EXPECT_EQ(box[1], 7u);
}

TEST_P(Conn, shutdown_ends_both_sides_once) {
  Connected c(a, b);
  uint64_t box[2] = {};
  Op ra, rb, s;
  std::vector<uint8_t> large(4 * kMiB);
  ASSERT_EQ(fi_recv(c.at_a.get(), &box[0], 8, nullptr, 0, &ra), 0);
  ASSERT_EQ(fi_trecv(c.at_b.get(), &box[1], 8, nullptr, 0, 1, 0, &rb), 0);
  ASSERT_EQ(post(fi_send, c.at_a.get(), large.data(), large.size(), nullptr, 0, &s), 0);
  EXPECT_EQ(fi_shutdown(c.at_a.get(), 1), -FI_EBADFLAGS);
  ASSERT_EQ(fi_shutdown(c.at_a.get(), 0), 0);
  // "all canceled completions will be written before fi_shutdown returns"
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_read(a.cq(), &entry, 1), -FI_EAVAIL);
  EXPECT_EQ(a.wait(&ra).err, FI_ECANCELED);
  EXPECT_EQ(a.wait(&s).err, FI_ECANCELED);
  EXPECT_EQ(fi_inject(c.at_a.get(), box, 8, 0), -FI_ESHUTDOWN);
  EXPECT_EQ(fi_recv(c.at_a.get(), box, 8, nullptr, 0, &ra), -FI_ESHUTDOWN);
  EXPECT_EQ(fi_shutdown(c.at_a.get(), 0), 0) << "over already";

  EXPECT_EQ(a.expect(FI_SHUTDOWN, &c.at_a->fid).code, static_cast<int64_t>(sizeof(fi_eq_cm_entry)))
      << "whoever waits for it before closing is told as well";
  const CmEvent down = b.expect(FI_SHUTDOWN, &c.at_b->fid);
  EXPECT_EQ(down.code, static_cast<int64_t>(sizeof(fi_eq_cm_entry)));
  EXPECT_EQ(b.wait(&rb).err, FI_ESHUTDOWN);
  EXPECT_EQ(fi_inject(c.at_b.get(), box, 8, 0), -FI_ESHUTDOWN);
  EXPECT_EQ(fi_shutdown(c.at_b.get(), 0), 0);
  EXPECT_TRUE(a.no_event());
  EXPECT_TRUE(b.no_event());
}

TEST_P(Conn, what_was_sent_before_the_end_arrives) {
  for (const bool by_shutdown : {true, false}) {
    Connected c(a, b);
    uint64_t word = 41;
    ASSERT_EQ(post(fi_inject, c.at_a.get(), &word, 8, 0), 0);
    if (by_shutdown) {
      ASSERT_EQ(fi_shutdown(c.at_a.get(), 0), 0);
    } else {
      c.at_a.reset();
    }
    b.expect(FI_SHUTDOWN, &c.at_b->fid);
    uint64_t box = 0;
    Op late;
    ASSERT_EQ(b.run_at(c.at_b.get(), fi_recv, &box, 8, nullptr, 0), 0);
    EXPECT_EQ(box, 41u);
    ASSERT_EQ(fi_recv(c.at_b.get(), &box, 8, nullptr, 0, &late), 0);
    EXPECT_EQ(b.wait(&late).err, FI_ESHUTDOWN);
  }
}

// Whoever posts a receive cannot know whether its peer has gone meanwhile; a send may fail at once.
TEST_P(Conn, a_receive_that_crosses_the_end_completes_as_one_posted_before_it) {
  Connected c(a, b);
  uint8_t box[8] = {};
  Op plain, tagged;
  ASSERT_EQ(fi_shutdown(c.at_a.get(), 0), 0);
  b.expect(FI_SHUTDOWN, &c.at_b->fid);
  ASSERT_TRUE(pump_until([&] { return fi_inject(c.at_b.get(), box, 8, 0) == -FI_ESHUTDOWN; }));
  ASSERT_EQ(fi_recv(c.at_b.get(), box, 8, nullptr, 0, &plain), 0);
  EXPECT_EQ(b.wait(&plain).err, FI_ESHUTDOWN);
  ASSERT_EQ(fi_trecv(c.at_b.get(), box, 8, nullptr, 0, 1, 0, &tagged), 0);
  EXPECT_EQ(b.wait(&tagged).err, FI_ESHUTDOWN);
  EXPECT_EQ(fi_recv(c.at_a.get(), box, 8, nullptr, 0, &plain), -FI_ESHUTDOWN)
      << "who has shut down knows it";
}

TEST(ConnMultiRecv, a_buffer_for_many_messages_that_crosses_the_end_is_released) {
  const StationOptions options{.caps = FI_MSG | FI_MULTI_RECV};
  Station a(options), b(options);
  Connected c(a, b);
  uint8_t box[128];
  Op many;
  const iovec iov{box, sizeof box};
  const fi_msg msg{.msg_iov = &iov, .iov_count = 1, .context = &many};
  ASSERT_EQ(fi_shutdown(c.at_a.get(), 0), 0);
  b.expect(FI_SHUTDOWN, &c.at_b->fid);
  ASSERT_TRUE(pump_until([&] { return fi_inject(c.at_b.get(), box, 8, 0) == -FI_ESHUTDOWN; }));
  ASSERT_EQ(fi_recvmsg(c.at_b.get(), &msg, FI_MULTI_RECV), 0);
  const Completion released = b.wait(&many);
  EXPECT_EQ(released.err, FI_ESHUTDOWN);
  EXPECT_EQ(released.flags & FI_MULTI_RECV, uint64_t{FI_MULTI_RECV});
}

TEST_P(Conn, who_closes_before_the_answer_has_withdrawn) {
  Fid<fid_pep> pep = b.passive();
  Fid<fid_ep> unread = ask_for_connection(a, pep.get());
  // it is there, and goes unread
  uint32_t type = 0;
  fi_eq_cm_entry there{};
  auto* const entry = &there;  // (clang captures no array without a length)
  ASSERT_TRUE(pump_until([&] {
    return fi_eq_read(b.eq(), &type, entry, sizeof *entry, FI_PEEK) ==
           static_cast<ssize_t>(sizeof *entry);
  }));
  unread.reset();
  EXPECT_TRUE(pump_until([&] {
    return fi_eq_read(b.eq(), &type, entry, sizeof *entry, FI_PEEK) == -FI_EAGAIN;
  })) << "nobody is to be bothered with it";

  Fid<fid_ep> read = ask_for_connection(a, pep.get());
  const CmEvent request = b.expect(FI_CONNREQ);
  Fid<fid_ep> at_b = b.open(request.info.get());
  read.reset();
  // the withdrawal is on its way: accepting is in vain, now or a moment later
  usleep(50000);
  EXPECT_EQ(fi_accept(at_b.get(), nullptr, 0), -FI_ECONNABORTED);
  EXPECT_EQ(fi_accept(at_b.get(), nullptr, 0), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_shutdown(at_b.get(), 0), 0);
  EXPECT_EQ(fi_close(&at_b.release()->fid), 0);
}

TEST_P(Conn, who_closes_right_after_the_accept_is_seen_to_go) {
  Fid<fid_pep> pep = b.passive();
  Fid<fid_ep> at_a = ask_for_connection(a, pep.get());
  const Fid<fid_ep> at_b = accept_next(b);
  at_a.reset();
  b.expect(FI_CONNECTED, &at_b->fid);
  b.expect(FI_SHUTDOWN, &at_b->fid);
}

TEST_P(Conn, who_leaves_without_looking_is_seen_to_go) {
  Fid<fid_pep> pep = b.passive();
  Fid<fid_ep> at_b;
  {
    Station hasty(options());
    Fid<fid_ep> ep = ask_for_connection(hasty, pep.get());
    at_b = accept_next(b);
    uint32_t type = 0;
    fi_eq_cm_entry entry{};
    // waits for its event, and never progresses its domain
    EXPECT_GT(fi_eq_sread(hasty.eq(), &type, &entry, sizeof entry, 20000, 0), 0);
  }
  b.expect(FI_CONNECTED, &at_b->fid);
  b.expect(FI_SHUTDOWN, &at_b->fid);
}

Fid<fid_ep> alias_of(fid_ep* ep) {
  fid_ep* alias = nullptr;
  EXPECT_EQ(fi_ep_alias(ep, &alias, FI_TRANSMIT), 0);
  return Fid<fid_ep>(alias);
}

TEST_P(Conn, events_name_an_alias_once_the_endpoint_itself_is_closed) {
  Connected c(a, b);
  const Fid<fid_ep> alias = alias_of(c.at_b.get());
  c.at_b.reset();
  EXPECT_EQ(fi_inject(alias.get(), "x", 1, 0), 0) << "it lives on";
  c.at_a.reset();
  b.expect(FI_SHUTDOWN, &alias->fid);
}

TEST_P(Conn, events_that_are_unread_name_an_alias_once_the_endpoint_itself_is_closed) {
  Connected c(a, b);
  const Fid<fid_ep> alias = alias_of(c.at_b.get());
  c.at_a.reset();
  pump_for(200);  // it is in the queue
  c.at_b.reset();
  b.expect(FI_SHUTDOWN, &alias->fid);
}

// The memory of a handle that was rejected may be the next one's.
TEST_P(Conn, an_endpoint_for_a_rejected_request_leaves_the_next_one_alone) {
  Fid<fid_pep> pep = b.passive();
  Fid<fid_ep> at_a = ask_for_connection(a, pep.get());
  CmEvent request = b.expect(FI_CONNREQ);
  const fid* const rejected = request.info->handle;
  Fid<fid_ep> first = b.open(request.info.get());
  ASSERT_EQ(fi_reject(pep.get(), request.info->handle, nullptr, 0), 0);
  a.expect_error(FI_ECONNREFUSED, &at_a->fid);
  std::vector<Fid<fid_ep>> asking;
  std::vector<CmEvent> requests;
  do {
    asking.push_back(ask_for_connection(a, pep.get()));
    requests.push_back(b.expect(FI_CONNREQ));
  } while (requests.back().info->handle != rejected && requests.size() < 64);
  Fid<fid_ep> second = b.open(requests.back().info.get());
  first.reset();
  EXPECT_EQ(code_of(fi_endpoint, b.domain(), requests.back().info.get()), -FI_EINVAL) << "taken";
  pep.reset();
  for (size_t i = 0; i + 1 < asking.size(); ++i) a.expect_error(FI_ECONNREFUSED);
  ASSERT_EQ(fi_accept(second.get(), nullptr, 0), 0);
  a.expect(FI_CONNECTED, &asking.back()->fid);
  b.expect(FI_CONNECTED, &second->fid);
}

TEST_P(Conn, closing_the_passive_endpoint_refuses_who_waits_but_not_who_is_served) {
  Fid<fid_pep> pep = b.passive();
  Fid<fid_ep> served = ask_for_connection(a, pep.get());
  const CmEvent first = b.expect(FI_CONNREQ);
  Fid<fid_ep> at_b = b.open(first.info.get());
  Fid<fid_ep> waiting = ask_for_connection(a, pep.get());
  const CmEvent second = b.expect(FI_CONNREQ);
  pep.reset();
  a.expect_error(FI_ECONNREFUSED, &waiting->fid);
  EXPECT_EQ(code_of(fi_endpoint, b.domain(), second.info.get()), -FI_EINVAL);
  ASSERT_EQ(fi_accept(at_b.get(), nullptr, 0), 0);
  a.expect(FI_CONNECTED);
  b.expect(FI_CONNECTED);
}

TEST_P(Conn, an_endpoint_for_a_request_that_is_closed_leaves_the_request) {
  Fid<fid_pep> pep = b.passive();
  Fid<fid_ep> at_a = ask_for_connection(a, pep.get());
  const CmEvent request = b.expect(FI_CONNREQ);
  Fid<fid_ep> first = b.open(request.info.get());
  EXPECT_EQ(code_of(fi_endpoint, b.domain(), request.info.get()), -FI_EINVAL) << "taken";
  ASSERT_EQ(fi_enable(first.get()), 0);
  first.reset();
  Fid<fid_ep> second = b.open(request.info.get());
  pep.reset();
  second.reset();  // nobody can answer it any more
  a.expect_error(FI_ECONNREFUSED, &at_a->fid);
}

TEST_P(Conn, an_active_endpoint_takes_the_address_of_a_passive_one) {
  Fid<fid_pep> reserved = a.passive(false);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  {
    Fid<fid_pep> probe = a.passive();
    std::memcpy(&at, name_of(&probe->fid).data(), sizeof at);
  }
  ASSERT_EQ(fi_setname(&reserved->fid, &at, sizeof at), 0);
  Info info(fi_dupinfo(a.info()));
  info->handle = &reserved->fid;
  Fid<fid_ep> at_a = a.open(info.get());
  EXPECT_EQ(fi_listen(reserved.get()), -FI_EOPBADSTATE) << "must no longer be used";
  EXPECT_EQ(code_of(fi_endpoint, a.domain(), info.get()), -FI_EOPBADSTATE);
  reserved.reset();
  Fid<fid_pep> pep = b.passive();
  ASSERT_EQ(fi_connect(at_a.get(), name_of(&pep->fid).data(), nullptr, 0), 0);
  const auto own = name_of(&at_a->fid);
  EXPECT_EQ(std::memcmp(own.data(), &at, 8), 0);
  const CmEvent request = b.expect(FI_CONNREQ);
  EXPECT_EQ(std::memcmp(request.info->dest_addr, &at, 8), 0);
}

TEST_P(Conn, a_full_backlog_makes_the_next_wait) {
  Fid<fid_pep> pep = b.passive(false);
  int backlog = 1;
  ASSERT_EQ(fi_control(&pep->fid, FI_BACKLOG, &backlog), 0);
  ASSERT_EQ(fi_listen(pep.get()), 0);
  Fid<fid_ep> first = ask_for_connection(a, pep.get());
  const CmEvent one = b.expect(FI_CONNREQ);
  Fid<fid_ep> second = ask_for_connection(a, pep.get());
  EXPECT_TRUE(b.no_event(100));
  ASSERT_EQ(fi_reject(pep.get(), one.info->handle, nullptr, 0), 0);
  a.expect_error(FI_ECONNREFUSED, &first->fid);
  const Fid<fid_ep> at_b = accept_next(b);
  a.expect(FI_CONNECTED);
  b.expect(FI_CONNECTED);
}

TEST(ConnSlow, an_answer_may_take_longer_than_any_handshake) {
  Station a, b;
  Fid<fid_pep> pep = b.passive();
  Fid<fid_ep> at_a = ask_for_connection(a, pep.get());
  const CmEvent request = b.expect(FI_CONNREQ);
  EXPECT_TRUE(a.no_event(6500)) << "handshakes time out after 5 s, applications do not";
  Fid<fid_ep> at_b = b.open(request.info.get());
  ASSERT_EQ(fi_accept(at_b.get(), nullptr, 0), 0);
  a.expect(FI_CONNECTED, &at_a->fid);
  b.expect(FI_CONNECTED);
}

TEST_P(Conn, many_connections_of_one_passive_endpoint_do_not_mix) {
  Fid<fid_pep> pep = b.passive();
  constexpr size_t kMany = 40;  // more than one segment of lanes
  std::vector<Fid<fid_ep>> here, there;
  for (uint8_t i = 0; i < kMany; ++i) here.push_back(ask_for_connection(a, pep.get(), {i}));
  std::vector<size_t> whose;
  for (size_t i = 0; i < kMany; ++i) {
    const CmEvent request = b.expect(FI_CONNREQ);
    ASSERT_EQ(request.data.size(), 1u);
    whose.push_back(request.data[0]);
    there.push_back(b.open(request.info.get()));
  }
  std::vector<uint64_t> boxes(kMany);
  std::vector<Op> ops(kMany);
  for (size_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(fi_enable(there[i].get()), 0);
    ASSERT_EQ(fi_recv(there[i].get(), &boxes[i], 8, nullptr, 0, &ops[i]), 0);
    ASSERT_EQ(fi_accept(there[i].get(), nullptr, 0), 0);
  }
  for (size_t i = 0; i < kMany; ++i) {
    a.expect(FI_CONNECTED);
    b.expect(FI_CONNECTED);
  }
  for (uint64_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(post(fi_inject, here[i].get(), &i, 8, 0), 0);
  }
  for (size_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(b.wait(&ops[i]).err, 0);
    EXPECT_EQ(boxes[i], whose[i]);
  }
}

}  // namespace
}  // namespace aperture::doors
