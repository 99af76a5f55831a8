// Peers that make no accesses are not asked at each close, and are let in again when they want to
// be.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <deque>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

using Outcome = DirectResult::Outcome;

class Dormant : public TableTest {
 protected:
  static constexpr size_t kPeers = Accessors::kAlwaysAwake + 4;

  void SetUp() override {
    TableTest::SetUp();
    view = std::make_unique<PeerKeyView>(
        std::move(PeerKeyView::map(UniqueFd(::dup(table->own_file().fd())),
                                   table->own_file().size_bytes()))
            .value());
    for (size_t i = 0; i < kPeers; ++i) {
      peers.emplace_back();
      ASSERT_TRUE(table->accessors().attach(&peers.back(), ::getpid()));
      slots.push_back(peers.back().claim());
    }
    memory.resize(64);
    region = add(spec_of(reinterpret_cast<uint64_t>(memory.data()), memory.size()));
  }
  void TearDown() override {
    for (SlotArray& peer : peers) EXPECT_TRUE(table->accessors().detach(&peer));
  }
  // That peer's write of one byte.
  DirectResult write(size_t peer, char byte, uint64_t key) {
    iovec local{&byte, 1};
    const DirectAsk ask{.pd = kPd,
                        .key = key,
                        .addr = reinterpret_cast<uint64_t>(memory.data()),
                        .local = &local,
                        .local_count = 1};
    return view->write(::getpid(), *slots[peer], ask, nullptr);
  }
  Outcome write(size_t peer, char byte) { return write(peer, byte, region.key).outcome; }
  void look() {
    clock += Accessors::kLookPauseNs;
    table->accessors().look_for_idle(clock);
  }
  bool is_dormant(size_t peer) const { return slots[peer]->is_dormant(); }

  std::deque<SlotArray> peers;  // a deque: they are attached where they stay
  std::vector<AccessorSlot*> slots;
  std::vector<char> memory;
  RegionHandle region;
  std::unique_ptr<PeerKeyView> view;
  uint64_t clock = 0;
};

TEST_F(Dormant, peer_without_accesses_goes_through_the_ring_until_it_is_woken) {
  ASSERT_EQ(write(0, 'a'), Outcome::done);
  look();
  EXPECT_FALSE(is_dormant(0)) << "it has made an access";
  EXPECT_TRUE(is_dormant(1));
  EXPECT_EQ(table->accessors().awake(), 1u);
  EXPECT_EQ(write(0, 'b'), Outcome::done);
  EXPECT_EQ(write(1, 'c'), Outcome::through_ring);
  EXPECT_EQ(memory[0], 'b');
  EXPECT_EQ(slots[1]->pin.load(), 0u);
  table->accessors().wake(&peers[1]);
  EXPECT_EQ(table->accessors().awake(), 2u);
  EXPECT_EQ(write(1, 'd'), Outcome::done);
  EXPECT_EQ(memory[0], 'd');
}

TEST_F(Dormant, each_pause_without_an_access_counts_anew) {
  for (int round = 0; round < 3; ++round) {
    for (size_t peer = 0; peer < kPeers; ++peer) ASSERT_EQ(write(peer, 'a'), Outcome::done);
    look();
    EXPECT_EQ(table->accessors().awake(), kPeers);
  }
  table->accessors().look_for_idle(clock + Accessors::kLookPauseNs - 1);
  EXPECT_EQ(table->accessors().awake(), kPeers) << "too early";
  look();
  EXPECT_EQ(table->accessors().awake(), 0u);
}

