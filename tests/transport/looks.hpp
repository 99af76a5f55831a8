// What queue pairs of both families do in their polls, shown alike for each.
#pragma once

#include <gtest/gtest.h>

#include "ring/channel.hpp"
#include "transport/tuning.hpp"

namespace aperture::transport::test {

// to_it: the channel through which its peer asks, as the peer sees it.
template <typename Qp>
void expect_looks_every_so_many_polls(Qp& qp, const ring::ChannelTx& to_it) {
  uint64_t polls = 64 * kLookEvery;
  qp.poll(polls);
  ASSERT_EQ(to_it.consumer_polls(), polls);
  const uint64_t told = polls;
  while (++polls % kLookEvery != 0) {
    qp.poll(polls);
    ASSERT_EQ(to_it.consumer_polls(), told);
  }
  qp.poll(polls);
  EXPECT_EQ(to_it.consumer_polls(), told + kLookEvery);
}

}  // namespace aperture::transport::test
