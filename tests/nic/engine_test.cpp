// The engine over queue pairs of other kinds: who is progressed how often, who sleeps and who is
// told.
#include "nic/engine.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <memory>
#include <vector>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "base/doorbell.hpp"
#include "base/event_fd.hpp"
#include "nic/eventually.hpp"

namespace aperture::nic {
namespace {

// Records what the engine does with it, and says what the test wants it to.
struct Recorder final : link::Pollable {
  bool poll(uint64_t) noexcept override {
    ++polled;
    if (pieces > 0) return pieces-- > 0;
    return std::exchange(work, 0) != 0;
  }
  Look look() noexcept override {
    if (pieces > 0) return Look::poll;
    ++looked;
    return std::exchange(work, 0) != 0 ? Look::taken : Look::nothing;
  }
  void fall_asleep(uint64_t) noexcept override {
    asleep = true;
    ++slept;
  }
  void wake_up() noexcept override { asleep = false; }
  bool sleeps_too_deep() noexcept override { return std::exchange(too_deep, false); }
  bool peer_fences() const noexcept override { return fences; }
  bool anything_arrived() const noexcept override { return work != 0; }
  bool needs_polling() const noexcept override { return restless; }
  bool needs_later_look() const noexcept override { return waits; }
  bool has_pending() const noexcept override { return pending; }
  bool needs_wind_up() const noexcept override { return over; }

  uint64_t polled = 0;
  uint64_t looked = 0;
  uint64_t slept = 0;
  int work = 0;
  int pieces = 0;  // of something large, one for each poll
  bool restless = false;
  bool waits = false;
  bool pending = false;
  bool over = false;
  bool asleep = false;
  bool too_deep = false;
  bool fences = true;
};

// A link with something to move, or not.
struct FakeLink final : link::Progress {
  bool progress() noexcept override {
    ++moved;
    drain_eventfd(socket.get());
    return true;
  }
  int fd() const noexcept override { return socket.get(); }

