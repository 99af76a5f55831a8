// Which of an engine's queue pairs are polled when one of them is over. What else a list does is in
// engine_test.cpp.
#include "nic/poll_list.hpp"

#include <gtest/gtest.h>

namespace aperture::nic {
namespace {

struct Fake {
  enum class Look : uint8_t { nothing, taken, poll };
  Look look() noexcept { return over || arrived ? Look::poll : Look::nothing; }
  bool poll(uint64_t) noexcept {
    ++polled;
    return std::exchange(arrived, false);
  }
  bool needs_wind_up() const noexcept { return over; }
  bool anything_arrived() const noexcept { return arrived; }
  bool needs_polling() const noexcept { return under_way; }
  bool has_pending() const noexcept { return false; }
  bool shares_queue_with(const Fake& other) const noexcept { return queue == other.queue; }

  int queue = 0;
  bool over = false;
  bool arrived = false;
  bool under_way = false;
  int polled = 0;
};

class EndOfOne : public testing::Test, protected OwnerOf<Fake> {
 protected:
  EndOfOne() {
    one.over = true;
    for (Fake* fake : {&one, &other, &third}) EXPECT_TRUE(list.add(*fake, *this).ok());
  }
  void wind_up(Fake& gone) noexcept override {
    EXPECT_EQ(&gone, &one);
    left = static_cast<int>(other.arrived) + static_cast<int>(third.arrived);
    list.remove(gone);
  }
  CoreSharing core_sharing;
  PollList<Fake> list{core_sharing};
  Fake one, other, third;
  int left = -1;  // messages that were still to be told at that end
};

TEST_F(EndOfOne, is_told_after_what_came_over_others_to_the_same_queue) {
  other.arrived = third.arrived = true;
  list.poll(1, false);
  EXPECT_EQ(left, 0);
  EXPECT_EQ(other.polled + third.polled, 2);
}

TEST_F(EndOfOne, waits_for_no_other_queue) {
  other.arrived = third.arrived = true;
  third.queue = 1;
  list.poll(1, false);
  EXPECT_EQ(left, 1);
  EXPECT_EQ(third.polled, 0);
}

TEST_F(EndOfOne, leaves_those_alone_that_have_nothing) {
  third.under_way = true;
  list.poll(1, false);
  EXPECT_EQ(left, 0);
  EXPECT_EQ(other.polled, 0);
  EXPECT_EQ(third.polled, 1) << "a message of it may be under way";
}

}  // namespace
}  // namespace aperture::nic