TEST_F(Dormant, peer_that_stands_inside_stays_awake) {
  slots[2]->pin.store(region.generation);
  look();
  EXPECT_FALSE(is_dormant(2));
  look();
  EXPECT_FALSE(is_dormant(2)) << "though it has not moved since";
  EXPECT_TRUE(is_dormant(3));
  EXPECT_EQ(table->revocation().revoke_now(region).error(), Errc::busy) << "and is asked";
  slots[2]->pin.store(0);
  EXPECT_TRUE(table->revocation().revoke(region, now_ns() + 1'000'000'000));
}

TEST_F(Dormant, region_closed_meanwhile_is_closed_to_who_wakes) {
  look();
  ASSERT_EQ(table->accessors().awake(), 0u);
  // what a peer leaves in its slots while it is dormant holds up nobody
  slots[4]->pin.store(region.generation);
  EXPECT_TRUE(table->revocation().revoke_now(region));
  slots[4]->pin.store(0);
  table->accessors().wake(&peers[4]);
  const DirectResult got = write(4, 'x', region.key);
  EXPECT_EQ(got.outcome, Outcome::denied);
  EXPECT_EQ(got.denial, Denial::closed);
  EXPECT_EQ(memory[0], 0);
}

TEST_F(Dormant, peer_that_was_woken_is_asked_at_closes) {
  look();
  table->accessors().wake(&peers[5]);
  slots[5]->pin.store(region.generation);
  EXPECT_EQ(table->revocation().revoke_now(region).error(), Errc::busy);
  slots[5]->pin.store(0);
  EXPECT_TRUE(table->revocation().revoke(region, now_ns() + 1'000'000'000));
}

TEST_F(Dormant, waking_twice_or_what_is_not_there_changes_nothing) {
  look();
  table->accessors().wake(nullptr);
  SlotArray unknown{};
  table->accessors().wake(&unknown);
  EXPECT_EQ(table->accessors().awake(), 0u);
  table->accessors().wake(&peers[0]);
  table->accessors().wake(&peers[0]);
  EXPECT_EQ(table->accessors().awake(), 1u);
}

TEST_F(Dormant, detached_slots_never_open_again) {
  look();
  ASSERT_TRUE(is_dormant(0));
  EXPECT_TRUE(table->accessors().detach(&peers[0]));
  EXPECT_FALSE(is_dormant(0));
  table->accessors().wake(&peers[0]);
  EXPECT_EQ(write(0, 'x'), Outcome::through_ring);
}

TEST_F(Dormant, slots_that_wait_to_be_detached_are_not_opened_by_a_look) {
  StagedProbe probe;  // it runs
  table->accessors().set_thread_probe(&probe);
  slots[0]->pin.store(region.generation);
  ASSERT_FALSE(table->accessors().detach(&peers[0]));
  look();
  EXPECT_EQ(slots[0]->closed.load(), AccessorSlot::kClosed);
  EXPECT_EQ(write(0, 'x'), Outcome::through_ring);
  slots[0]->pin.store(0);
  for (int round = 0; round < 3; ++round) look();
  EXPECT_EQ(slots[0]->closed.load(), AccessorSlot::kClosed);
  EXPECT_TRUE(table->accessors().detach(&peers[0]));
}

TEST_F(Dormant, closing_regions_finds_the_idle_peers) {
  const auto close_many = [&] {
    for (uint32_t i = 0; i < Accessors::kClosesBetweenLooks; ++i) {
      ASSERT_TRUE(table->revocation().revoke_now(add()));
    }
  };
  ::usleep(Accessors::kLookPauseNs / 1000);
  close_many();
  EXPECT_EQ(table->accessors().awake(), 0u);
}

TEST_F(Dormant, few_peers_are_asked_for_ever) {
  while (peers.size() > Accessors::kAlwaysAwake) {
    ASSERT_TRUE(table->accessors().detach(&peers.back()));
    peers.pop_back();
  }
  for (int round = 0; round < 2; ++round) {
    ::usleep(Accessors::kLookPauseNs / 1000);
    for (uint32_t i = 0; i < Accessors::kClosesBetweenLooks; ++i) {
      ASSERT_TRUE(table->revocation().revoke_now(add()));
    }
  }
  EXPECT_EQ(table->accessors().awake(), Accessors::kAlwaysAwake);
}

}  // namespace
}  // namespace aperture::protect
