// When an initiator takes the owner of a request for away: not while it polls, and later where it
// was wrong before. Lower bounds of time alone are asserted, which hold on a busy machine, too.
#include "transport/one_sided.hpp"

#include "base/barrier.hpp"
#include "base/event_fd.hpp"
#include "link/lane_pair.hpp"

namespace aperture::transport {
namespace {

using link::test::LanePair;
using link::test::LinkKind;

struct Piece {
  uint64_t pos;
  uint32_t cells;
  uint64_t len = 0;
};

class Patience : public testing::Test {
 protected:
  Patience() : pair_(LinkKind::direct) {
    pair_.make(1, 2);
    a_.attach(std::move(pair_.lane_a));
    b_.attach(std::move(pair_.lane_b));
    initiator_.begin();
  }
  ~Patience() override { initiator_.end(); }

  // How long a request at pos has to stand there until it is to be claimed; owner() is called while
  // it is waited for.
  template <typename Owner>
  uint64_t patience_ns(uint64_t pos, Owner&& owner) {
    const uint64_t began = now_ns();
    while (!target_.has_stalled(pos, 0) && now_ns() - began < kLongNs) owner();
    return now_ns() - began;
  }
  uint64_t patience_ns(uint64_t pos) {
    return patience_ns(pos, [] {});
  }
  // What becomes of a claim of a request that the owner is at, or is not.
  OneSided::Claimed claim(uint64_t pos, bool owner_is_there) {
    b_->request_rx.words().executing.store(pos + (owner_is_there ? 1 : 0));
    Inflight<Piece> pieces;
    EXPECT_TRUE(pieces.begin(1));
    pieces.retire_through(pos);
    pieces.note({pos, 1});
    uint64_t end = 0;
    const auto claimed = initiator_.claim(pieces, pos, end, [](const Piece&) { return true; });
    if (claimed == OneSided::Claimed::done) {
      EXPECT_EQ(end, pos + 1);
    }
    return claimed;
  }

  // The owner's doorbell, since this was last asked.
  bool has_rung() const {
    const bool rung = is_readable(pair_.bell_b());
    drain_eventfd(pair_.bell_b());
    return rung;
  }

