// What becomes of the request at which a look at the ring stops.
#include "transport/turn.hpp"

#include "link/lane_pair.hpp"

namespace aperture::transport {
namespace {

class TurnTest : public testing::Test {
 protected:
  TurnTest() : pair_(link::test::LinkKind::loopback) { pair_.make(1, 2); }

  void put() { pair_.lane_a->request_tx.cells.publish(1); }
  ring::CellReader& requests() { return pair_.lane_b->request_rx.cells; }

  link::test::LanePair pair_;
  Turn turn_;
};

TEST_F(TurnTest, a_head_that_was_left_is_held_until_it_moves) {
  put();
  put();
  EXPECT_FALSE(turn_.is_held(requests())) << "nobody has looked at it";
  turn_.begin();
  EXPECT_FALSE(turn_.leave(requests()));
  EXPECT_TRUE(turn_.is_held(requests()));
  requests().advance(1);
  EXPECT_FALSE(turn_.is_held(requests())) << "that is another one";
}

TEST_F(TurnTest, a_head_that_goes_on_with_the_next_look_is_not_held) {
  put();
  turn_.begin();
  turn_.end();
  EXPECT_TRUE(turn_.leave(requests()));
  EXPECT_FALSE(turn_.is_held(requests()));
  turn_.begin();
  EXPECT_FALSE(turn_.is_over());
}

TEST_F(TurnTest, an_empty_ring_holds_nothing_up) {
  turn_.begin();
  turn_.leave(requests());
  EXPECT_FALSE(turn_.is_held(requests()));
}

TEST_F(TurnTest, another_lane_begins_with_nothing_looked_at) {
  put();
  turn_.leave(requests());
  turn_.forget();
  EXPECT_FALSE(turn_.is_held(requests()));
}

}  // namespace
}  // namespace aperture::transport
