// One end of a lane: publishing and waking are one, bytes that lie outside are refused, and
// refusals are taken before `consumed` is believed.
#include "transport/lane_end.hpp"

#include <cstring>

#include "link/lane_pair.hpp"

namespace aperture::transport {
namespace {

using link::test::LanePair;
using link::test::LinkKind;

class Ends : public testing::TestWithParam<LinkKind> {
 protected:
  Ends() : pair_(GetParam()) {
    pair_.make(1, 2);
    a_.attach(std::move(pair_.lane_a));
    b_.attach(std::move(pair_.lane_b));
  }
  // Whether b's doorbell has rung since this was last asked.
  static bool has_rung(int bell) {
    uint64_t count = 0;
    return ::read(bell, &count, sizeof count) == sizeof count;
  }
  LanePair pair_;
  LaneEnd a_, b_;
};
INSTANTIATE_TEST_SUITE_P(links, Ends, testing::Values(LinkKind::loopback, LinkKind::shm),
                         [](const auto& setting) { return link::test::name_of(setting.param); });

TEST_P(Ends, what_is_published_wakes_a_sleeper_once_and_nobody_who_polls) {
  a_.publish_request(1);
  EXPECT_FALSE(has_rung(pair_.bell_b()));
  b_.fall_asleep({true, true});
  a_.publish_request(1);
  EXPECT_TRUE(has_rung(pair_.bell_b()));
  a_.publish_response(1);  // another channel of the same sleeper
  EXPECT_FALSE(has_rung(pair_.bell_b()));
  a_.publish_request(1);
  EXPECT_FALSE(has_rung(pair_.bell_b()));
}

TEST_P(Ends, an_acknowledgement_wakes_the_requester_that_sleeps) {
  a_.publish_request(1);
  a_.fall_asleep({true, true});
  EXPECT_FALSE(b_.acknowledge_requests());  // nothing has been executed
  EXPECT_FALSE(has_rung(pair_.bell_a()));
  b_->request_rx.cells.advance(1);
  EXPECT_TRUE(b_.acknowledge_requests());
  EXPECT_TRUE(has_rung(pair_.bell_a()));
  EXPECT_TRUE(LaneEnd::has_moved(a_->request_tx));
  EXPECT_EQ(a_->request_tx.refresh(), 1u);
}

TEST_P(Ends, an_acknowledgement_that_nobody_waits_for_wakes_nobody) {
  a_.publish_request(1);
  a_.fall_asleep({.for_executed = false, .for_room = false});
  b_->request_rx.cells.advance(1);
  EXPECT_TRUE(b_.acknowledge_requests());
  EXPECT_FALSE(has_rung(pair_.bell_a()));
  EXPECT_TRUE(LaneEnd::has_moved(a_->request_tx));
  b_.publish_response(1);  // a refusal, say
  EXPECT_TRUE(has_rung(pair_.bell_a()));
}

TEST_P(Ends, an_acknowledgement_wakes_who_has_filled_half_of_the_ring) {
  const auto half = static_cast<uint32_t>(a_->request_tx.cells.capacity() / 2);
  for (uint32_t i = 0; i <= half; ++i) a_.publish_request(1);
  a_.fall_asleep({.for_executed = false, .for_room = false});
  b_->request_rx.cells.advance(1);
  EXPECT_TRUE(b_.acknowledge_requests());
  EXPECT_TRUE(has_rung(pair_.bell_a()));
}

TEST_P(Ends, who_posts_while_asleep_sleeps_lightly_for_a_while) {
  constexpr LaneEnd::Sleep kDeep{.for_executed = false, .for_room = false};
  a_.publish_request(1);
  a_.fall_asleep(kDeep);
  EXPECT_FALSE(a_.sleeps_too_deep(false));
  EXPECT_TRUE(a_.sleeps_too_deep(true));
  for (uint32_t sleeps = 0; sleeps < kLightSleeps; ++sleeps) {
    a_.fall_asleep(kDeep);
    EXPECT_FALSE(a_.sleeps_too_deep(true)) << sleeps;
    a_.wake_up();
  }
  a_.fall_asleep(kDeep);
  EXPECT_TRUE(a_.sleeps_too_deep(true));
}

TEST_P(Ends, fences_are_promised_until_the_consumer_polls_for_long_and_again_when_it_sleeps) {
  EXPECT_TRUE(b_.producer_fences());
  const auto publish = [&](uint32_t times) {
    for (uint32_t i = 0; i < times; ++i) {
      ASSERT_TRUE(a_->request_tx.room(1));
      a_.publish_request(1);
      b_->request_rx.cells.advance(1);
      b_.acknowledge_requests();
    }
  };
  publish(kFencedSends - 1);
  EXPECT_TRUE(b_.producer_fences());
  publish(1);
  EXPECT_FALSE(b_.producer_fences());
  for (uint32_t rings = 0; rings < kRingsToFence; ++rings) {
    EXPECT_FALSE(b_.producer_fences()) << rings;
    b_.fall_asleep({true, true});
    publish(1);
    b_.wake_up();
  }
  EXPECT_TRUE(b_.producer_fences());
  publish(kFencedSends - 2);
  b_.fall_asleep({true, true});
  publish(1);
  b_.wake_up();
  publish(kFencedSends - 1);
  EXPECT_TRUE(b_.producer_fences()) << "it has been found asleep";
}

TEST_P(Ends, room_in_the_response_ring_wakes_the_responder_that_sleeps) {
  b_.publish_response(1);
  b_.fall_asleep({true, true});
  EXPECT_TRUE(a_.take_responses([](const std::byte*) { return 1u; }));
  EXPECT_TRUE(has_rung(pair_.bell_b()));
}

TEST_P(Ends, bytes_arrive_as_they_were_put) {
  uint64_t pos = 0;
  ASSERT_EQ(a_.payload().put_request_bytes(1000, pos,
                                           [](std::byte* to) {
                                             std::memset(to, 7, 1000);
                                             return true;
                                           }),
            Put::done);
  const BytesIn in =
      b_.payload().take_bytes(b_->request_rx, Wild<uint64_t>(pos), 1000, kPieceBytes);
  ASSERT_TRUE(in);
  for (size_t i = 0; i < 1000; ++i) ASSERT_EQ(in.from()[i], std::byte{7});
  b_.payload().done_with(b_->request_rx, in);
}

TEST_P(Ends, responses_whose_bytes_all_name_one_place_count_as_others_do) {
  for (int i = 0; i < 10; ++i) b_.publish_response(1);
  int taken = 0;
  const auto take = [&](const std::byte*) {
    a_.payload().done_with(
        a_->response_rx,
        a_.payload().take_bytes(a_->response_rx, Wild<uint64_t>(0), kPieceBytes, kPieceBytes));
    ++taken;
    return 1u;
  };
  for (int poll = 1; poll <= 10; ++poll) {
    EXPECT_TRUE(a_.take_responses(take));
    EXPECT_EQ(taken, poll);
  }
}

TEST_P(Ends, a_source_that_fails_takes_nothing_from_the_ring) {
  uint64_t first = 0, second = 0;
  EXPECT_EQ(a_.payload().put_request_bytes(64, first, [](std::byte*) { return false; }),
            Put::no_source);
  EXPECT_EQ(a_.payload().put_request_bytes(64, second, [](std::byte*) { return true; }), Put::done);
  EXPECT_EQ(first, second);
}

TEST_P(Ends, a_full_ring_has_no_room_until_the_other_side_has_taken_something) {
  uint64_t pos = 0;
  const auto fill = [](std::byte*) { return true; };
  int pieces = 0;
  while (a_.payload().put_request_bytes(kPieceBytes, pos, fill) == Put::done) ++pieces;
  EXPECT_EQ(static_cast<uint64_t>(pieces), a_->request_tx.bytes.size() / kPieceBytes);
  EXPECT_FALSE(a_.payload().has_room_for_request_bytes(kPieceBytes));
  EXPECT_TRUE(a_.payload().has_room_for_response_bytes(kPieceBytes)) << "a ring of its own";
  a_.publish_request(1);
  b_->request_rx.cells.advance(1);
  b_.payload().done_with(b_->request_rx, b_.payload().take_bytes(b_->request_rx, Wild<uint64_t>(0),
                                                                 kPieceBytes, kPieceBytes));
  b_.acknowledge_requests();
  EXPECT_TRUE(a_.payload().has_room_for_request_bytes(kPieceBytes));
  EXPECT_EQ(a_.payload().put_request_bytes(kPieceBytes, pos, fill), Put::done)
      << "asking took none";
}

TEST_P(Ends, places_outside_the_ring_or_above_the_limit_are_refused) {
  const ring::ChannelRx& rx = b_->request_rx;
  const uint64_t size = a_->request_tx.bytes.size();
  EXPECT_FALSE(b_.payload().take_bytes(rx, Wild<uint64_t>(size - 1), 2, kPieceBytes));
  EXPECT_TRUE(b_.payload().take_bytes(rx, Wild<uint64_t>(size - 1), 1, kPieceBytes));
  EXPECT_FALSE(b_.payload().take_bytes(rx, Wild<uint64_t>(0), kPieceBytes + 1, kPieceBytes));
  EXPECT_FALSE(b_.payload().take_bytes(rx, Wild<uint64_t>(~uint64_t{0}), 2, kPieceBytes));
}

TEST_P(Ends, a_response_of_no_cells_ends_the_connection) {
  b_.publish_response(1);
  EXPECT_TRUE(a_.take_responses([](const std::byte*) { return 0u; }));
  EXPECT_TRUE(a_.broken());
  b_.publish_response(1);
  EXPECT_FALSE(a_.take_responses([](const std::byte*) { return 1u; }));
}

TEST_P(Ends, refusals_that_were_stored_before_an_acknowledgement_are_taken_first) {
  a_.publish_request(1);
  b_->request_rx.cells.advance(1);
  b_.publish_response(1);
  b_.acknowledge_requests();
  int taken = 0;
  const uint64_t consumed = a_.executed([&] {
    a_.take_responses([&](const std::byte*) {
      ++taken;
      return 1u;
    });
  });
  EXPECT_EQ(consumed, 1u);
  EXPECT_EQ(taken, 1);
}

TEST_P(Ends, a_broken_end_is_whole_again_with_another_lane) {
  a_.break_protocol("nonsense");
  EXPECT_TRUE(a_.broken());
  a_.release().reset();
  b_.release().reset();
  EXPECT_FALSE(a_);
  pair_.make(1, 2);
  a_.attach(std::move(pair_.lane_a));
  EXPECT_FALSE(a_.broken());
}

}  // namespace
}  // namespace aperture::transport