  static constexpr uint64_t kLongNs = 50'000'000;
  LanePair pair_;
  LaneEnd a_, b_;
  Target target_{a_};
  OneSided initiator_{a_, target_};
};

TEST_F(Patience, ends_for_an_owner_that_does_not_poll) {
  const uint64_t waited = patience_ns(0);
  EXPECT_GE(waited, kStallNs * 9 / 10);
  EXPECT_TRUE(target_.has_stalled(0, 0));
}

TEST_F(Patience, does_not_end_while_the_owner_polls) {
  uint64_t polls = 0;
  EXPECT_GE(patience_ns(0, [&] { b_->request_rx.count_poll(++polls); }), kLongNs);
}

TEST_F(Patience, ends_sooner_for_a_claim_than_for_a_ring_which_is_not_repeated_at_once) {
  const uint64_t began = now_ns();
  while (!has_rung() && now_ns() - began < kLongNs) {
    if (target_.has_stalled(0, 0)) target_.ring_stalled();
  }
  const uint64_t rung = now_ns();
  EXPECT_GE(rung - began, kRingAfterNs * 9 / 10);
  EXPECT_LT(rung - began, kLongNs) << "it was not rung";
  do {
    if (target_.has_stalled(0, 0)) target_.ring_stalled();
  } while (now_ns() - rung < kRingEveryNs / 2);
  if (now_ns() - rung < kRingEveryNs * 9 / 10) {
    EXPECT_FALSE(has_rung());
  }
}

TEST_F(Patience, does_not_ring_where_another_lane_to_that_engine_just_has) {
  link::Ringing ringing;
  a_->ringing = &ringing;
  EXPECT_TRUE(ringing.rings_again(ticks(), 1));
  const uint64_t began = now_ns();
  while (!has_rung() && now_ns() - began < kLongNs) {
    if (target_.has_stalled(0, 0)) target_.ring_stalled();
  }
  const uint64_t waited = now_ns() - began;
  EXPECT_GE(waited, kRingEveryNs * 9 / 10);
  EXPECT_LT(waited, kLongNs) << "it was not rung";
}

TEST_F(Patience, is_longer_after_each_claim_that_the_owner_had_come_to_first_and_shorter_again) {
  uint64_t pos = 0;
  for (int i = 0; i < 5; ++i, ++pos) {
    EXPECT_EQ(claim(pos, true), OneSided::Claimed::not_ours);
  }
  EXPECT_GE(patience_ns(pos), 32 * kStallNs * 9 / 10);
  for (int i = 0; i < 5; ++i, ++pos) {
    EXPECT_EQ(claim(pos, false), OneSided::Claimed::done);
  }
  patience_ns(pos);
  EXPECT_TRUE(target_.has_stalled(pos, 0));
}

TEST_F(Patience, begins_anew_once_an_owner_that_was_away_polls) {
  EXPECT_EQ(claim(0, false), OneSided::Claimed::done);
  EXPECT_TRUE(target_.is_known_away());
  b_->request_rx.count_poll(16);
  EXPECT_FALSE(target_.is_known_away());
}

TEST_F(Patience, is_lost_with_an_owner_that_lets_wait_and_comes_back_when_it_comes_by_itself) {
  uint64_t pos = 0;
  uint64_t polls = 0;
  for (; pos < kSurelyAway; ++pos) EXPECT_EQ(claim(pos, false), OneSided::Claimed::done);
  uint32_t accesses = 1;
  for (; target_.is_away(8); ++accesses) b_->request_rx.count_poll(++polls);
  EXPECT_EQ(accesses, kTryAgainAfter - kSurelyAway + 1) << "that one waits for it";
  EXPECT_FALSE(target_.is_away(8));
  for (uint32_t i = 0; i < kSurelyAway; ++i, ++pos) {
    EXPECT_FALSE(target_.surely_polls());
    EXPECT_FALSE(target_.has_stalled(pos, 0));
  }
  EXPECT_TRUE(target_.surely_polls());
  EXPECT_EQ(claim(pos, false), OneSided::Claimed::done);
  EXPECT_FALSE(target_.surely_polls());
}

// Its posts may be copies as ours are: it is not back within what a claim costs.
TEST_F(Patience, with_an_owner_that_is_tried_again_is_a_share_of_the_time_since) {
  uint64_t pos = 0;
  for (; pos < kSurelyAway; ++pos) EXPECT_EQ(claim(pos, false), OneSided::Claimed::done);
  const uint64_t since = now_ns();
  while (now_ns() - since < 20'000'000) continue;
  while (target_.is_away(8)) continue;
  EXPECT_GE(patience_ns(pos), 20'000'000 / kTryShare * 9 / 10);
}

TEST_F(Patience, comes_back_for_a_large_access_with_an_owner_that_polls_all_the_time) {
  uint64_t pos = 0;
  for (; pos < kSurelyAway; ++pos) EXPECT_EQ(claim(pos, false), OneSided::Claimed::done);
  EXPECT_TRUE(target_.is_away(kClaimChunk));
  b_->request_rx.count_poll(kPollsInACopy - 1);
  EXPECT_TRUE(target_.is_away(kClaimChunk)) << "it may do something else meanwhile";
  b_->request_rx.count_poll(2 * kPollsInACopy);
  EXPECT_TRUE(target_.is_away(kClaimChunk - 1)) << "a copy takes no longer than to wait for it";
  EXPECT_FALSE(target_.is_away(kClaimChunk));
  for (uint32_t i = 0; i < kSurelyAway - 1; ++i) {
    EXPECT_EQ(claim(pos++, false), OneSided::Claimed::done);
  }
  EXPECT_TRUE(target_.is_away(kClaimChunk)) << "it did not come then";
}

TEST_F(Patience, is_kept_with_heavy_barriers_that_are_counted) {
  const uint64_t before = heavy_barriers_passed();
  EXPECT_EQ(claim(0, false), OneSided::Claimed::done);
  EXPECT_EQ(heavy_barriers_passed(), before + 1);
  EXPECT_EQ(claim(1, true), OneSided::Claimed::not_ours);  // a look ahead spares it
  EXPECT_EQ(heavy_barriers_passed(), before + 1);
}

class Run : public Patience {
 protected:
  Run() {
    EXPECT_TRUE(pieces_.begin(64));
    b_->request_rx.words().executing.store(0);
  }
  void note(uint64_t pos, uint32_t cells, uint64_t len) { pieces_.note({pos, cells, len}); }
  // Where the last piece of a claim begins, if the one at `except` must not be claimed.
  uint64_t last(uint64_t except = ~uint64_t{0}) {
    return OneSided::last_to_claim(
        pieces_, [=](const Piece& p) { return p.pos != except; },
        [](const Piece& p) { return p.len; });
  }
  Inflight<Piece> pieces_;
};

TEST_F(Run, is_of_pieces_that_adjoin_and_may_be_claimed) {
  note(0, 1, 512);
  EXPECT_EQ(last(), 0u);
  note(1, 2, 512);
  note(3, 1, 512);
  EXPECT_EQ(last(), 3u);
  EXPECT_EQ(last(3), 1u);
  note(5, 1, 512);  // a message stands between
  EXPECT_EQ(last(), 3u);
}

TEST_F(Run, is_no_more_than_its_owner_can_wait_for_or_one_piece) {
  note(0, 1, 10 * kClaimChunk);
  note(1, 1, 1);
  EXPECT_EQ(last(), 0u);
  pieces_.retire_through(1);
  for (uint64_t pos = 2; pos < 40; ++pos) note(pos, 1, kClaimChunk / 8);
  EXPECT_EQ(last(), 8u);  // the byte, and seven eighths
}

// Somebody has to keep polling for as long as a claim may come.
TEST_F(Run, is_to_be_expected_while_the_first_that_is_not_executed_may_be_claimed) {
  const auto any = [](const Piece&) { return true; };
  const auto none = [](const Piece&) { return false; };
  EXPECT_FALSE(initiator_.may_claim_head(pieces_, any)) << "there is none";
  note(1, 1, 8);
  EXPECT_FALSE(initiator_.may_claim_head(pieces_, any)) << "something else stands before it";
  pieces_.retire_through(1);
  EXPECT_TRUE(initiator_.may_claim_head(pieces_, any));
  EXPECT_FALSE(initiator_.may_claim_head(pieces_, none));
  b_->request_rx.words().executing.store(2);
  EXPECT_FALSE(initiator_.may_claim_head(pieces_, any)) << "its owner is at it";
}

TEST_F(Run, ends_with_the_first_that_is_for_its_owner) {
  for (uint64_t pos = 0; pos < 8; pos += 2) note(pos, 2, 8);
  std::vector<uint64_t> copied;
  uint64_t end = 0;
  const auto copy = [&](const Piece& p) {
    copied.push_back(p.pos);
    return p.pos != 4;
  };
  EXPECT_EQ(initiator_.claim(pieces_, last(), end, copy), OneSided::Claimed::done);
  EXPECT_EQ(copied, (std::vector<uint64_t>{0, 2, 4}));
  EXPECT_EQ(end, 4u);
  EXPECT_EQ(b_->request_rx.words().claim.load(), claim_word(2, ClaimState::done));
}

TEST_F(Run, is_given_back_whole_where_its_first_is_for_its_owner) {
  note(0, 1, 8);
  note(1, 1, 8);
  uint64_t end = 0;
  const auto nothing = [](const Piece&) { return false; };
  EXPECT_EQ(initiator_.claim(pieces_, last(), end, nothing), OneSided::Claimed::returned);
  EXPECT_EQ(b_->request_rx.words().claim.load(), 0u);
}

}  // namespace
}  // namespace aperture::transport
