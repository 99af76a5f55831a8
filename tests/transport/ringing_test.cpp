// One ring wakes an engine for all lanes that lead to it: it is rung once for each of its sleeps,
// and no message of any of them is slept through.
#include "transport/lane_end.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "link/loopback/loopback.hpp"

namespace aperture::transport {
namespace {

constexpr size_t kLanes = 2;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kMessages = 2'000;
#else
constexpr uint64_t kMessages = 20'000;
#endif

// Two lanes of one process to one engine.
class OneRing : public testing::Test {
 protected:
  OneRing() : bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (size_t i = 0; i < kLanes; ++i) {
      auto pair = std::move(link::loopback::make_lane_pair(-1, bell_.get())).value();
      producers_[i].attach(std::move(pair.first));
      producers_[i]->ringing = &ringing_;
      consumers_[i].attach(std::move(pair.second));
    }
  }
  uint64_t rings() const {
    uint64_t count = 0;
    return ::read(bell_.get(), &count, sizeof count) == sizeof count ? count : 0;
  }
  void fall_asleep(uint64_t number) {
    for (LaneEnd& consumer : consumers_) consumer.fall_asleep({true, true, number});
  }
  void wake_up() {
    for (LaneEnd& consumer : consumers_) consumer.wake_up();
  }

  const UniqueFd bell_;
  link::Ringing ringing_;
  std::array<LaneEnd, kLanes> producers_, consumers_;
};

TEST_F(OneRing, is_for_all_lanes_and_for_each_sleep_of_the_engine) {
  for (uint64_t sleep = 1; sleep < 4; ++sleep) {
    fall_asleep(sleep);
    producers_[sleep % 2].publish_request(1);
    EXPECT_EQ(rings(), 1u);
    producers_[1 - sleep % 2].publish_request(1);
    EXPECT_EQ(rings(), 0u);
    for (LaneEnd& producer : producers_) {
      EXPECT_FALSE(producer->request_tx.consumer_hot()) << "it has not come yet";
      producer.publish_response(1);
    }
    EXPECT_EQ(rings(), 0u);
    wake_up();
    producers_[0].publish_request(1);
    EXPECT_EQ(rings(), 0u);
  }
}

TEST_F(OneRing, is_of_each_lane_where_no_number_is_said) {
  for (int sleep = 0; sleep < 2; ++sleep) {
    fall_asleep(ring::kUnnumbered);
    for (LaneEnd& producer : producers_) producer.publish_request(1);
    EXPECT_EQ(rings(), kLanes);
    wake_up();
  }
}

TEST_F(OneRing, is_not_left_out_for_a_channel_that_sleeps_anew) {
  fall_asleep(1);
  producers_[0].publish_request(1);
  EXPECT_EQ(rings(), 1u);
  // as a producer may see it that looks while the engine wakes up and falls asleep again
  consumers_[1]->request_rx.set_state(ring::ConsumerState::asleep, 1);
  consumers_[1]->response_rx.set_state(ring::ConsumerState::asleep, 2);
  producers_[1].publish_request(1);
  EXPECT_EQ(rings(), 1u);
}

TEST_F(OneRing, comes_to_an_engine_that_has_stopped_from_one_lane_at_a_time) {
  EXPECT_TRUE(ringing_.rings_again(1'000'000, 1'000));
  EXPECT_FALSE(ringing_.rings_again(1'000'999, 1'000));
  EXPECT_TRUE(ringing_.rings_again(1'001'000, 1'000));
}

// Each thread has a lane of its own; the engine sleeps whenever it finds nothing. A lost wake-up
// shows as a wait that ends without a ring.
TEST_F(OneRing, lets_no_message_of_two_threads_be_slept_through) {
  ASSERT_TRUE(register_for_heavy_barriers());
  std::vector<std::thread> threads;
  for (LaneEnd& producer : producers_) {
    threads.emplace_back([&producer, salt = threads.size()] {
      for (uint64_t i = 0; i < kMessages; ++i) {
        while (!producer->request_tx.room(1)) std::this_thread::yield();
        producer.publish_request(1);
        for (uint64_t spin = (i + salt) * 7919 % 300; spin > 0; --spin) cpu_relax();
      }
    });
  }
  const auto ready = [&] {
    for (const LaneEnd& consumer : consumers_) {
      if (consumer->request_rx.cells.ready()) return true;
    }
    return false;
  };
  uint64_t seen = 0, sleeps = 0, slept = 0;
  while (seen < kLanes * kMessages) {
    for (LaneEnd& consumer : consumers_) {
      for (; consumer->request_rx.cells.ready(); ++seen) consumer->request_rx.cells.advance(1);
      consumer.acknowledge_requests();
    }
    if (seen == kLanes * kMessages) break;
    (void)rings();
    fall_asleep(++sleeps);
    full_fence();
    bool all_fence = true;
    for (const LaneEnd& consumer : consumers_) all_fence = all_fence && consumer.producer_fences();
    if (!all_fence) heavy_barrier();
    if (!ready()) {
      ++slept;
      pollfd p{bell_.get(), POLLIN, 0};
      EXPECT_EQ(::poll(&p, 1, HasFailure() ? 1000 : 20'000), 1)
          << "lost wake-up after " << seen << ", ready: " << ready();
    }
    wake_up();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(slept, 0u);
}

}  // namespace
}  // namespace aperture::transport
