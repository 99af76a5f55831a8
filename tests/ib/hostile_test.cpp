// A peer that writes nonsense into its half of the lane of a connected queue pair: the connection
// is given up, exactly that one, with nothing written outside and every work request of ours ended
// once. (hostile-inputs 24, 25, 27, 28, 29, 35, 38.)
#include "ib/victim.hpp"

namespace aperture::ib::test {
namespace {

using Hostile = OverEachLink;
INSTANTIATE_TEST_SUITE_P(Links, Hostile, kEachLink, link_name);
class OneVictim : public Hostile {
 protected:
  Victim v{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Links, OneVictim, kEachLink, link_name);
using OneVictimOfClaims = OneVictim;  // no claim travels
INSTANTIATE_TEST_SUITE_P(Links, OneVictimOfClaims, link::test::kEachShared, link_name);

const wire::RcAnswer kNothing{0};

wire::RcWrite write_to(uint64_t addr, uint32_t key) {
  return {static_cast<uint32_t>(addr), static_cast<uint32_t>(addr >> 32), key};
}

// --- 24, 25: operations and lengths ---

TEST_P(Hostile, hostile_25_unknown_requests_and_responses_end_the_connection) {
  for (const unsigned op : {0u, 11u, 15u, 21u, 99u, 255u}) {
    for (const bool as_response : {false, true}) {
      SCOPED_TRACE(op);
      Victim v(GetParam());
      v.post_recv();
      v.post(SendOp::send, 8);
      if (as_response) {
        v.response(static_cast<RcOp>(op), kNothing);
      } else {
        v.request(static_cast<RcOp>(op), kNothing);
      }
      v.expect_broken();
      EXPECT_EQ(v.sent, std::vector{WcStatus::wr_flush_err});
    }
  }
}

// It names no gate: whatever it says to permit, the owner is asked through the ring.
TEST_P(OneVictim, a_permit_without_a_number_permits_nothing) {
  v.response(RcOp::permit, kNothing, 0xffff);
  v.poll();
  v.post(SendOp::write, 5000);
  v.expect_alive();
  EXPECT_TRUE(v.peer()->request_rx.cells.ready());
}

TEST_P(Hostile, hostile_28_what_belongs_into_the_other_ring_ends_the_connection) {
  for (const RcOp op : {RcOp::nak, RcOp::rnr, RcOp::read_inline, RcOp::read_data}) {
    Victim v(GetParam());
    v.request(op, kNothing);
    v.expect_broken();
  }
  for (const RcOp op : {RcOp::send, RcOp::write, RcOp::read, RcOp::atomic, RcOp::notice,
                        RcOp::atomic_write, RcOp::flush}) {
    Victim v(GetParam());
    v.response(op, kNothing);
    v.expect_broken();
  }
}

TEST_P(Hostile, hostile_24_inline_payload_at_and_above_the_limit) {
  {
    Victim v(GetParam());
    v.post_recv(256);
    v.send(0, 256);
    v.expect_alive();
    ASSERT_EQ(v.received.size(), 1u);
    EXPECT_EQ(v.received[0].byte_len, 256u);
  }
  for (const unsigned len : {257u, 0x8000u, 0xffffu}) {
    Victim v(GetParam());
    v.post_recv(256);
    v.send(0, static_cast<uint16_t>(len));
    v.expect_broken();
    EXPECT_EQ(v.received.back().status, WcStatus::wr_flush_err);
  }
}

TEST_P(OneVictim, hostile_25_flags_that_mean_nothing_here_change_nothing) {
  v.post_recv(64);
  v.send(wire::kRcXrc | 0xc0);  // a receive queue's number, on a reliable connection
  // invalidating is for sends
  v.request(RcOp::write, write_to(v.address, v.key), wire::kRcInv, 0, v.key);
  v.expect_alive();
  ASSERT_EQ(v.received.size(), 1u);
  EXPECT_EQ(v.received[0].status, WcStatus::success);
  EXPECT_EQ(v.received[0].flags, 0);
}

// --- 28, 29: pieces ---

TEST_P(Hostile, hostile_38_payload_outside_the_byte_ring) {
  const auto bad = [](ring::ChannelTx& tx) {
    const uint64_t size = tx.bytes.size();
    return std::vector<std::pair<uint64_t, uint32_t>>{
        {size - 64, 65}, {~uint64_t{0}, 2}, {0, 512 * 1024 + 1}, {0, ~0u}, {size - 1, 2}};
  };
  for (size_t i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    {
      Victim v(GetParam());
      const auto [pos, len] = bad(v.peer()->request_tx)[i];
      v.post_recv(64);
      v.request(RcOp::send_bytes, wire::RcSendBytes{pos, len, 0, len, 0},
                wire::kRcFirst | wire::kRcLast);
      v.expect_broken();
    }
    {
      Victim v(GetParam());
      const auto [pos, len] = bad(v.peer()->request_tx)[i];
      v.request(RcOp::write_bytes, wire::RcWriteBytes{v.address, pos, v.key, len, 0, len});
      v.expect_broken();
    }
    Victim v(GetParam());
    const auto [pos, len] = bad(v.peer()->response_tx)[i];
    v.response(RcOp::read_data, wire::RcReadData{v.post(SendOp::read, 4096), pos, 0, len});
    v.expect_broken();
    EXPECT_EQ(v.sent, std::vector{WcStatus::wr_flush_err});
  }
}

TEST_P(Hostile, hostile_28_pieces_of_a_message_that_do_not_fit_together) {
  constexpr uint8_t kF = wire::kRcFirst, kL = wire::kRcLast;
  const struct {
    const char* what;
    std::vector<std::pair<wire::RcSendBytes, uint8_t>> pieces;
  } cases[] = {
      {"continues nothing", {{{0, 8, 8, 24, 0}, 0}}},
      {"last of nothing", {{{0, 8, 8, 16, 0}, kL}}},
      {"repeats", {{{0, 8, 0, 24, 0}, kF}, {{0, 8, 8, 24, 0}, 0}, {{0, 8, 8, 24, 0}, 0}}},
      {"overlaps", {{{0, 8, 0, 24, 0}, kF}, {{0, 8, 4, 24, 0}, 0}}},
      {"leaves a gap", {{{0, 8, 0, 24, 0}, kF}, {{0, 8, 16, 24, 0}, kL}}},
      {"offset behind the end", {{{0, 8, 0, 24, 0}, kF}, {{0, 8, 25, 24, 0}, 0}}},
      {"ends behind the end", {{{0, 8, 0, 24, 0}, kF}, {{0, 17, 8, 24, 0}, kL}}},
      {"offset wraps", {{{0, 8, ~0u - 3, 24, 0}, 0}}},
      {"first in the middle", {{{0, 8, 8, 24, 0}, kF}}},
      {"last in the middle", {{{0, 8, 0, 24, 0}, kF | kL}}},
      {"whole and not last", {{{0, 24, 0, 24, 0}, kF}}},
      {"above the limit", {{{0, 8, 0, (1u << 31) + 1, 0}, kF}}},
      {"shrinks", {{{0, 8, 0, 24, 0}, kF}, {{0, 8, 8, 12, 0}, kL}}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Victim v(GetParam());
    v.post_recv(64);
    v.post_recv(64);
    for (const auto& [piece, flags] : c.pieces) v.request(RcOp::send_bytes, piece, flags);
    v.expect_broken();
    EXPECT_EQ(v.received.size(), 2u) << "the one that was taken is not lost";
  }
}

TEST_P(OneVictim, a_message_that_never_ends_keeps_its_receive_until_the_lane_goes) {
  v.post_recv(64);
  v.request(RcOp::send_bytes, wire::RcSendBytes{0, 8, 0, 24, 0}, wire::kRcFirst);
  for (int i = 0; i < 50; ++i) v.request(RcOp::send_bytes, wire::RcSendBytes{0, 0, 8, 24, 0});
  v.expect_alive();
  EXPECT_TRUE(v.received.empty());
  v.a->qp->lose();
  v.drain();
  ASSERT_EQ(v.received.size(), 1u);
  EXPECT_NE(v.received[0].status, WcStatus::success);
}

TEST_P(OneVictim, a_message_that_grows_beyond_its_receive_is_refused) {
  v.post_recv(64);
  v.request(RcOp::send_bytes, wire::RcSendBytes{0, 8, 0, 24, 0}, wire::kRcFirst);
  v.request(RcOp::send_bytes, wire::RcSendBytes{64, 8, 8, 65, 0});
  // with the room that there was in place of a denial
  v.expect_refused(WcStatus::rem_inv_req_err, AsyncEvent::qp_req_err, protect::Denial{64});
  EXPECT_EQ(wire::load_rc_head(v.peer()->response_rx.cells.body()).flags, wire::kRcRoom);
  EXPECT_EQ(v.received[0].status, WcStatus::loc_len_err);
}

TEST_P(OneVictim, a_message_within_a_message_ends_each_receive_once) {
  v.post_recv(64);
  v.post_recv(64);
  v.request(RcOp::send_bytes, wire::RcSendBytes{0, 8, 0, 24, 0}, wire::kRcFirst);
  v.send(0, 16);
  v.send(0, 16);
  v.expect_alive();
  EXPECT_EQ(v.received.size(), 2u);
  v.request(RcOp::send_bytes, wire::RcSendBytes{64, 16, 8, 24, 0}, wire::kRcLast);
  v.expect_broken();
}

TEST_P(Hostile, hostile_29_write_pieces_outside_their_operation_or_their_region) {
  const auto len = static_cast<uint32_t>(kRegion);
  const struct {
    uint64_t addr;  // from the region's beginning
    uint32_t n, offset, total;
    bool sound;  // may come from a sound peer: refused, not broken
  } bad[] = {
      {0, 0, 101, 100, false},           // begins behind the end
      {0, 11, 90, 100, false},           // ends behind it
      {0, 2, ~0u, 100, false},           // wraps
      {0, 8, 0, (1u << 31) + 1, false},  // above the limit
      {0, 64, 0, len + 1, true},         // leaves the region
      {~uint64_t{0}, 64, 0, 64, true},   // begins before it
      {0 - uint64_t{kRegionAt} * 1000, 40, 60, 100, true},
      {kRegion - 8, 8, 4, 12, true},
  };
  for (const auto& b : bad) {
    SCOPED_TRACE(std::to_string(b.n) + " at " + std::to_string(b.offset));
    Victim v(GetParam());
    v.request(RcOp::write_bytes,
              wire::RcWriteBytes{v.address + b.addr, 0, v.key, b.n, b.offset, b.total});
    if (b.sound) {
      v.expect_refused_access();
    } else {
      v.expect_broken();
    }
  }
}

TEST_P(Hostile, hostile_29_addresses_that_wrap) {
  for (const uint64_t addr : {~uint64_t{0} - 3, ~uint64_t{0}, uint64_t{0}}) {
    for (const RcOp op : {RcOp::write, RcOp::read, RcOp::write_bytes}) {
      Victim v(GetParam());
      if (op == RcOp::write) {
        v.request(op, write_to(addr, v.key), 0, 8);
      } else if (op == RcOp::read) {
        v.request(op, wire::RcRead{addr, v.key, 8, 0, 8});
      } else {
        v.request(op, wire::RcWriteBytes{addr, 0, v.key, 8, 0, 8});
      }
      v.expect_refused_access();
    }
  }
}

TEST_P(OneVictim, a_piece_that_continues_another_life_of_a_write_is_judged_by_itself) {
  v.request(RcOp::write_bytes, wire::RcWriteBytes{v.address, 0, v.key, 8, 0, 16});
  // the same place in its operation, of another key and another address
  v.request(RcOp::write_bytes, wire::RcWriteBytes{v.address - 100'000, 0, v.key, 8, 8, 16});
  v.poll();
  EXPECT_EQ(v.a->events.async, std::vector{AsyncEvent::qp_access_err});
  EXPECT_TRUE(v.outside_intact());
}

TEST_P(Hostile, reads_and_atomics_of_what_is_not_granted) {
  const struct {
    uint64_t at;
    uint32_t len;
  } bad[] = {{kRegion - 7, 8}, {0, static_cast<uint32_t>(kRegion) + 1}, {0, 1u << 31}};
  for (const auto& [at, len] : bad) {
    Victim v(GetParam());
    v.request(RcOp::read, wire::RcRead{v.address + at, v.key, len, 0, len});
    v.expect_refused_access();
  }
  {
    Victim v(GetParam());
    v.request(RcOp::read, wire::RcRead{v.address, v.key, 8, 0, (1u << 31) + 1});
    v.expect_refused(WcStatus::rem_inv_req_err, AsyncEvent::qp_req_err, protect::Denial::none);
  }
  for (const auto& [offset, len] : {std::pair{101u, 0u}, {90u, 11u}, {~0u, 2u}, {100u, 1u}}) {
    SCOPED_TRACE(std::to_string(len) + " at " + std::to_string(offset));
    Victim v(GetParam());
    v.request(RcOp::read, wire::RcRead{v.address, v.key, len, offset, 100});
    v.expect_refused(WcStatus::rem_inv_req_err, AsyncEvent::qp_req_err, protect::Denial::none);
  }
  const struct {
    uint64_t at;
    uint32_t op;
    WcStatus status;
    AsyncEvent event;
    protect::Denial denial;
  } bad_atomics[] = {
      {4, 0, rem_inv_req_err, AsyncEvent::qp_req_err, protect::Denial::misaligned},
      {0, 2, rem_inv_req_err, AsyncEvent::qp_req_err, protect::Denial::none},
      {kRegion, 1, rem_access_err, AsyncEvent::qp_access_err, protect::Denial::out_of_range}};
  for (const auto& b : bad_atomics) {
    SCOPED_TRACE(b.at);
    Victim v(GetParam());
    v.request(RcOp::atomic, wire::RcAtomic{v.address + b.at, v.key, b.op, 1, 0});
    v.expect_refused(b.status, b.event, b.denial);
  }
}

// Its first part has been answered from a region that is gone by the second.
TEST_P(OneVictim, parts_of_a_read_are_of_one_life_of_their_region) {
  v.request(RcOp::read, wire::RcRead{v.address, v.key, 30'000, 0, 50'000});
  v.expect_alive();
  ring::ChannelRx& answers = v.peer()->response_rx;
  ASSERT_TRUE(answers.cells.ready());
  while (answers.cells.ready()) answers.cells.advance(1);
  v.register_anew();
  v.request(RcOp::read, wire::RcRead{v.address, v.key, 20'000, 30'000, 50'000});
  v.expect_refused_access(protect::Denial::closed);
}

TEST_P(Hostile, hostile_25_atomic_writes_and_flushes_of_what_is_not_granted) {
  const auto misaligned = protect::Denial::misaligned;
  const auto outside = protect::Denial::out_of_range;
  for (const uint64_t at : {uint64_t{4}, uint64_t{kRegion}, 0 - uint64_t{8}}) {
    SCOPED_TRACE(at);
    Victim v(GetParam());
    v.request(RcOp::atomic_write, wire::RcAtomicWrite{v.address + at, 1, v.key, ~0u});
    if (at == 4) {
      v.expect_refused(rem_inv_req_err, AsyncEvent::qp_req_err, misaligned);
    } else {
      v.expect_refused_access(outside);
    }
  }
  Options o;
  o.access |= kAllowFlushGlobal | kAllowFlushPersistent;
  const struct {
    uint64_t at, len;
    uint32_t key_off, how;
    WcStatus status;
    protect::Denial denial;
  } bad[] = {
      {0, 8, 0, 1, rem_access_err, protect::Denial::missing_right},
      {0, 8, 0, 2, rem_access_err, protect::Denial::missing_right},
      {0, 0, 0, 7, rem_access_err, protect::Denial::missing_right},
      {0, 8, 0x777, 5, rem_access_err, protect::Denial::unknown_key},
      {0, 8, 0, 0, rem_inv_req_err, protect::Denial::none},
      {0, 8, 0, 4, rem_inv_req_err, protect::Denial::none},
      {0, 8, 0, 8, rem_inv_req_err, protect::Denial::none},
      {0, 8, 0, ~0u, rem_inv_req_err, protect::Denial::none},
  };
  for (const auto& b : bad) {
    SCOPED_TRACE(b.how);
    Victim v(GetParam(), o);
    v.request(RcOp::flush, wire::RcFlush{v.address + b.at, b.len, v.key + b.key_off, b.how});
    const bool access = b.status == rem_access_err;
    v.expect_refused(b.status, access ? AsyncEvent::qp_access_err : AsyncEvent::qp_req_err,
                     b.denial);
  }
}

TEST_P(OneVictim, notices_of_writes_that_never_were_take_a_receive_and_touch_nothing) {
  v.post_recv(64);
  v.request(RcOp::notice, wire::RcNotice{1u << 31}, wire::kRcImm, 0, 5);
  v.expect_alive();
  ASSERT_EQ(v.received.size(), 1u);
  EXPECT_EQ(v.received[0].opcode, WcOpcode::recv_write_with_imm);
  EXPECT_TRUE(v.region_intact());
  v.post_recv(64);
  v.request(RcOp::notice, wire::RcNotice{(uint64_t{1} << 31) + 1}, wire::kRcImm, 0, 5);
  v.expect_broken();
}

TEST_P(OneVictim, a_notice_without_immediate_data_ends_the_connection) {
  v.post_recv(64);
  v.request(RcOp::notice, wire::RcNotice{8});
  v.expect_broken();
}

TEST_P(Hostile, hostile_23_invalidation_of_what_is_no_window_of_this_queue_pair) {
  for (const bool of_region : {true, false}) {
    Victim v(GetParam());
    v.post_recv(64);
    v.send(wire::kRcInv, 8, of_region ? v.key : 0x7777);
    v.expect_refused_access(protect::Denial::no_window);
    ASSERT_EQ(v.received.size(), 1u);
    EXPECT_EQ(v.received[0].status, WcStatus::wr_flush_err);
  }
}

// --- 27: answers ---

TEST_P(Hostile, hostile_27_answers_that_nobody_waits_for) {
  for (const uint64_t pos : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    for (const RcOp op : {RcOp::nak, RcOp::read_inline, RcOp::read_data}) {
      Victim v(GetParam());
      if (op == RcOp::read_data) {
        v.response(op, wire::RcReadData{pos, 0, 0, 8});
      } else {
        v.response(op, wire::RcAnswer{pos}, 8);
      }
      v.expect_broken();
    }
  }
}

TEST_P(OneVictim, hostile_27_a_result_for_what_is_no_read) {
  v.response(RcOp::read_inline, wire::RcAnswer{v.post(SendOp::send, 8)}, 8);
  v.expect_broken();
  EXPECT_EQ(v.sent, std::vector{WcStatus::wr_flush_err});
}

TEST_P(Hostile, hostile_27_results_longer_than_asked_repeated_and_out_of_order) {
  const struct {
    std::vector<wire::RcReadData> pieces;
  } cases[] = {{{{0, 0, 0, 1001}}},
               {{{0, 0, 0, ~0u}}},
               {{{0, 0, 0, 600}, {0, 0, 0, 600}}},
               {{{0, 0, 600, 400}}},
               {{{0, 0, 0, 600}, {0, 0, 600, 401}}},
               {{{0, 0, 0, 1000}, {0, 0, 1000, 1}}},
               {{{0, 0, ~0u, 8}}}};
  for (const auto& c : cases) {
    Victim v(GetParam());
    const uint64_t pos = v.post(SendOp::read, 1000);
    for (wire::RcReadData f : c.pieces) {
      f.pos = pos;
      v.response(RcOp::read_data, f);
    }
    v.expect_broken();
    EXPECT_EQ(v.sent, std::vector{WcStatus::wr_flush_err});
  }
  Victim v(GetParam());
  v.response(RcOp::read_inline, wire::RcAnswer{v.post(SendOp::read, 100)}, 101);
  v.expect_broken();
}

TEST_P(OneVictim, an_acknowledgement_without_the_data_fails_the_read) {
  v.post(SendOp::read, 1000);
  v.acknowledge(1);
  v.poll();
  EXPECT_EQ(v.sent, std::vector{WcStatus::bad_resp_err});
  EXPECT_EQ(v.a->qp->state(), QpState::err);
}

TEST_P(OneVictim, a_result_that_is_never_finished_and_then_refused) {
  const uint64_t pos = v.post(SendOp::read, 1000);
  v.post(SendOp::send, 8);
  v.response(RcOp::read_data, wire::RcReadData{pos, 0, 0, 500});
  v.response(RcOp::nak, wire::RcAnswer{pos}, static_cast<uint16_t>(WcStatus::rem_access_err), 5);
  v.response(RcOp::read_data, wire::RcReadData{pos, 0, 500, 500});
  v.poll();
  EXPECT_EQ(v.sent, (std::vector{WcStatus::rem_access_err, WcStatus::wr_flush_err}));
}

TEST_P(Hostile, refusals_with_reasons_that_do_not_exist) {
  for (const unsigned code : {0u, 1u, 0x100u, 0xffffu}) {
    Victim v(GetParam());
    const uint64_t pos = v.post(SendOp::read, 1000);
    v.response(RcOp::nak, wire::RcAnswer{pos}, static_cast<uint16_t>(code), ~0u);
    v.poll();
    EXPECT_EQ(v.sent, std::vector{WcStatus::rem_op_err});
    EXPECT_EQ(v.a->qp->state(), QpState::err);
  }
}

TEST_P(OneVictim, refused_and_acknowledged_at_once_is_refused) {
  const uint64_t pos = v.post(SendOp::send, 8);
  v.response(RcOp::nak, wire::RcAnswer{pos}, static_cast<uint16_t>(WcStatus::rem_op_err));
  v.acknowledge(1);
  v.poll();
  EXPECT_EQ(v.sent, std::vector{WcStatus::rem_op_err});
}

TEST_P(Hostile, receiver_not_ready_for_nothing_is_ignored) {
  Victim v(GetParam(), {.rnr_retry = 0});
  for (const uint64_t pos : {uint64_t{0}, uint64_t{5}, ~uint64_t{0}}) {
    v.response(RcOp::rnr, wire::RcAnswer{pos}, 0, 0xffff'ffff);
  }
  v.expect_alive();
  v.post(SendOp::send, 8);
  v.response(RcOp::rnr, wire::RcAnswer{77}, 0, 1);  // of a request that is still to come
  v.expect_alive();
  v.acknowledge(1);
  v.expect_alive();
  EXPECT_EQ(v.sent, std::vector{WcStatus::success});
}

// --- 35, 38: the words of a channel, floods ---

TEST_P(OneVictim, hostile_38_words_that_jump_are_ignored) {
  v.post(SendOp::read, 1000);
  ring::ChannelWords& words = v.peer()->request_rx.words();
  link::test::scribble_words(words, [&] {
    v.poll();
    EXPECT_TRUE(v.sent.empty());
  });
  for (int i = 0; i < 60; ++i) v.post(SendOp::send, 200);
  v.expect_alive();
  words.consumed.store(1);
  v.poll();
  EXPECT_EQ(v.sent[0], WcStatus::bad_resp_err);
}

TEST_P(OneVictimOfClaims, claims_of_every_kind_hold_up_only_their_lane) {
  v.request(RcOp::write_bytes, wire::RcWriteBytes{v.address, 0, v.key, 0, 0, 0});
  link::test::try_claims(*v.peer(), *v.a->qp->lane(), [&] { v.expect_alive(); });
}

TEST_P(OneVictim, hostile_35_more_reads_than_there_is_room_for_answers_wait) {
  int posted = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 12; ++i, ++posted) {
      v.request(RcOp::read, wire::RcRead{v.address, v.key, 30'000, 0, 30'000});
    }
    v.expect_alive();
  }
  uint64_t answered = 0;
  for (int i = 0; i < 2000 && answered < 30'000ull * static_cast<uint64_t>(posted); ++i) {
    for (ring::ChannelRx& rx = v.peer()->response_rx; rx.cells.ready(); rx.cells.advance(1)) {
      const auto f = wire::load_rc<wire::RcReadDataFields>(rx.cells.body());
      const uint64_t len = f.len.unchecked();
      ASSERT_NE(rx.bytes.view(f.byte_pos.unchecked(), len), nullptr);
      answered += len;
      rx.free_bytes_before(ring::ByteReader::after(f.byte_pos.unchecked(), len));
    }
    v.peer()->response_rx.publish_consumed();
    v.poll(1);
  }
  EXPECT_EQ(answered, 30'000ull * static_cast<uint64_t>(posted)) << "each in the end, and no more";
  v.expect_alive();
}

// Pieces that all name one place of the ring count as others do.
TEST_P(OneVictim, hostile_37_a_poll_takes_no_more_pieces_for_lying_at_one_place) {
  constexpr uint32_t kLen = 32 * 1024;
  constexpr size_t kMessages = 20;
  for (size_t i = 0; i < kMessages; ++i) {
    v.post_recv(kLen);
    v.request(RcOp::send_bytes, wire::RcSendBytes{0, kLen, 0, kLen, 0},
              wire::kRcFirst | wire::kRcLast);
  }
  for (size_t i = 0; i < kMessages; ++i) {
    v.poll(1);
    EXPECT_LE(v.received.size(), i + 1);
  }
  v.expect_alive();
  EXPECT_EQ(v.received.size(), kMessages);
}

// As one does whose process goes, and who shares the lane with another that stays.
TEST(HostileAfterItsEnd, hostile_37_who_still_takes_answers_is_not_served_to_the_last_of_them) {
  Victim v(LinkKind::shm);
  constexpr int kReads = 250;
  for (int i = 0; i < kReads; ++i) {
    v.request(RcOp::read, wire::RcRead{v.address, v.key, kRegion, 0, kRegion});
  }
  std::atomic<bool> begun{false}, over{false};
  uint64_t got = 0;
  std::thread taker([&, &rx = v.peer()->response_rx] {
    for (begun = true; !over;) {
      for (; rx.cells.ready(); rx.cells.advance(1)) {
        const auto f = wire::load_rc<wire::RcReadDataFields>(rx.cells.body());
        got += f.len.unchecked();
        rx.free_bytes_before(ring::ByteReader::after(f.byte_pos.unchecked(), f.len.unchecked()));
      }
      rx.publish_consumed();
    }
  });
  while (!begun) std::this_thread::yield();
  v.a->qp->lose();
  over = true;
  taker.join();
  EXPECT_LT(got, uint64_t{kReads} * kRegion / 2);
}

TEST_P(OneVictim, hostile_35_a_flood_of_messages_takes_no_more_receives_than_there_are) {
  for (int i = 0; i < 3; ++i) v.post_recv(64);
  for (int i = 0; i < 100; ++i) v.send();
  v.expect_alive();
  EXPECT_EQ(v.received.size(), 3u);
  int told = 0;
  for (ring::ChannelRx& rx = v.peer()->response_rx; rx.cells.ready(); rx.cells.advance(1)) ++told;
  EXPECT_EQ(told, 1) << "receiver not ready, once";
}

// What is checked is a copy: key, address and length of a request change between good and bad all
// the time that it is looked at, and either it is refused or it lands where it may.
TEST_P(Hostile, hostile_38_fields_that_change_while_they_are_looked_at) {
  std::atomic<uint64_t> base{0};
  std::atomic<uint32_t> key{0};
  link::test::WildWriter writer([&](uint64_t i) {
    const uint64_t addr = i % 3 == 0 ? base.load() : i % 3 == 1 ? base - 8 : base + kRegion - 1;
    const RcHead head{static_cast<uint8_t>(RcOp::write), 0,
                      static_cast<uint16_t>(i % 2 == 0 ? 8 : 16), 0};
    std::vector<std::byte> bytes(wire::kRcHeadBytes + sizeof(wire::RcWrite));
    wire::store_rc(bytes.data(), head, write_to(addr, i % 5 == 0 ? key ^ 0x100 : key.load()));
    return bytes;
  });
  constexpr int kRounds = 100;
  int refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    Victim v(GetParam());
    base = v.address;
    key = v.key;
    std::byte* body = v.peer()->request_tx.cells.body();
    std::memset(body + wire::rc_payload_offset(RcOp::write, 0), 7, 16);
    v.request(RcOp::write, write_to(v.address, v.key), 0, 8);
    writer.write_at(body);
    v.poll(2);
    writer.let_go();  // before the lane goes
    refused += v.a->qp->state() == QpState::err ? 1 : 0;
    EXPECT_TRUE(v.region_intact() && v.outside_intact());
  }
  EXPECT_GT(refused, 0) << "some were seen when they were bad";
  EXPECT_LT(refused, kRounds) << "and some when they were good";
}

}  // namespace
}  // namespace aperture::ib::test
