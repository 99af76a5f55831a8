// A peer that writes nonsense into its half of the lane: the connection is given up, exactly that
// one, with nothing written outside and every operation of ours ended once. (hostile-inputs 24, 25,
// 27, 38.)
#include "qp/attacked.hpp"

namespace aperture::qp::test {
namespace {

class HostilePeer : public Attacked {
 protected:
  HostilePeer() : Attacked(100000, Rights::remote_read | Rights::remote_write) {}
  // An operation of ours that waits for an answer; returns its position in the ring.
  uint64_t post_read(void* to, uint64_t len) {
    const uint64_t pos = a().qp->lane()->request_tx.cells.pos();
    EXPECT_TRUE(a().read({to, len}, {0x1000, len, 1}, 1));
    return pos;
  }
  void post_offer(const std::vector<std::byte>& data) { EXPECT_TRUE(a().send(iov_of(data), 1)); }
  // Id of the message offered first, as it lies in the ring.
  uint64_t offer_id() {
    return wire::load_fields<wire::SendOfferFields>(peer().request_rx.cells.body()).id.unchecked();
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
  // What the oldest answer refuses with.
  protect::Denial denied() {
    EXPECT_TRUE(peer().response_rx.cells.ready());
    wire::SoundHead nak;
    EXPECT_NE(wire::read_head(peer().response_rx.cells.body(), nak), 0u);
    EXPECT_EQ(nak.op(), Op::nak);
    return static_cast<protect::Denial>(nak.code().unchecked());
  }
  void offer(ring::ChannelTx& tx, uint64_t len) {
    put(tx, Head::make(Op::send_offer, 0, 0, 0), wire::SendOfferFields{len, 0, 77, wire::kNoClaim});
  }
  // The bytes of the pieces that have come, whose places are free again.
  uint64_t take_data() {
    ring::ChannelRx& rx = peer().response_rx;
    uint64_t taken = 0;
    for (; rx.cells.ready(); rx.cells.advance(1)) {
      const auto f = wire::load_fields<wire::DataFields>(rx.cells.body());
      taken += f.len.unchecked();
      rx.free_bytes_before(ring::ByteReader::after(f.byte_pos.unchecked(), f.len.unchecked()));
    }
    rx.publish_consumed();
    return taken;
  }
  static auto granted_by(link::Lane& lane) {
    return wire::load_fields<wire::GrantFields>(lane.response_rx.cells.body());
  }
};

INSTANTIATE_TEST_SUITE_P(links, HostilePeer, kEachLink, link_name);

using HostilePeerThatClaims = HostilePeer;  // no claim travels
INSTANTIATE_TEST_SUITE_P(links, HostilePeerThatClaims, link::test::kEachShared, link_name);

// loopback lanes have no claim words
using HostilePeerWithClaims = HostilePeer;
INSTANTIATE_TEST_SUITE_P(links, HostilePeerWithClaims,
                         testing::Values(LinkKind::shm, LinkKind::direct), link_name);

// who cannot pull is given no word
using HostilePuller = HostilePeer;
INSTANTIATE_TEST_SUITE_P(links, HostilePuller, testing::Values(LinkKind::direct), link_name);

TEST_P(HostilePeer, unknown_requests_end_the_connection) {
  request(static_cast<Op>(GetParam() == LinkKind::shm ? 0 : 200));
  expect_broken();
}
TEST_P(HostilePeer, a_response_among_the_requests_ends_the_connection) {
  request(Op::finished);
  expect_broken();
}
TEST_P(HostilePeer, a_request_among_the_responses_ends_the_connection) {
  response(Op::send, 8);
  expect_broken();
}
TEST_P(HostilePeer, an_unknown_response_ends_the_connection) {
  response(static_cast<Op>(99));
  expect_broken();
}
TEST_P(HostilePeer, inline_payload_above_the_limit_ends_the_connection) {
  request(Op::send, 257);
  expect_broken();
}
TEST_P(HostilePeer, inline_payload_at_the_limit_is_taken) {
  request(Op::send, 256);
  expect_alive();
  EXPECT_EQ(a().sink.messages.size(), 1u);
}

TEST_P(HostilePeer, a_message_of_a_group_to_an_endpoint_in_none_ends_the_connection) {
  put(peer().request_tx, Head::make(Op::send, wire::kTagged | wire::kImm | wire::kGroup, 0, 5));
  expect_broken();
  EXPECT_TRUE(a().sink.messages.empty());
}
TEST_P(HostilePeer, a_message_of_a_group_reaches_a_member) {
  a().port.takes_groups = true;
  put(peer().request_tx, Head::make(Op::send, wire::kTagged | wire::kImm | wire::kGroup, 0, 5));
  expect_alive();
  ASSERT_EQ(a().sink.messages.size(), 1u);
  EXPECT_EQ(a().sink.messages[0].beside, Beside::group_key);
}

TEST_P(HostilePeer, hostile_38_payload_outside_the_byte_ring) {
  const uint64_t size = peer().request_tx.bytes.size();
  for (const auto& [pos, len] : {std::pair<uint64_t, uint64_t>{size - 64, 65},
                                 {~uint64_t{0}, 2},
                                 {0, 16 * 1024 + 1},
                                 {0, ~uint64_t{0}}}) {
    SCOPED_TRACE(std::to_string(pos) + " " + std::to_string(len));
    const wire::SendBytesFields fields{pos, len};
    expect_breaks([&](link::Lane& lane) {
      put(lane.request_tx, Head::make(Op::send_bytes, 0, 0, 0), fields);
    });
  }
}

TEST_P(HostilePeer, payload_that_was_asked_to_be_offered_ends_the_connection_after_a_ring_full) {
  constexpr uint64_t kLen = 16 * 1024;
  const uint64_t ring_bytes = peer().request_tx.bytes.size();
  a().qp->set_pressure(true);
  for (uint64_t sent = 0; sent < ring_bytes; sent += kLen) {
    request(Op::send_bytes, wire::SendBytesFields{0, kLen});
    expect_alive();
  }
  EXPECT_EQ(a().sink.messages.size(), ring_bytes / kLen);
  request(Op::send_bytes, wire::SendBytesFields{0, kLen});
  expect_broken();
  EXPECT_EQ(a().sink.messages.size(), ring_bytes / kLen);
}

TEST_P(HostilePeer, payload_waits_while_the_peer_cannot_be_asked_to_offer_it) {
  ring::ChannelTx& responses = a().qp->lane()->response_tx;
  while (responses.room(1)) a().qp->set_pressure(false);  // it reads none of them
  a().qp->set_pressure(true);
  for (int i = 0; i < 3; ++i) {
    request(Op::send_bytes, wire::SendBytesFields{0, 5000});
    expect_alive();
    EXPECT_TRUE(a().sink.messages.empty());
  }
  ring::ChannelRx& rx = peer().response_rx;
  while (rx.cells.ready()) rx.cells.advance(1);
  rx.publish_consumed();
  expect_alive();
  EXPECT_EQ(a().sink.messages.size(), 3u);
}

// Pieces that all name one place of the ring count as others do.
TEST_P(HostilePeer, hostile_37_a_poll_takes_no_more_pieces_for_lying_at_one_place) {
  constexpr uint64_t kLen = 16 * 1024;
  for (int i = 0; i < 12; ++i) {
    request(Op::send_bytes, wire::SendBytesFields{0, kLen});
    request(Op::write_bytes, wire::WriteBytesFields{region_.key, kLen, 0, 0, kLen}, wire::kFirst,
            memory_.address());
  }
  for (int i = 0; i < 20; ++i) {
    const uint64_t before = a().qp->lane()->request_rx.cells.pos();
    poll(1);
    EXPECT_LE(a().qp->lane()->request_rx.cells.pos() - before, transport::kPollBytes / kLen) << i;
  }
  EXPECT_EQ(a().sink.messages.size(), 12u);
  EXPECT_FALSE(a().qp->broken());
}

TEST_P(HostilePeer, offers_wait_while_their_answers_are_not_taken) {
  ring::ChannelTx& responses = a().qp->lane()->response_tx;
  constexpr size_t kOffers = 1000;
  size_t made = 0;
  const auto make_offers = [&] {
    for (int idle = 0; made < kOffers && idle < 2; ++idle) {
      for (; made < kOffers && peer().request_tx.room(1); ++made, idle = -1) {
        offer(peer().request_tx, 0);
      }
      expect_alive();
    }
  };
  make_offers();
  EXPECT_LT(made, kOffers) << "they wait in the ring";
  EXPECT_LE(a().sink.messages.size(), 2 * responses.cells.capacity());
  for (int round = 0; round < 100 && a().sink.messages.size() < kOffers; ++round) {
    ring::ChannelRx& rx = peer().response_rx;
    while (rx.cells.ready()) rx.cells.advance(1);
    rx.publish_consumed();
    expect_alive();
    make_offers();
  }
  EXPECT_EQ(a().sink.messages.size(), kOffers);
  EXPECT_TRUE(a().sink.all_done());
}

// As many receives as there are early offers are posted at once.
TEST_P(HostilePeer, answers_that_find_no_room_are_given_in_order) {
  constexpr uint32_t kOffers = 700;
  a().sink.hold_offers = true;
  for (uint32_t id = 0; id < kOffers; ++id) {
    request(Op::send_offer, wire::SendOfferFields{id % 2, 0, id, wire::kNoClaim});
    poll(2);
  }
  ASSERT_EQ(a().sink.held.size(), kOffers);
  for (const Arrival& held : a().sink.held) a().sink.begin(*a().qp, held);
  uint32_t next = 0;
  for (int round = 0; round < 100 && next < kOffers; ++round) {
    expect_alive();
    ring::ChannelRx& rx = peer().response_rx;
    for (; rx.cells.ready(); rx.cells.advance(1), ++next) {
      wire::SoundHead head;
      ASSERT_EQ(wire::read_head(rx.cells.body(), head), 1u);
      EXPECT_EQ(head.op(), next % 2 == 0 ? Op::finished : Op::grant);
      EXPECT_EQ(head.word().unchecked(), next);
    }
    rx.publish_consumed();
  }
  EXPECT_EQ(next, kOffers);
}

TEST_P(HostilePeer, of_pressure_that_cannot_be_told_the_last_word_is) {
  ring::ChannelTx& responses = a().qp->lane()->response_tx;
  while (responses.room(1)) a().qp->set_pressure(false);
  for (int i = 0; i < 1001; ++i) a().qp->set_pressure(i % 2 == 0);
  std::vector<uint64_t> told;
  for (int round = 0; round < 30; ++round) {
    expect_alive();
    ring::ChannelRx& rx = peer().response_rx;
    for (; rx.cells.ready(); rx.cells.advance(1)) {
      wire::SoundHead head;
      ASSERT_EQ(wire::read_head(rx.cells.body(), head), 1u);
      EXPECT_EQ(head.op(), Op::pressure);
      told.push_back(head.word().unchecked());
    }
    rx.publish_consumed();
  }
  EXPECT_LE(told.size(), responses.cells.capacity() + 1);
  EXPECT_EQ(std::count(told.begin(), told.end(), 1), 1);
  EXPECT_EQ(told.back(), 1u);
}

TEST_P(HostilePeer, a_write_piece_outside_its_operation_ends_the_connection) {
  const wire::WriteBytesFields bad[] = {
      {region_.key, 100, 101, 0, 0},                 // begins behind the end
      {region_.key, 100, 90, 0, 11},                 // ends behind it
      {region_.key, 100, ~uint64_t{0}, 0, 2},        // wraps
      {region_.key, 1000000, 0, 0, 256 * 1024 + 1},  // longer than a chunk
      {region_.key, 100, 0, 512 * 1024 - 10, 20},    // out of the byte ring
  };
  for (const auto& f : bad) {
    expect_breaks([&](link::Lane& lane) {
      put(lane.request_tx, Head::make(Op::write_bytes, wire::kFirst, 0, memory_.address()), f);
    });
  }
  EXPECT_TRUE(memory_.all(7));
}

TEST_P(HostilePeer, write_piece_of_an_operation_that_leaves_the_region_is_refused) {
  request(Op::write_bytes, wire::WriteBytesFields{region_.key, memory_.size() + 1, 0, 0, 64},
          wire::kFirst, memory_.address());
  request(Op::write_bytes, wire::WriteBytesFields{region_.key, 100, 60, 0, 40}, wire::kFirst,
          ~uint64_t{0} - 50);  // address + offset wraps
  expect_alive();
  EXPECT_TRUE(memory_.all(7));
  EXPECT_EQ(denied(), protect::Denial::out_of_range);
}

TEST_P(HostilePeer, read_part_outside_its_operation) {
  const wire::ReadFields bad[] = {{region_.key, 100, 101, 0, 5},           // begins behind the end
                                  {region_.key, 100, 90, 11, 5},           // ends behind it
                                  {region_.key, 100, ~uint64_t{0}, 2, 5},  // wraps
                                  {region_.key, 100, 100, 1, 5},           // has nothing left
                                  {region_.key, 100, 1, ~uint64_t{0}, 5},  // wraps
                                  {region_.key, 50000, 40000, 10001, 5}};  // of a long one
  for (const auto& f : bad) {
    for (const uint8_t flags : {uint8_t{0}, uint8_t{wire::kFirst | wire::kLast}}) {
      expect_breaks([&](link::Lane& lane) {
        put(lane.request_tx, Head::make(Op::read, flags, 0, memory_.address()), f);
      });
    }
  }
}

TEST_P(HostilePeer, read_part_of_an_operation_that_leaves_the_region_is_refused) {
  request(Op::read, wire::ReadFields{region_.key, memory_.size() + 1, 0, 64, 5}, wire::kFirst,
          memory_.address());
  expect_alive();
  EXPECT_EQ(denied(), protect::Denial::out_of_range);
}

// Its first part has been answered from a region that is gone by the second.
TEST_P(HostilePeer, parts_of_a_read_are_of_one_life_of_their_region) {
  const wire::ReadFields first{region_.key, 50000, 0, 30000, 5},
      second{region_.key, 50000, 30000, 20000, 6};
  request(Op::read, first, wire::kFirst, memory_.address());
  expect_alive();
  while (peer().response_rx.cells.ready()) peer().response_rx.cells.advance(1);
  protect::RegionSpec spec =
      Pair::spec_of(a(), memory_, Rights::remote_read | Rights::remote_write);
  spec.requested_key = region_.key;
  pair_.close(region_);
  auto anew = pair_.keys->add(spec);
  ASSERT_TRUE(anew);
  request(Op::read, second, wire::kLast, memory_.address());
  expect_alive();
  EXPECT_EQ(denied(), protect::Denial::closed);
  region_ = *anew;
}

TEST_P(HostilePeer, message_above_the_limit_is_not_taken) {
  request(Op::send_offer, wire::SendOfferFields{kMaxVariableBytes + 1, 0, 1, wire::kNoClaim});
  expect_broken();
}

TEST_P(HostilePeer, payload_that_nobody_granted_ends_the_connection) {
  response(Op::data, wire::DataFields{0, 0, 8}, 0);
  expect_broken();
}

TEST_P(HostilePeer, more_payload_than_granted_ends_the_connection) {
  a().sink.at_most = 100;
  offer(peer().request_tx, 1000);
  expect_alive();
  ASSERT_TRUE(peer().response_rx.cells.ready());
  const auto grant = granted_by(peer());
  EXPECT_EQ(grant.len.unchecked(), 100u);
  response(Op::data, wire::DataFields{0, 0, 50}, grant.receive_id.unchecked());
  expect_alive();
  response(Op::data, wire::DataFields{50, 64, 51}, grant.receive_id.unchecked());
  expect_broken();
}

TEST_P(HostilePeer, payload_before_and_behind_the_granted_range) {
  for (const auto& f : {wire::DataFields{101, 0, 0}, wire::DataFields{~uint64_t{0}, 0, 2},
                        wire::DataFields{99, 0, 2}, wire::DataFields{0, 1u << 20, 200}}) {
    Pair pair(GetParam());
    pair.attach_a();
    pair.a->sink.at_most = 100;
    offer(pair.lane_b->request_tx, 1000);
    for (int i = 0; i < 10; ++i) pair.a->poll();
    put(pair.lane_b->response_tx,
        Head::make(Op::data, 0, 0, granted_by(*pair.lane_b).receive_id.unchecked()), f);
    for (int i = 0; i < 10; ++i) pair.a->poll();
    EXPECT_TRUE(pair.a->qp->broken());
  }
}

TEST_P(HostilePeer, payload_for_an_earlier_life_of_a_receive_ends_the_connection) {
  a().sink.at_most = 64;
  for (int round = 0; round < 2; ++round) {
    offer(peer().request_tx, 1000);
    poll();
    const uint64_t id = granted_by(peer()).receive_id.unchecked();
    response(Op::data, wire::DataFields{0, 0, 64}, round == 0 ? id : 0x100000000);
    poll();
    peer().response_rx.cells.advance(1);
  }
  expect_broken();
}

TEST_P(HostilePeer, grant_and_end_of_nothing_that_was_offered) {
  for (const Op op : {Op::grant, Op::finished}) {
    for (const uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{0x80000000}, ~uint64_t{0}}) {
      expect_breaks([&](link::Lane& lane) {
        put(lane.response_tx, Head::make(op, 0, 0, id), wire::GrantFields{1, 8});
      });
    }
  }
}

TEST_P(HostilePeer, grant_of_more_than_was_offered) {
  const auto data = pattern(100000, 1);
  post_offer(data);
  response(Op::grant, wire::GrantFields{1, 100001}, offer_id());
  expect_broken();
}

// The rest comes with the next polls.
TEST_P(HostilePeer, hostile_37_a_poll_pushes_no_more_than_others_take) {
  const auto data = pattern(1000000, 1);
  post_offer(data);
  response(Op::grant, wire::GrantFields{1, data.size()}, offer_id());
  link::Lane& lane = *a().qp->lane();
  const uint64_t turn = std::max(transport::kPollBytes, lane.run_bytes);
  uint64_t got = 0;
  for (int i = 0; i < 200 && got < data.size(); ++i) {
    const uint64_t pushed = lane.response_tx.cells.pos();
    poll(1);
    EXPECT_LE((lane.response_tx.cells.pos() - pushed) * lane.piece_bytes, turn);
    if (i == 0 && GetParam() != LinkKind::stream) {
      EXPECT_TRUE(a().qp->anything_arrived()) << "nobody sleeps before the rest is pushed";
    }
    got += take_data();
  }
  EXPECT_EQ(got, data.size());
  EXPECT_EQ(take_end(a().tx_cq), Errc::ok);
  EXPECT_FALSE(a().qp->anything_arrived());
}

TEST_P(HostilePeer, a_second_grant_ends_the_connection) {
  const auto data = pattern(4000000, 1);
  post_offer(data);
  for (int i = 0; i < 2; ++i) {
    response(Op::grant, wire::GrantFields{1, data.size()}, offer_id());
  }
  expect_broken();
}

TEST_P(HostilePeer, a_preview_is_pushed_each_time_and_leaves_the_offer) {
  const auto data = pattern(100000, 1);
  post_offer(data);
  const uint64_t id = offer_id();
  for (const uint64_t n : {uint64_t{64}, uint64_t{1}, uint64_t{70000}}) {
    put(peer().response_tx, Head::make(Op::grant, wire::kPreview, 0, id), wire::GrantFields{n, n});
    uint64_t got = 0;
    while (got < n) {
      poll();
      ring::ChannelRx& rx = peer().response_rx;
      ASSERT_TRUE(rx.cells.ready());
      wire::SoundHead head;
      ASSERT_NE(wire::read_head(rx.cells.body(), head), 0u);
      ASSERT_EQ(head.op(), Op::data);
      EXPECT_EQ(head.word().unchecked(), n);
      const auto f = wire::load_fields<wire::DataFields>(rx.cells.body());
      EXPECT_EQ(f.offset.unchecked(), got) << "from the beginning each time";
      got += f.len.unchecked();
      rx.cells.advance(1);
      rx.publish_consumed();
    }
    EXPECT_EQ(got, n);
    EXPECT_TRUE(a().tx_cq.empty()) << "it is on offer as before";
  }
  response(Op::finished, 0, id);
  expect_alive();
  EXPECT_EQ(a().tx_cq.size(), 1u);
}

TEST_P(HostilePeer, preview_while_one_is_pushed) {
  const auto data = pattern(4000000, 1);
  post_offer(data);
  const uint64_t id = offer_id();
  for (int i = 0; i < 2; ++i) {
    put(peer().response_tx, Head::make(Op::grant, wire::kPreview, 0, id),
        wire::GrantFields{1, data.size()});
  }
  expect_broken();
}

TEST_P(HostilePeer, preview_of_more_than_was_offered) {
  const auto data = pattern(100000, 1);
  post_offer(data);
  put(peer().response_tx, Head::make(Op::grant, wire::kPreview, 0, offer_id()),
      wire::GrantFields{1, 100001});
  expect_broken();
}

TEST_P(HostilePeer, early_end_of_an_offer_completes_it_once) {
  const auto data = pattern(4000000, 1);
  post_offer(data);
  const uint64_t id = offer_id();
  response(Op::grant, wire::GrantFields{1, data.size()}, id);
  poll();  // half of it lies in the ring
  response(Op::finished, 0, id);
  expect_alive();
  EXPECT_EQ(a().tx_cq.size(), 1u);
  response(Op::finished, 0, id);
  expect_broken();
}

TEST_P(HostilePeer, a_refusal_of_nothing_ends_the_connection) {
  response(Op::nak, 1, 0);
  expect_broken();
}

TEST_P(HostilePeer, a_refusal_with_an_unknown_reason_is_a_refusal) {
  Guarded local(100);
  const uint64_t pos = post_read(local.data(), 100);
  response(Op::nak, 0xffff, pos);
  acknowledge();
  expect_alive();
  EXPECT_EQ(take_end(a().tx_cq), Errc::access_denied);
}

TEST_P(HostilePeer, a_result_that_nobody_asked_for_ends_the_connection) {
  response(Op::read_inline, 8, 5);
  expect_broken();
}

TEST_P(HostilePeer, a_result_longer_than_asked_ends_the_connection) {
  Guarded local(100);
  response(Op::read_inline, 101, post_read(local.data(), 100));
  expect_broken();
  EXPECT_TRUE(local.canaries_intact());
}

TEST_P(HostilePeer, a_result_that_is_repeated_ends_the_connection) {
  Guarded local(100);
  const uint64_t pos = post_read(local.data(), 100);
  response(Op::read_data, wire::DataFields{0, 0, 60}, pos);
  expect_alive();
  response(Op::read_data, wire::DataFields{0, 0, 60}, pos);
  expect_broken();
  EXPECT_TRUE(local.canaries_intact());
}

TEST_P(HostilePeer, a_result_beyond_its_range_ends_the_connection) {
  Guarded local(100);
  const uint64_t pos = post_read(local.data(), 100);
  response(Op::read_data, wire::DataFields{0, 0, ~uint64_t{0}}, pos);
  expect_broken();
  EXPECT_TRUE(local.canaries_intact());
}

TEST_P(HostilePeer, an_acknowledgement_without_the_data_fails_the_read) {
  Guarded local(100);
  post_read(local.data(), 100);
  acknowledge();
  expect_alive();
  EXPECT_EQ(take_end(a().tx_cq), Errc::protocol);
}

TEST_P(HostilePeer, hostile_38_words_that_jump_are_ignored) {
  Guarded local(100);
  post_read(local.data(), 100);
  ring::ChannelWords& words = peer().request_rx.words();
  link::test::scribble_words(words, [&] {
    poll();
    EXPECT_TRUE(a().tx_cq.empty());
  });
  const iovec iov{local.data(), 100};
  SendWr wr = send_of(iov, 1);
  wr.completion = false;
  for (int i = 0; i < 1000; ++i)
    (void)a().qp->requester().send(wr);  // as many as there is room for
  words.consumed.store(1);
  expect_alive();
  EXPECT_EQ(a().tx_cq.size(), 1u);
}

// What is checked is a copy: key, address and length of a request change between good and bad all
// the time that it is looked at, and either it is refused or it lands where it may.
TEST_P(HostilePeer, hostile_38_fields_that_change_while_they_are_looked_at) {
  link::test::WildWriter writer([&](uint64_t i) {
    const uint64_t addr = i % 3 == 0   ? memory_.address()
                          : i % 3 == 1 ? memory_.address() - 8
                                       : memory_.address() + memory_.size() - 1;
    const uint64_t key = i % 5 == 0 ? region_.key ^ 1 : region_.key;
    std::vector<std::byte> bytes(wire::kHeadBytes + sizeof(wire::WriteFields));
    wire::store(bytes.data(),
                Head::make(Op::write, wire::kFirst | wire::kLast, i % 2 == 0 ? 8 : 16, addr),
                wire::WriteFields{key});
    return bytes;
  });
  constexpr int kRounds = 1000;
  int refused = 0;
  const std::vector<std::byte> payload(16, std::byte{7});
  for (int round = 0; round < kRounds; ++round) {
    std::byte* body = peer().request_tx.cells.body();
    std::memcpy(body + wire::payload_offset(Op::write, 0), payload.data(), payload.size());
    put(peer().request_tx, Head::make(Op::write, wire::kFirst | wire::kLast, 8, memory_.address()),
        wire::WriteFields{region_.key});
    writer.write_at(body);
    poll(2);
    writer.let_go();
    for (ring::CellReader& cells = peer().response_rx.cells; cells.ready(); cells.advance(1)) {
      ++refused;
    }
    peer().response_rx.publish_consumed();
  }
  EXPECT_GT(refused, 0) << "some were seen when they were bad";
  EXPECT_LT(refused, kRounds) << "and some when they were good";
  expect_alive();
  EXPECT_TRUE(memory_.all(7));
  EXPECT_TRUE(memory_.canaries_intact());
}

TEST_P(HostilePeerThatClaims, claims_of_every_kind_hold_up_only_their_lane) {
  request(Op::write, wire::WriteFields{region_.key}, wire::kFirst | wire::kLast, memory_.address());
  link::test::try_claims(peer(), *a().qp->lane(), [this] { expect_alive(); });
}

TEST_P(HostilePeer, notices_of_accesses_that_never_were_count_and_touch_nothing) {
  a().count_accesses();
  for (const uint16_t kind : {uint16_t{0}, uint16_t{1}, uint16_t{7}, uint16_t{65535}}) {
    put(peer().request_tx, Head::make(Op::notice, wire::kFirst | wire::kLast, kind, ~uint64_t{0}));
  }
  put(peer().request_tx, Head::make(Op::notice, 0xff, 0, 5));  // with immediate data
  expect_alive();
  EXPECT_EQ(a().remote_writes.value() + a().remote_reads.value(), 5u);
  EXPECT_EQ(a().rx_cq.size(), 1u);
  EXPECT_TRUE(memory_.all(7));
}

TEST_P(HostilePeer, permits_that_come_and_go) {
  Guarded local(5000);
  for (uint32_t i = 0; i < 200; ++i) {
    const auto flags = static_cast<uint16_t>(i % 3 == 0 ? 0xffff : i);
    put(peer().response_tx, Head::make(Op::permit, 0, flags, i / 5));
    (void)a().rma(i % 2 == 0 ? WqeKind::write : WqeKind::read, {local.data(), 5000},
                  {memory_.address(), 5000, region_.key}, 1);
    poll(1);
  }
  expect_alive();
}

// A receiver that makes room all the time and sets the word back would be pushed to for ever.
TEST_P(HostilePuller, a_word_of_an_offer_that_is_set_back) {
  const auto data = pattern(1000000, 1);
  post_offer(data);
  const uint64_t id = offer_id();
  const uint32_t claim =
      wire::load_fields<wire::SendOfferFields>(peer().request_rx.cells.body()).claim.unchecked();
  ASSERT_LT(claim, link::Lane::kClaims);
  response(Op::grant, wire::GrantFields{1, data.size() - 1}, id);
  uint64_t got = 0;
  for (int i = 0; i < 200 && !a().qp->broken(); ++i) {
    peer().claims_in[claim].store(id << 32);
    poll(1);
    got += take_data();
  }
  EXPECT_LT(got, data.size());
  expect_broken();
}

// What the buffer's address is good for is a pull, so who may not do that does not learn it.
TEST_P(HostilePeer, an_offer_names_its_buffer_to_who_may_pull_alone) {
  const auto data = pattern(100000, 1);
  post_offer(data);
  const auto f = wire::load_fields<wire::SendOfferFields>(peer().request_rx.cells.body());
  if (GetParam() == LinkKind::direct) {
    EXPECT_EQ(f.address.unchecked(), reinterpret_cast<uint64_t>(data.data()));
    EXPECT_LT(f.claim.unchecked(), link::Lane::kClaims);
  } else {
    EXPECT_EQ(f.address.unchecked(), 0u);
    EXPECT_EQ(f.claim.unchecked(), wire::kNoClaim);
  }
}

TEST_P(HostilePeerWithClaims, words_of_offers_that_jump_harm_nothing) {
  const auto data = pattern(1000000, 1);
  post_offer(data);
  response(Op::grant, wire::GrantFields{1, 1000000}, offer_id());
  for (int i = 0; i < 32; ++i) peer().claims_in[i].store(~uint64_t{0});
  expect_alive();
  for (int i = 0; i < 32; ++i) peer().claims_in[i].store(uint64_t{1} << 60);
  expect_alive();
}

// An offer that names an address which is not the sender's to give: nothing but its own receive is
// touched. (CMA reads, never writes, the peer; here the peer is this process, at an unmapped page.)
TEST_P(HostilePeer, offer_of_memory_that_is_not_there) {
  request(Op::send_offer, wire::SendOfferFields{100000, 4096, 77, 3});
  if (GetParam() == LinkKind::direct) {
    // the word still names another message: nothing is pulled
    peer().claims_out[3].store(uint64_t{76} << 32);
    expect_alive();
    EXPECT_EQ(peer().claims_out[3].load(), uint64_t{76} << 32);
  }
}

TEST_P(HostilePeer, offer_of_memory_that_is_not_there_and_may_be_pulled) {
  if (peer().claims_out != nullptr) peer().claims_out[3].store(uint64_t{77} << 32);
  peer().request_rx.words().gate.store(5);
  put(peer().response_tx, Head::make(Op::permit, 0, 0xffff, 5));
  request(Op::send_offer, wire::SendOfferFields{100000, 4096, 77, 3});
  if (GetParam() == LinkKind::direct) {
    ASSERT_TRUE(pair_.until([&] { return a().qp->broken(); }, true, false));
    EXPECT_EQ(a().sink.messages[0].err, Errc::peer_lost);
  } else {
    expect_alive();
  }
}

}  // namespace
}  // namespace aperture::qp::test