  UniqueFd socket{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  int moved = 0;
};

class LaneInUse : public testing::Test, protected Engine::PollableOwner {
 protected:
  Recorder& add() {
    const EngineGuard guard(*engine_);
    all_.push_back(std::make_unique<Recorder>());
    EXPECT_TRUE(engine_->add_pollable(*all_.back(), *this).ok());
    return *all_.back();
  }
  void wind_up(link::Pollable& one) noexcept override {
    wound_up_.push_back(&one);
    engine_->remove_pollable(one);
  }
  void poll(int times) {
    for (int i = 0; i < times; ++i) engine_->poll();
  }
  bool rung() const {
    pollfd p{engine_->wakers().sleep_fd(), POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
  }

  std::unique_ptr<Engine> engine_ = *Engine::create({.threaded = false});
  std::vector<std::unique_ptr<Recorder>> all_;
  std::vector<link::Pollable*> wound_up_;
};

TEST_F(LaneInUse, each_poll_looks_and_every_sixteenth_progresses_all) {
  Recorder& one = add();
  poll(160);
  EXPECT_EQ(one.looked, 150u);
  EXPECT_EQ(one.polled, 10u);
}

TEST_F(LaneInUse, a_call_goes_on_while_something_moves_until_it_has_enough_and_not_for_ever) {
  Recorder& one = add();
  one.pieces = 5;
  engine_->poll();
  ASSERT_TRUE(engine_->is_look_due()) << "something has moved";
  engine_->look([] { return false; });
  EXPECT_EQ(one.pieces, 0);
  EXPECT_EQ(one.polled, 5u);
  EXPECT_EQ(one.looked, 1u) << "one more, which found nothing";
  one.pieces = 1000;
  engine_->poll();
  engine_->look([] { return false; });
  EXPECT_GT(one.pieces, 980) << "whoever calls wants to come back";
  EXPECT_LT(one.pieces, 998);
  const int before = one.pieces;
  engine_->poll();
  EXPECT_FALSE(engine_->look([] { return true; }));
  EXPECT_EQ(one.pieces, before - 1);
  one.pieces = 0;
  engine_->poll();
  const uint64_t looked = one.looked + one.polled;
  engine_->look([] { return false; });
  EXPECT_EQ(one.looked + one.polled, looked) << "nothing moves";
}

TEST_F(LaneInUse, a_call_does_not_go_on_under_who_has_put_the_engine_to_sleep_to_wait) {
  Recorder& one = add();
  one.pieces = 5;
  engine_->poll();
  ASSERT_TRUE(engine_->sleep().prepare());
  EXPECT_TRUE(engine_->is_look_due());
  engine_->look([] { return false; });
  EXPECT_TRUE(one.asleep) << "its peers would not ring any more";
  EXPECT_EQ(one.pieces, 4);
}

TEST_F(LaneInUse, polls_that_move_nothing_are_looked_at_once_in_so_many) {
  Recorder& one = add();
  const auto polls_until_look = [&] {
    for (uint32_t n = 1; n <= 1000; ++n) {
      engine_->poll();
      if (engine_->is_look_due()) return n;
    }
    return 0u;
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(polls_until_look(), CoreSharing::kPolls) << i;
    engine_->look([i] { return i == 1; });  // whether or not it found something for its caller
  }
  one.pieces = 1;
  EXPECT_EQ(polls_until_look(), 1u);
}

TEST_F(LaneInUse, nothing_is_progressed_once_it_has_been_taken_out) {
  Recorder& one = add();
  Recorder& other = add();
  engine_->remove_pollable(one);
  engine_->remove_pollable(one);  // not there: nothing happens
  poll(32);
  EXPECT_EQ(one.looked + one.polled, 0u);
  EXPECT_EQ(other.looked + other.polled, 32u);
}

TEST_F(LaneInUse, of_forty_the_idle_ones_take_turns_and_one_with_work_is_found) {
  for (int i = 0; i < 40; ++i) add();
  poll(100'000);
  std::vector<uint64_t> before;
  for (const auto& one : all_) before.push_back(one->looked + one->polled);
  poll(1000);
  size_t every_time = 0;
  for (size_t i = 0; i < all_.size(); ++i) {
    const uint64_t times = all_[i]->looked + all_[i]->polled - before[i];
    EXPECT_GT(times, 0u) << i;
    every_time += times >= 1000;
  }
  EXPECT_EQ(every_time, 16u);
  for (const auto& one : all_) {
    one->work = 1;
    poll(64);
    EXPECT_EQ(one->work, 0);
  }
}

TEST_F(LaneInUse, one_that_waits_for_its_peer_stays_hot) {
  for (int i = 0; i < 40; ++i) add().pending = i < 3;
  poll(100'000);
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = all_[i]->looked + all_[i]->polled;
    poll(100);
    EXPECT_GE(all_[i]->looked + all_[i]->polled, before + 100);
  }
}

TEST_F(LaneInUse, what_is_over_goes_to_its_owner_once) {
  Recorder& one = add();
  Recorder& other = add();
  one.over = true;
  poll(64);
  ASSERT_EQ(wound_up_.size(), 1u);
  EXPECT_EQ(wound_up_[0], &one);
  const uint64_t before = other.looked + other.polled;
  poll(16);
  EXPECT_EQ(other.looked + other.polled, before + 16);
}

TEST_F(LaneInUse, sleep_marks_all_of_them_and_a_poll_wakes_them) {
  Recorder& one = add();
  Recorder& other = add();
  ASSERT_TRUE(engine_->sleep().prepare());
  EXPECT_TRUE(one.asleep);
  EXPECT_TRUE(other.asleep);
  engine_->poll();
  EXPECT_FALSE(one.asleep);
  EXPECT_FALSE(other.asleep);
}

TEST_F(LaneInUse, no_sleep_while_one_has_work_or_must_be_polled_or_is_over) {
  Recorder& one = add();
  one.work = 1;
  EXPECT_FALSE(engine_->sleep().prepare());
  EXPECT_FALSE(one.asleep);
  one.work = 0;
  one.restless = true;
  EXPECT_FALSE(engine_->sleep().prepare());
  one.restless = false;
  one.over = true;
  EXPECT_FALSE(engine_->sleep().prepare());
  one.over = false;
  EXPECT_TRUE(engine_->sleep().prepare());
}

TEST_F(LaneInUse, sleeping_engine_looks_again_while_one_waits_for_its_peer) {
  Recorder& one = add();
  one.waits = true;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(engine_->sleep().prepare());
    EXPECT_TRUE(one.asleep);
    pollfd p{engine_->wakers().sleep_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&p, 1, 10'000), 1) << "nobody rang, and no time has passed";
    engine_->poll();
    EXPECT_FALSE(rung()) << "quiet while it polls";
  }
  one.waits = false;
  ASSERT_TRUE(engine_->sleep().prepare());
  pollfd p{engine_->wakers().sleep_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 20), 0);
}

TEST_F(LaneInUse, sleep_costs_a_heavy_barrier_only_where_a_peer_promises_no_fence) {
  Recorder& one = add();
  add();
  const auto barriers_of_a_sleep = [&] {
    const uint64_t before = heavy_barriers_passed();
    EXPECT_TRUE(engine_->sleep().prepare());
    engine_->poll();
    return heavy_barriers_passed() - before;
  };
  EXPECT_EQ(barriers_of_a_sleep(), 0u);
  one.fences = false;
  EXPECT_EQ(barriers_of_a_sleep(), 1u);
}

TEST_F(LaneInUse, what_is_posted_in_a_sleep_that_is_too_deep_for_it_is_looked_at_once_more) {
  Recorder& one = add();
  ASSERT_TRUE(engine_->sleep().prepare());
  engine_->on_posted();
  EXPECT_FALSE(rung());
  one.too_deep = true;
  engine_->on_posted();
  EXPECT_FALSE(rung()) << "nothing had arrived";
  one.too_deep = true;
  one.work = 1;  // and its peer has not rung for it
  engine_->on_posted();
  EXPECT_TRUE(rung());
  EXPECT_TRUE(one.asleep);
}

TEST_F(LaneInUse, a_doorbell_is_hushed_while_awake_and_never_while_asleep) {
  add();
  ASSERT_TRUE(engine_->sleep().prepare());
  engine_->post([] {});
  engine_->sleep().hush();
  EXPECT_TRUE(rung()) << "that would be a lost wake-up";
  engine_->poll();
  engine_->sleep().hush();
  EXPECT_FALSE(rung());
}

TEST_F(LaneInUse, a_doorbell_is_read_once_for_a_sleep_by_who_comes_after_it) {
  add();
  EXPECT_FALSE(engine_->sleep().goes_on()) << "awake";
  ASSERT_TRUE(engine_->sleep().prepare());
  EXPECT_TRUE(engine_->sleep().goes_on());
  engine_->post([] {});
  EXPECT_FALSE(engine_->sleep().goes_on()) << "it was rung";
  engine_->sleep().hush_after();
  EXPECT_TRUE(rung()) << "that would be a lost wake-up";
  engine_->poll();
  engine_->sleep().hush_after();
  EXPECT_FALSE(rung());
  engine_->wakers().ring();  // late
  engine_->sleep().hush_after();
  EXPECT_TRUE(rung()) << "nobody has slept since";
  engine_->sleep().hush();
  EXPECT_FALSE(rung());
}

// Of which one thread of the application's says that it waits.
class LeftToTheApplication : public LaneInUse {
 protected:
  LeftToTheApplication() {
    auto engine = Engine::create({.threaded = true, .auto_progress = true});
    EXPECT_TRUE(engine);
    engine_ = *std::move(engine);
  }
  ~LeftToTheApplication() override { engine_.reset(); }  // before what its control thread polls
  void fall_asleep() {
    const EngineGuard guard(*engine_);
    while (!engine_->sleep().prepare()) engine_->poll();
    engine_->auto_progress().leave_to_application();
  }
  bool is_done(const Recorder& one) {
    const EngineGuard guard(*engine_);
    return one.work == 0;
  }
};

TEST_F(LeftToTheApplication, a_ring_that_it_does_not_answer_is_answered_by_the_control_thread) {
  Recorder& one = add();
  for (int round = 0; round < 5; ++round) {
    fall_asleep();
    {
      const EngineGuard guard(*engine_);
      one.work = 1;
    }
    ring_doorbell(engine_->wakers().doorbell_fd());
    EXPECT_TRUE(test::eventually([&] { return is_done(one); })) << round;
  }
}

TEST_F(LeftToTheApplication, a_ring_that_it_answers_at_once_needs_no_control_thread) {
  Recorder& one = add();
  int alone = 0;
  for (int round = 0; round < 100; ++round) {
    fall_asleep();
    {
      const EngineGuard guard(*engine_);
      one.work = 1;
    }
    ring_doorbell(engine_->wakers().doorbell_fd());
    pollfd p{engine_->wakers().sleep_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, 10'000), 1);
    const EngineGuard guard(*engine_);
    alone += one.work;
    engine_->poll();
  }
  // it steps in for who is late, and on a busy machine everybody is now and then
  EXPECT_GT(alone, 0);
}

// A ring stays where it is while nobody goes to sleep: each tick of the control thread finds it.
TEST_F(LeftToTheApplication, an_engine_that_is_polled_all_the_time_is_not_put_to_sleep_for_a_ring) {
  Recorder& one = add();
  const auto sleeps_in_some_ticks = [&] {
    uint64_t before = 0;
    {
      const EngineGuard guard(*engine_);
      engine_->poll();
      before = one.slept;
    }
    ring_doorbell(engine_->wakers().doorbell_fd());
    const uint64_t end = now_ns() + 20 * kNsPerMs;
    while (now_ns() < end) {
      {
        const EngineGuard guard(*engine_);
        engine_->poll();
      }
      const uint64_t next =
          now_ns() + 200'000;  // some polls in each tick, and none while the control thread looks
      while (now_ns() < next) cpu_relax();
    }
    const EngineGuard guard(*engine_);
    return one.slept - before;
  };
  // on a busy machine this thread may lose its processor for long enough to be taken for away
  EXPECT_TRUE(test::eventually([&] { return sleeps_in_some_ticks() == 0; }));
}

TEST_F(LaneInUse, a_newcomer_wakes_a_sleeping_engine) {
  Recorder& one = add();
  ASSERT_TRUE(engine_->sleep().prepare());
  Recorder& late = add();
  EXPECT_FALSE(one.asleep);
  EXPECT_FALSE(late.asleep);
  ASSERT_TRUE(engine_->sleep().prepare());
  EXPECT_FALSE(rung());
  engine_->post([] {});
  EXPECT_TRUE(rung());
}

TEST_F(LaneInUse, a_link_is_progressed_once_in_each_poll_however_many_lanes_there_are) {
  for (int i = 0; i < 40; ++i) add();
  FakeLink link, other;
  ASSERT_TRUE(engine_->add_progress(link).ok());
  ASSERT_TRUE(engine_->add_progress(other).ok());
  poll(100);
  EXPECT_EQ(link.moved, 100);
  engine_->remove_progress(link);
  engine_->remove_progress(link);  // not there: nothing happens
  poll(10);
  EXPECT_EQ(link.moved, 100);
  EXPECT_EQ(other.moved, 110);
  engine_->remove_progress(other);
  poll(10);
  EXPECT_EQ(other.moved, 110);
}

TEST_F(LaneInUse, a_link_wakes_a_sleeping_engine_by_its_descriptor_and_no_other) {
  FakeLink link;
  ASSERT_TRUE(engine_->add_progress(link).ok());
  signal_eventfd(link.socket.get());
  EXPECT_FALSE(rung()) << "it is awake, and polls find it";
  ASSERT_TRUE(engine_->sleep().prepare());
  EXPECT_TRUE(rung()) << "what was there before counts";
  engine_->poll();
  EXPECT_EQ(link.moved, 1);
  EXPECT_FALSE(rung());
  ASSERT_TRUE(engine_->sleep().prepare());
  EXPECT_FALSE(rung());
  signal_eventfd(link.socket.get());
  EXPECT_TRUE(rung());
  engine_->remove_progress(link);
  EXPECT_FALSE(rung());
}

TEST_F(LaneInUse, a_link_that_comes_while_the_engine_sleeps_wakes_it) {
  Recorder& one = add();
  FakeLink link;
  ASSERT_TRUE(engine_->sleep().prepare());
  ASSERT_TRUE(engine_->add_progress(link).ok());
  EXPECT_FALSE(one.asleep);
  ASSERT_TRUE(engine_->sleep().prepare());
  signal_eventfd(link.socket.get());
  EXPECT_TRUE(rung());
  engine_->remove_progress(link);
}

}  // namespace
}  // namespace aperture::nic
