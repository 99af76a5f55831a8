// What is known of a thread that waits for several channels: whether it comes back for an event
// before it waits, and that it is not believed for ever.
#include "verbs/waiters.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace aperture::verbs {
namespace {

TEST(Waiter, comes_back_while_an_event_lies_ready) {
  int thread = 0;
  Waiter waiter(&thread);
  EXPECT_FALSE(waiter.comes_back());
  const uint32_t one = waiter.on_ready();
  const uint32_t other = waiter.on_ready();
  EXPECT_TRUE(waiter.comes_back());
  waiter.on_fetched(one);
  EXPECT_TRUE(waiter.comes_back());
  waiter.on_fetched(other);
  EXPECT_FALSE(waiter.comes_back());
}

TEST(Waiter, who_fetches_nothing_after_it_was_to_come_back_waits) {
  int thread = 0;
  Waiter waiter(&thread);
  const uint32_t left = waiter.on_ready();
  EXPECT_TRUE(waiter.comes_back());
  EXPECT_FALSE(waiter.comes_back());
  // that event is not counted any more, and others are
  EXPECT_FALSE(waiter.comes_back());
  const uint32_t next = waiter.on_ready();
  waiter.on_fetched(left);
  EXPECT_TRUE(waiter.comes_back());
  waiter.on_fetched(next);
  waiter.on_fetched(next);
  EXPECT_FALSE(waiter.comes_back());
  EXPECT_EQ(waiter.on_ready(), next + 1) << "each wait has a number";
}

TEST(Waiters, are_one_for_each_thread) {
  Waiters waiters;
  Waiter* const here = waiters.of_this_thread();
  ASSERT_NE(here, nullptr);
  EXPECT_EQ(waiters.of_this_thread(), here);
  Waiter* there = nullptr;
  std::thread([&] { there = waiters.of_this_thread(); }).join();
  EXPECT_NE(there, here);
}

}  // namespace
}  // namespace aperture::verbs
