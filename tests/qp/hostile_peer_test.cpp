// A peer that writes nonsense into its half of the lane: the connection is given up, exactly that
// one, with nothing written outside and every operation of ours ended once. (hostile-inputs 24, 25,
// 27, 38.)
#include <atomic>
#include <thread>

#include "qp/pair.hpp"

namespace aperture::qp::test {
namespace {

using protect::Rights;
using wire::Head;
using wire::Op;

// Side a has a queue pair; at the other end is only the bare lane.
class HostilePeer : public testing::TestWithParam<LinkKind> {
 protected:
  HostilePeer() : pair_(GetParam()), memory_(100000, 7) {
    region_ = pair_.region(a(), memory_, Rights::remote_read | Rights::remote_write);
    a().qp->attach(std::move(pair_.lane_a));
  }
  ~HostilePeer() override {
    EXPECT_TRUE(memory_.canaries_intact());
    a().qp->finish(Errc::protocol);
    EXPECT_EQ(a().port.wqes.out(), 0u);
    EXPECT_TRUE(a().sink.all_done());
  }
  Side& a() { return *pair_.a; }
  link::Lane& peer() { return *pair_.lane_b; }

  template <typename Fields>
  void put(ring::ChannelTx& tx, const Head& head, const Fields& fields) {
    std::memcpy(tx.cells.body(), &head, sizeof head);
    wire::store_fields(tx.cells.body(), fields);
    tx.cells.publish(wire::cells_of(static_cast<Op>(head.op), head.flags, head.len));
  }
  void put(ring::ChannelTx& tx, const Head& head) {
    std::memcpy(tx.cells.body(), &head, sizeof head);
    const uint32_t n = wire::cells_of(static_cast<Op>(head.op), head.flags, head.len);
    tx.cells.publish(n == 0 ? 1 : n);
  }
  void request(Op op, uint16_t len = 0, uint64_t word = 0) {
    put(peer().request_tx, Head::make(op, 0, len, word));
  }
  void response(Op op, uint16_t len = 0, uint64_t word = 0) {
    put(peer().response_tx, Head::make(op, 0, len, word));
  }
  // An operation of ours that waits for an answer; returns its position in the ring.
  uint64_t post_read(void* to, uint64_t len) {
    const uint64_t pos = a().qp->lane()->request_tx.cells.pos();
    const iovec iov{to, len};
    const RemoteRange range{0x1000, len, 1};
    EXPECT_TRUE(a().qp->rma(WqeKind::read, rma_of(iov, range, 1)));
    return pos;
  }
  void post_offer(const std::vector<std::byte>& data) {
    const iovec iov{const_cast<std::byte*>(data.data()), data.size()};
    EXPECT_TRUE(a().qp->send(send_of(iov, 1)));
  }
  // Id of the message offered last, as it lies in the ring.
  uint64_t offer_id(uint64_t pos = 0) {
    const auto f = wire::load_fields<wire::SendOfferFields>(
        (peer().request_rx.cells.advance(static_cast<uint32_t>(pos)),
         peer().request_rx.cells.body()));
    return f.id;
  }
  void poll(int n = 20) {
    for (int i = 0; i < n; ++i) a().poll();
  }
  void expect_broken() {
    poll();
    EXPECT_TRUE(a().qp->broken());
    EXPECT_TRUE(a().qp->needs_wind_up());
    EXPECT_TRUE(memory_.all(7));
  }
  void expect_alive() {
    poll();
    EXPECT_FALSE(a().qp->broken());
    EXPECT_FALSE(a().qp->needs_wind_up());
  }

