// FI_MSG through the door: fi_msg(3). Every size over every topology, iovecs, inject, remote CQ
// data, selective completion, truncation, order and back-pressure.
#include <gtest/gtest.h>

#include "doors/side.hpp"

namespace aperture::doors {
namespace {

constexpr uint32_t kSend = 1;
constexpr uint32_t kReceive = 2;

class Msg : public testing::TestWithParam<Topology> {
 protected:
  // One message each way of `size`, the receive posted before or after the send.
  void exchange(Duo* duo, size_t size, bool expected, uint64_t seed) {
    if (expected) duo->second->receive(kReceive, size);
    duo->first->send(kSend, duo->to_second, size, seed);
    if (!expected) {
      pump_for(0);
      duo->second->receive(kReceive, size);
    }
    const Completion received = duo->second->wait(kReceive);
    const Completion sent = duo->first->wait(kSend);
    ASSERT_EQ(received.err, 0) << "size " << size;
    ASSERT_EQ(sent.err, 0) << "size " << size;
    ASSERT_EQ(received.len, size);
    ASSERT_EQ(received.flags & (FI_MSG | FI_RECV), FI_MSG | FI_RECV);
    ASSERT_EQ(sent.flags & (FI_MSG | FI_SEND), FI_MSG | FI_SEND);
    ASSERT_TRUE(duo->second->verify(kReceive, size, seed)) << "contents, size " << size;
  }
};

TEST_P(Msg, every_size_arrives_whole_when_expected) {
  Duo duo = make_duo(GetParam(), {});
  for (size_t size : all_sizes())
    ASSERT_NO_FATAL_FAILURE(exchange(&duo, size, true, seed_of(size)));
  EXPECT_TRUE(duo.first->quiet());
  EXPECT_TRUE(duo.second->quiet());
}

TEST_P(Msg, every_size_arrives_whole_when_unexpected) {
  Duo duo = make_duo(GetParam(), {});
  for (size_t size : all_sizes())
    ASSERT_NO_FATAL_FAILURE(exchange(&duo, size, false, seed_of(size)));
  EXPECT_TRUE(duo.first->quiet());
  EXPECT_TRUE(duo.second->quiet());
}

TEST_P(Msg, a_longer_message_is_truncated_with_its_overflow) {
  Duo duo = make_duo(GetParam(), {});
  for (bool expected : {true, false}) {
    for (size_t size : few_sizes()) {
      if (size == 0) continue;
      const size_t room = size / 2;
      if (expected) duo.second->receive(kReceive, room);
      duo.first->send(kSend, duo.to_second, size, seed_of(size));
      if (!expected) duo.second->receive(kReceive, room);
      const Completion received = duo.second->wait(kReceive);
      ASSERT_EQ(received.err, FI_ETRUNC) << "size " << size << " expected " << expected;
      ASSERT_EQ(received.len, room) << "what has been delivered";
      ASSERT_EQ(received.olen, size - room);
      ASSERT_TRUE(duo.second->verify(kReceive, 0, 0)) << "canaries";
      ASSERT_NE(duo.first->wait(kSend).err, -1);
      // the next message is not disturbed
      ASSERT_NO_FATAL_FAILURE(exchange(&duo, size, expected, seed_of(size + 1)));
    }
  }
}

TEST_P(Msg, a_shorter_message_reports_its_length_and_leaves_the_rest) {
  Duo duo = make_duo(GetParam(), {});
  for (size_t size : few_sizes()) {
    duo.second->receive(kReceive, size + 100);
    duo.first->send(kSend, duo.to_second, size, seed_of(size));
    const Completion received = duo.second->wait(kReceive);
    ASSERT_EQ(received.err, 0);
    ASSERT_EQ(received.len, size);
    ASSERT_TRUE(duo.second->verify(kReceive, size, seed_of(size)));
    ASSERT_EQ(duo.first->wait(kSend).err, 0);
  }
}

TEST_P(Msg, messages_keep_their_order_across_paths) {
  Duo duo = make_duo(GetParam(), {});
  constexpr uint32_t kCount = 60;
  const auto size_of = [](uint32_t i) { return few_sizes()[i % (few_sizes().size() - 2)]; };
  for (uint32_t i = 0; i < kCount; ++i) duo.second->receive(100 + i, 128 * kKiB);
  for (uint32_t i = 0; i < kCount; ++i)
    duo.first->send(1000 + i, duo.to_second, size_of(i), seed_of(i));
  for (uint32_t i = 0; i < kCount; ++i) {
    const Completion received = duo.second->wait(100 + i);
    ASSERT_EQ(received.err, 0);
    ASSERT_EQ(received.len, size_of(i)) << "message " << i;
    ASSERT_TRUE(duo.second->verify(100 + i, size_of(i), seed_of(i))) << "message " << i;
    ASSERT_EQ(duo.first->wait(1000 + i).err, 0);
  }
}

TEST_P(Msg, unexpected_messages_keep_their_order_across_paths) {
  Duo duo = make_duo(GetParam(), {});
  constexpr uint32_t kCount = 60;
  const auto size_of = [](uint32_t i) { return few_sizes()[i % (few_sizes().size() - 2)]; };
  for (uint32_t i = 0; i < kCount; ++i)
    duo.first->send(1000 + i, duo.to_second, size_of(i), seed_of(i));
  pump_for(5);
  for (uint32_t i = 0; i < kCount; ++i) {
    duo.second->receive(100 + i, 128 * kKiB);
    const Completion received = duo.second->wait(100 + i);
    ASSERT_EQ(received.len, size_of(i)) << "message " << i;
    ASSERT_TRUE(duo.second->verify(100 + i, size_of(i), seed_of(i))) << "message " << i;
    ASSERT_EQ(duo.first->wait(1000 + i).err, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Topologies, Msg,
                         testing::Values(Topology::self, Topology::one_domain,
                                         Topology::two_domains, Topology::two_processes),
                         [](const auto& p) { return name_of(p.param); });

}  // namespace
}  // namespace aperture::doors
