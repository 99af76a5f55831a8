// Deadlines of states: whose they are, and what ends them.

#include "cm/life.hpp"

#include "cm/both_sides.hpp"

namespace aperture::cm::test {
namespace {

constexpr uint64_t kSoonNs = 10'000'000;

class CmLife : public testing::Test {
 protected:
  CmLife() {
    on_control([](Life&) {});  // it is there
  }
  ~CmLife() override {
    control().run([&] { life_.reset(); });
  }

  template <typename Fn>
  void on_control(Fn&& fn) {
    control().run([&] {
      if (!life_) make();
      fn(*life_);
    });
  }
  void ask() {
    on_control([](Life& life) {
      for (const Input i : {Input::bind, Input::resolve_addr, Input::resolve_route, Input::connect})
        EXPECT_TRUE(life.step(i));
    });
  }
  // The states that have expired within that time, which is cut short by the first.
  std::vector<State> expired_within(int ms) {
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return !expired_.empty(); });
    return expired_;
  }
  State state() {
    State now{};
    on_control([&](Life& life) { now = life.state(); });
    return now;
  }

 private:
  void make() {
    life_ = std::make_unique<Life>(control());
    life_->on_expired = [this](State before) {
      const std::lock_guard guard(mutex_);
      expired_.push_back(before);
      came_.notify_one();
    };
  }

  std::unique_ptr<Life> life_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<State> expired_;
};

TEST_F(CmLife, a_state_that_lasts_too_long_has_taken_the_step_when_it_is_told) {
  ask();
  on_control([](Life& life) { life.wait_at_most(kSoonNs); });
  EXPECT_EQ(expired_within(20000), std::vector{State::req_sent});
  EXPECT_EQ(state(), State::over);
}

TEST_F(CmLife, a_state_that_is_left_does_not_expire) {
  ask();
  on_control([](Life& life) {
    life.wait_at_most(kSoonNs);
    EXPECT_TRUE(life.step(Input::rep));
  });
  EXPECT_TRUE(expired_within(60).empty());
  EXPECT_EQ(state(), State::rep_received);
}

TEST_F(CmLife, a_step_that_stays_where_it_is_leaves_the_deadline) {
  ask();
  on_control([](Life& life) {
    life.wait_at_most(kSoonNs);
    EXPECT_TRUE(life.step(Input::disconnect));
    EXPECT_FALSE(life.step(Input::bind));
  });
  EXPECT_EQ(expired_within(20000), std::vector{State::req_sent});
}

TEST_F(CmLife, a_second_deadline_takes_the_place_of_the_first) {
  ask();
  on_control([](Life& life) {
    life.wait_at_most(kSoonNs);
    life.wait_at_most(20'000'000'000);
  });
  EXPECT_TRUE(expired_within(60).empty());
}

TEST_F(CmLife, whoever_goes_is_told_nothing) {
  int told = 0;
  control().run([&] {
    Life brief(control());
    brief.on_expired = [&](State) { ++told; };
    brief.begin_at(State::req_received);
    EXPECT_TRUE(brief.step(Input::accept));
    brief.wait_at_most(1);
  });
  EXPECT_TRUE(expired_within(20).empty());
  control().run([] {});
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace aperture::cm::test