  Pair pair_;
  Guarded memory_;
  protect::RegionHandle region_;
};

INSTANTIATE_TEST_SUITE_P(links, HostilePeer,
                         testing::Values(LinkKind::loopback, LinkKind::shm, LinkKind::direct),
                         [](const auto& link) { return name_of(link.param); });

TEST_P(HostilePeer, unknown_requests) {
  request(static_cast<Op>(GetParam() == LinkKind::shm ? 0 : 200));
  expect_broken();
}
TEST_P(HostilePeer, response_among_the_requests) {
  request(Op::finished);
  expect_broken();
}
TEST_P(HostilePeer, request_among_the_responses) {
  response(Op::send, 8);
  expect_broken();
}
TEST_P(HostilePeer, unknown_response) {
  response(static_cast<Op>(99));
  expect_broken();
}
TEST_P(HostilePeer, inline_payload_above_the_limit) {
  request(Op::send, 257);
  expect_broken();
}
TEST_P(HostilePeer, inline_payload_at_the_limit) {
  request(Op::send, 256);
  expect_alive();
  EXPECT_EQ(a().sink.messages.size(), 1u);
}

TEST_P(HostilePeer, hostile_38_payload_outside_the_byte_ring) {
  const uint64_t size = peer().request_tx.bytes.size();
  for (const auto& [pos, len] : {std::pair<uint64_t, uint64_t>{size - 64, 65},
                                 {~uint64_t{0}, 2},
                                 {0, 16 * 1024 + 1},
                                 {0, ~uint64_t{0}}}) {
    Pair pair(GetParam());
    pair.a->qp->attach(std::move(pair.lane_a));
    put(pair.lane_b->request_tx, Head::make(Op::send_bytes, 0, 0, 0),
        wire::SendBytesFields{pos, len});
    for (int i = 0; i < 10; ++i) pair.a->poll();
    EXPECT_TRUE(pair.a->qp->broken()) << pos << " " << len;
  }
}

TEST_P(HostilePeer, write_piece_outside_its_operation) {
  const wire::WriteBytesFields bad[] = {
      {region_.key, 100, 101, 0, 0},                 // begins behind the end
      {region_.key, 100, 90, 0, 11},                 // ends behind it
      {region_.key, 100, ~uint64_t{0}, 0, 2},        // wraps
      {region_.key, 1000000, 0, 0, 256 * 1024 + 1},  // longer than a chunk
      {region_.key, 100, 0, 512 * 1024 - 10, 20},    // out of the byte ring
  };
  for (const auto& f : bad) {
    Pair pair(GetParam());
    pair.a->qp->attach(std::move(pair.lane_a));
    put(pair.lane_b->request_tx, Head::make(Op::write_bytes, wire::kFirst, 0, memory_.address()),
        f);
    for (int i = 0; i < 10; ++i) pair.a->poll();
    EXPECT_TRUE(pair.a->qp->broken());
  }
  EXPECT_TRUE(memory_.all(7));
}

TEST_P(HostilePeer, write_piece_of_an_operation_that_leaves_the_region_is_refused) {
  put(peer().request_tx, Head::make(Op::write_bytes, wire::kFirst, 0, memory_.address()),
      wire::WriteBytesFields{region_.key, memory_.size() + 1, 0, 0, 64});
  put(peer().request_tx, Head::make(Op::write_bytes, wire::kFirst, 0, ~uint64_t{0} - 50),
      wire::WriteBytesFields{region_.key, 100, 60, 0, 40});  // address + offset wraps
  expect_alive();
  EXPECT_TRUE(memory_.all(7));
  ASSERT_TRUE(peer().response_rx.cells.ready());
  const Head nak = wire::load_head(peer().response_rx.cells.body());
  EXPECT_EQ(nak.op, uint8_t(Op::nak));
  EXPECT_EQ(nak.len, uint16_t(protect::Denial::out_of_range));
}

TEST_P(HostilePeer, message_above_the_limit_is_not_taken) {
  put(peer().request_tx, Head::make(Op::send_offer, 0, 0, 0),
      wire::SendOfferFields{kMaxMessageBytes + 1, 0, 1, wire::kNoClaim});
  expect_broken();
}

TEST_P(HostilePeer, payload_that_nobody_granted) {
  put(peer().response_tx, Head::make(Op::data, 0, 0, 0), wire::DataFields{0, 0, 8});
  expect_broken();
}

TEST_P(HostilePeer, more_payload_than_granted) {
  a().sink.at_most = 100;
  put(peer().request_tx, Head::make(Op::send_offer, 0, 0, 0),
      wire::SendOfferFields{1000, 0, 77, wire::kNoClaim});
  expect_alive();
  ASSERT_TRUE(peer().response_rx.cells.ready());
  const auto grant = wire::load_fields<wire::GrantFields>(peer().response_rx.cells.body());
  EXPECT_EQ(grant.len, 100u);
  put(peer().response_tx, Head::make(Op::data, 0, 0, grant.receive_id), wire::DataFields{0, 0, 50});
  expect_alive();
  put(peer().response_tx, Head::make(Op::data, 0, 0, grant.receive_id),
      wire::DataFields{50, 64, 51});
  expect_broken();
}

TEST_P(HostilePeer, payload_before_and_behind_the_granted_range) {
  for (const auto& f : {wire::DataFields{101, 0, 0}, wire::DataFields{~uint64_t{0}, 0, 2},
                        wire::DataFields{99, 0, 2}, wire::DataFields{0, 1u << 20, 200}}) {
    Pair pair(GetParam());
    pair.a->qp->attach(std::move(pair.lane_a));
    pair.a->sink.at_most = 100;
    put(pair.lane_b->request_tx, Head::make(Op::send_offer, 0, 0, 0),
        wire::SendOfferFields{1000, 0, 77, wire::kNoClaim});
    for (int i = 0; i < 10; ++i) pair.a->poll();
    const auto grant = wire::load_fields<wire::GrantFields>(pair.lane_b->response_rx.cells.body());
    put(pair.lane_b->response_tx, Head::make(Op::data, 0, 0, grant.receive_id), f);
    for (int i = 0; i < 10; ++i) pair.a->poll();
    EXPECT_TRUE(pair.a->qp->broken());
  }
}

TEST_P(HostilePeer, payload_for_an_earlier_life_of_a_receive) {
  a().sink.at_most = 64;
  for (int round = 0; round < 2; ++round) {
    put(peer().request_tx, Head::make(Op::send_offer, 0, 0, 0),
        wire::SendOfferFields{1000, 0, 77, wire::kNoClaim});
    poll();
    const auto grant = wire::load_fields<wire::GrantFields>(peer().response_rx.cells.body());
    put(peer().response_tx, Head::make(Op::data, 0, 0, round == 0 ? grant.receive_id : 0x100000000),
        wire::DataFields{0, 0, 64});
    poll();
    peer().response_rx.cells.advance(1);
  }
  expect_broken();
}

TEST_P(HostilePeer, grant_and_end_of_nothing_that_was_offered) {
  for (const Op op : {Op::grant, Op::finished}) {
    for (const uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{0x80000000}, ~uint64_t{0}}) {
      Pair pair(GetParam());
      pair.a->qp->attach(std::move(pair.lane_a));
      put(pair.lane_b->response_tx, Head::make(op, 0, 0, id), wire::GrantFields{1, 8});
      for (int i = 0; i < 10; ++i) pair.a->poll();
      EXPECT_TRUE(pair.a->qp->broken());
    }
  }
}

TEST_P(HostilePeer, grant_of_more_than_was_offered) {
  const auto data = pattern(100000, 1);
  post_offer(data);
  put(peer().response_tx, Head::make(Op::grant, 0, 0, offer_id()), wire::GrantFields{1, 100001});
  expect_broken();
}

TEST_P(HostilePeer, grant_twice) {
  const auto data = pattern(4000000, 1);
  post_offer(data);
  for (int i = 0; i < 2; ++i) {
    put(peer().response_tx, Head::make(Op::grant, 0, 0, offer_id()),
        wire::GrantFields{1, data.size()});
  }
  expect_broken();
}

TEST_P(HostilePeer, early_end_of_an_offer_completes_it_once) {
  const auto data = pattern(4000000, 1);
  post_offer(data);
  const uint64_t id = offer_id();
  put(peer().response_tx, Head::make(Op::grant, 0, 0, id), wire::GrantFields{1, data.size()});
  poll();  // half of it lies in the ring
  response(Op::finished, 0, id);
  expect_alive();
  EXPECT_EQ(a().tx_cq.size(), 1u);
  response(Op::finished, 0, id);
  expect_broken();
}

TEST_P(HostilePeer, refusal_of_nothing) {
  response(Op::nak, 1, 0);
  expect_broken();
}

TEST_P(HostilePeer, refusal_with_an_unknown_reason) {
  Guarded local(100);
  const uint64_t pos = post_read(local.data(), 100);
  response(Op::nak, 0xffff, pos);
  peer().request_rx.cells.advance(1);
  peer().request_rx.publish_consumed();
  expect_alive();
  ASSERT_TRUE(a().tx_cq.error_first());
  EXPECT_EQ(a().tx_cq.pop_error().err, Errc::access_denied);
}

TEST_P(HostilePeer, result_that_nobody_asked_for) {
  response(Op::read_inline, 8, 5);
  expect_broken();
}

TEST_P(HostilePeer, result_longer_than_asked) {
  Guarded local(100);
  response(Op::read_inline, 101, post_read(local.data(), 100));
  expect_broken();
  EXPECT_TRUE(local.canaries_intact());
}

TEST_P(HostilePeer, results_repeated_and_out_of_order) {
  Guarded local(100);
  const uint64_t pos = post_read(local.data(), 100);
  put(peer().response_tx, Head::make(Op::read_data, 0, 0, pos), wire::DataFields{0, 0, 60});
  expect_alive();
  put(peer().response_tx, Head::make(Op::read_data, 0, 0, pos), wire::DataFields{0, 0, 60});
  expect_broken();
  EXPECT_TRUE(local.canaries_intact());
}

TEST_P(HostilePeer, result_beyond_its_range) {
  Guarded local(100);
  const uint64_t pos = post_read(local.data(), 100);
  put(peer().response_tx, Head::make(Op::read_data, 0, 0, pos),
      wire::DataFields{0, 0, ~uint64_t{0}});
  expect_broken();
  EXPECT_TRUE(local.canaries_intact());
}

TEST_P(HostilePeer, acknowledgement_without_the_data) {
  Guarded local(100);
  post_read(local.data(), 100);
  peer().request_rx.cells.advance(1);
  peer().request_rx.publish_consumed();
  expect_alive();
  ASSERT_TRUE(a().tx_cq.error_first());
  EXPECT_EQ(a().tx_cq.pop_error().err, Errc::protocol);
}

TEST_P(HostilePeer, hostile_38_words_that_jump_are_ignored) {
  Guarded local(100);
  post_read(local.data(), 100);
  ring::ChannelWords& words = peer().request_rx.words();
  for (const uint64_t nonsense : {uint64_t{2}, uint64_t{1} << 40, ~uint64_t{0}}) {
    words.consumed.store(nonsense);
    words.bytes_consumed.store(nonsense);
    words.executing.store(nonsense);
    words.state.store(static_cast<uint32_t>(nonsense));
    words.polls.store(nonsense);
    poll();
    EXPECT_TRUE(a().tx_cq.empty());
  }
  const iovec iov{local.data(), 100};
  SendWr wr = send_of(iov, 1);
  wr.completion = false;
  for (int i = 0; i < 1000; ++i) (void)a().qp->send(wr);  // as many as there is room for
  words.consumed.store(1);
  expect_alive();
  EXPECT_EQ(a().tx_cq.size(), 1u);
}

// What is checked is a copy: key, address and length of a request change between good and bad all
// the time that it is looked at, and either it is refused or it lands where it may.
TEST_P(HostilePeer, hostile_38_fields_that_change_while_they_are_looked_at) {
  std::atomic<std::byte*> place{nullptr};
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> flips{0};
  std::thread flipping([&] {
    for (uint64_t i = 0; !stop; ++i) {
      std::byte* body = place;
      if (body == nullptr) continue;
      const uint64_t addr = i % 3 == 0   ? memory_.address()
                            : i % 3 == 1 ? memory_.address() - 8
                                         : memory_.address() + memory_.size() - 1;
      const Head head =
          Head::make(Op::write, wire::kFirst | wire::kLast, i % 2 == 0 ? 8 : 16, addr);
      const uint64_t key = i % 5 == 0 ? region_.key ^ 1 : region_.key;
      std::byte bytes[sizeof head + sizeof key];
      std::memcpy(bytes, &head, sizeof head);
      std::memcpy(bytes + sizeof head, &key, sizeof key);
      for (size_t at = 0; at < sizeof bytes; ++at) {
        // relaxed: a wild writer
        std::atomic_ref(body[at]).store(bytes[at], std::memory_order_relaxed);
      }
      ++flips;
    }
  });
  constexpr int kRounds = 1000;
  int refused = 0;
  const std::vector<std::byte> payload(16, std::byte{7});
  for (int round = 0; round < kRounds; ++round) {
    std::byte* body = peer().request_tx.cells.body();
    std::memcpy(body + wire::payload_offset(Op::write, 0), payload.data(), payload.size());
    put(peer().request_tx, Head::make(Op::write, wire::kFirst | wire::kLast, 8, memory_.address()),
        wire::WriteFields{region_.key});
    place = body;
    for (const uint64_t before = flips; flips < before + 2;) std::this_thread::yield();
    poll(2);
    place = nullptr;
    for (ring::CellReader& cells = peer().response_rx.cells; cells.ready(); cells.advance(1)) {
      ++refused;
    }
    peer().response_rx.publish_consumed();
  }
  stop = true;
  flipping.join();
  EXPECT_GT(refused, 0) << "some were seen when they were bad";
  EXPECT_LT(refused, kRounds) << "and some when they were good";
  expect_alive();
  EXPECT_TRUE(memory_.all(7));
  EXPECT_TRUE(memory_.canaries_intact());
}

TEST_P(HostilePeer, claims_of_every_kind_hold_up_only_their_lane) {
  put(peer().request_tx, Head::make(Op::write, wire::kFirst | wire::kLast, 0, memory_.address()),
      wire::WriteFields{region_.key});
  std::atomic<uint64_t>& claim = peer().request_tx.words().claim;
  for (const uint64_t word : {claim_word(0, ClaimState::ask), claim_word(0, ClaimState::taken),
                              claim_word(0, ClaimState::none)}) {
    claim.store(word);
    expect_alive();
    EXPECT_TRUE(a().qp->lane()->request_rx.cells.ready());
  }
  claim.store(~uint64_t{0});
  expect_alive();
  EXPECT_FALSE(a().qp->lane()->request_rx.cells.ready());
}

TEST_P(HostilePeer, notices_of_accesses_that_never_were_count_and_touch_nothing) {
  for (const uint16_t kind : {uint16_t{0}, uint16_t{1}, uint16_t{7}, uint16_t{65535}}) {
    put(peer().request_tx, Head::make(Op::notice, wire::kFirst | wire::kLast, kind, ~uint64_t{0}));
  }
  put(peer().request_tx, Head::make(Op::notice, 0xff, 0, 5));  // with immediate data
  expect_alive();
  EXPECT_EQ(a().remote_writes.value() + a().remote_reads.value(), 5u);
  EXPECT_EQ(a().rx_cq.size(), 1u);
  EXPECT_TRUE(memory_.all(7));
}

TEST_P(HostilePeer, wishes_for_notices_that_come_and_go) {
  Guarded local(5000);
  const iovec iov{local.data(), 5000};
  const RemoteRange range{memory_.address(), 5000, region_.key};
  for (uint32_t i = 0; i < 200; ++i) {
    peer().request_rx.want_notices(i % 3 == 0 ? ~uint32_t{0} : i);
    (void)a().qp->rma(i % 2 == 0 ? WqeKind::write : WqeKind::read, rma_of(iov, range, 1));
    poll(1);
  }
  expect_alive();
}

TEST_P(HostilePeer, claim_words_of_offers_that_jump) {
  if (GetParam() == LinkKind::loopback) GTEST_SKIP() << "loopback lanes have no claim words";
  const auto data = pattern(1000000, 1);
  post_offer(data);
  put(peer().response_tx, Head::make(Op::grant, 0, 0, offer_id()), wire::GrantFields{1, 1000000});
  for (int i = 0; i < 32; ++i) peer().claims_in[i].store(~uint64_t{0});
  expect_alive();
  for (int i = 0; i < 32; ++i) peer().claims_in[i].store(uint64_t{1} << 60);
  expect_alive();
}

// An offer that names an address which is not the sender's to give: nothing but its own receive is
// touched. (CMA reads, never writes, the peer; here the peer is this process, at an unmapped page.)
TEST_P(HostilePeer, offer_of_memory_that_is_not_there) {
  put(peer().request_tx, Head::make(Op::send_offer, 0, 0, 0),
      wire::SendOfferFields{100000, 4096, 77, 3});
  if (GetParam() == LinkKind::direct) {
    // the word still names another message: nothing is pulled
    peer().claims_out[3].store(uint64_t{76} << 32);
    expect_alive();
    EXPECT_EQ(peer().claims_out[3].load(), uint64_t{76} << 32);
  }
}

TEST_P(HostilePeer, offer_of_memory_that_is_not_there_and_may_be_pulled) {
  if (GetParam() != LinkKind::loopback) peer().claims_out[3].store(uint64_t{77} << 32);
  put(peer().request_tx, Head::make(Op::send_offer, 0, 0, 0),
      wire::SendOfferFields{100000, 4096, 77, 3});
  if (GetParam() == LinkKind::direct) {
    ASSERT_TRUE(pair_.until([&] { return a().qp->broken(); }, true, false));
    EXPECT_EQ(a().sink.messages[0].err, Errc::peer_lost);
  } else {
    expect_alive();
  }
}

}  // namespace
}  // namespace aperture::qp::test
