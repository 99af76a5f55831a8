// Revocation rule by rule: pins, the zeroed iovec, deadlines, the fate of the pinning thread,
// detaching.
#include <thread>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

class Revoke : public TableTest {
 protected:
  void SetUp() override {
    TableTest::SetUp();
    table->accessors().set_thread_probe(&probe);
    ASSERT_TRUE(table->accessors().attach(&slots, ::getpid()));
  }
  void pin(size_t i, uint64_t generation) {
    slots.slots[i].riov_len.store(77);
    slots.slots[i].tid.store(4242);
    slots.slots[i].start_time.store(99);
    slots.slots[i].pin.store(generation);
  }
  uint64_t soon() { return now_ns() + 3'000'000; }

  std::unique_ptr<SlotArray> memory = std::make_unique<SlotArray>();
  SlotArray& slots = *memory;
  StagedProbe probe;
};

TEST_F(Revoke, without_pins_it_ends_at_once_and_asks_nobody) {
  close(add());
  EXPECT_EQ(probe.looks, 0);
}

TEST_F(Revoke, region_in_force_is_not_quiet_and_a_poll_closes_nothing) {
  RegionSpec spec = spec_with({.key = 9});
  const RegionHandle first = add(spec);
  EXPECT_FALSE(table->revocation().is_quiet(first));
  EXPECT_FALSE(table->revocation().poll(first));
  EXPECT_EQ(denial(ask_of(9)), Denial::none);
  close(first);
  EXPECT_TRUE(table->revocation().poll(first)) << "closed for good";
  EXPECT_EQ(table->entries().regions(), 0u);
  const RegionHandle second = add(spec);
  EXPECT_EQ(second.index, first.index);
  EXPECT_TRUE(table->revocation().poll(first)) << "still closed, whoever lives there now";
  EXPECT_EQ(denial(ask_of(9)), Denial::none);
  EXPECT_EQ(table->entries().regions(), 1u);
  close(second);
}

TEST_F(Revoke, pin_of_a_running_thread_is_busy_refused_and_finished_later) {
  const RegionHandle r = add();
  pin(3, r.generation);
  EXPECT_EQ(table->revocation().revoke(r, soon()).error(), Errc::busy);
  EXPECT_EQ(denial(ask_of(r.key)), Denial::revoking);
  EXPECT_EQ(slots.slots[3].riov_len.load(), 0u);  // fenced
  EXPECT_EQ(probe.last_tid, 4242);
  EXPECT_EQ(probe.last_start, 99u);
  EXPECT_EQ(table->entries().regions(), 1u);
  EXPECT_EQ(table->revocation().revoke(r, soon()).error(),
            Errc::busy);  // again: still no false success
  slots.slots[3].pin.store(0);
  EXPECT_TRUE(table->revocation().revoke(r, soon()));
  EXPECT_EQ(denial(ask_of(r.key)), Denial::closed);
  EXPECT_EQ(table->entries().regions(), 0u);
}

TEST_F(Revoke, begin_fences_what_is_pinned_already) {
  const RegionHandle r = add();
  pin(2, r.generation);
  pin(3, r.generation + 1);
  ASSERT_TRUE(table->revocation().begin(r));
  EXPECT_EQ(slots.slots[2].riov_len.load(), 0u);
  EXPECT_EQ(slots.slots[3].riov_len.load(), 77u);
}

TEST_F(Revoke, stopped_or_dead_thread_does_not_hold_it_up_but_is_fenced) {
  for (const ThreadState state : {ThreadState::stopped, ThreadState::gone}) {
    const RegionHandle r = add();
    pin(0, r.generation);
    probe.state = state;
    EXPECT_TRUE(table->revocation().revoke(r, soon()));
    EXPECT_EQ(slots.slots[0].riov_len.load(), 0u);
  }
}

TEST_F(Revoke, pin_of_another_region_is_left_alone) {
  const RegionHandle r = add();
  const RegionHandle other = add();
  pin(0, other.generation);
  EXPECT_TRUE(table->revocation().revoke(r, soon()));
  EXPECT_EQ(slots.slots[0].riov_len.load(), 77u);
  EXPECT_EQ(probe.looks, 0);
  EXPECT_EQ(table->revocation().revoke(other, soon()).error(), Errc::busy);
}

TEST_F(Revoke, late_pin_after_the_first_scan_is_fenced_too) {
  const RegionHandle r = add();
  ASSERT_TRUE(table->revocation().begin(r));
  pin(5, r.generation);
  EXPECT_FALSE(table->revocation().poll(r));
  EXPECT_EQ(slots.slots[5].riov_len.load(), 0u);
  probe.state = ThreadState::stopped;
  EXPECT_TRUE(table->revocation().poll(r));
  EXPECT_TRUE(table->revocation().poll(r));  // and stays so
}

TEST_F(Revoke, every_slot_of_every_array_is_looked_at) {
  const auto second = std::make_unique<SlotArray>();
  SlotArray& more = *second;
  ASSERT_TRUE(table->accessors().attach(&more, ::getpid()));
  for (SlotArray* array : {&slots, &more}) {
    for (AccessorSlot& slot : array->slots) {
      const RegionHandle r = add();
      slot.pin.store(r.generation);
      EXPECT_EQ(table->revocation().revoke(r, now_ns()).error(), Errc::busy);
      slot.pin.store(0);
      EXPECT_TRUE(table->revocation().revoke(r, soon()));
    }
  }
}

TEST_F(Revoke, two_threads_closing_one_region_both_come_back) {
  for (int i = 0; i < 200; ++i) {
    const RegionHandle r = add();
    Errc a = Errc::ok, b = Errc::ok;
    std::thread other([&] { a = table->revocation().revoke(r, now_ns() + 1'000'000'000).error(); });
    b = table->revocation().revoke(r, now_ns() + 1'000'000'000).error();
    other.join();
    EXPECT_TRUE(a == Errc::ok || a == Errc::no_entry);
    EXPECT_TRUE(b == Errc::ok || b == Errc::no_entry);
    EXPECT_TRUE(a == Errc::ok || b == Errc::ok);
  }
  EXPECT_EQ(table->entries().regions(), 0u);
}

TEST_F(Revoke, detached_slots_hold_nothing_up) {
  const RegionHandle r = add();
  pin(0, r.generation);
  EXPECT_FALSE(table->accessors().detach(&slots));
  EXPECT_EQ(slots.slots[15].closed.load(), 1u);
  EXPECT_EQ(slots.slots[0].riov_len.load(), 0u);
  EXPECT_EQ(table->revocation().revoke(r, soon()).error(), Errc::busy);  // still attached
  slots.slots[0].pin.store(0);
  EXPECT_TRUE(table->accessors().detach(&slots));
  EXPECT_TRUE(table->accessors().detach(&slots));
  pin(0, r.generation);
  EXPECT_TRUE(table->revocation().revoke(r, soon()));
}

TEST_F(Revoke, slots_of_a_dead_accessor_can_be_detached_with_their_pins) {
  const RegionHandle r = add();
  pin(0, r.generation);
  probe.state = ThreadState::gone;
  EXPECT_TRUE(table->accessors().detach(&slots));
  EXPECT_TRUE(table->revocation().revoke(r, soon()));
}

}  // namespace
}  // namespace aperture::protect
