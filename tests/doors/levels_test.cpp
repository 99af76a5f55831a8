// Completion levels: FI_INJECT_COMPLETE to FI_MATCH_COMPLETE, as flags of calls and as defaults of
// an endpoint, and FI_INJECT. fi_cq(3), "COMPLETION EVENT SEMANTICS"; fi_msg(3), fi_tagged(3),
// fi_rma(3).
#include <gtest/gtest.h>

#include <algorithm>

#include "doors/side.hpp"

namespace aperture::doors {
namespace {

class Levels : public testing::TestWithParam<Place> {
 protected:
  void open_without_greeting(const Options& options) {
    duo = make_duo(GetParam().topology, options, child_denying(GetParam().denied));
  }
  void open() {
    open_without_greeting({});
    // connected before anything is measured
    duo.second->receive(1, 8);
    duo.first->send(2, duo.to_second, 8, 1);
    EXPECT_EQ(duo.second->wait(1).err, 0);
    EXPECT_EQ(duo.first->wait(2).err, 0);
  }
  void send(uint32_t id, size_t size, uint64_t flags, bool tagged = false) {
    duo.first->ask({.ask = tagged ? Ask::tagged_send : Ask::send,
                    .id = id,
                    .addr = duo.to_second,
                    .size = size,
                    .seed = id,
                    .tag = 7,
                    .flags = flags});
  }
  Duo duo;
};
INSTANTIATE_TEST_SUITE_P(places, Levels,
                         testing::Values(Place{"self", Topology::self},
                                         Place{"two_domains", Topology::two_domains},
                                         Place{"processes", Topology::two_processes},
                                         Place{"processes_denied", Topology::two_processes, true}),
                         kByName);

TEST_P(Levels, every_level_completes_messages_of_every_size) {
  open();
  uint32_t id = 100;
  for (const uint64_t level :
       {FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE}) {
    for (const bool tagged : {false, true}) {
      if (!tagged && level == FI_MATCH_COMPLETE) continue;  // a flag of fi_tsendmsg
      for (const size_t size : few_sizes()) {
        const uint32_t in = id++, out = id++;
        if (tagged) {
          duo.second->tagged_receive(in, size, 7);
        } else {
          duo.second->receive(in, size);
        }
        send(out, size, FI_COMPLETION | level, tagged);
        EXPECT_EQ(duo.first->wait(out).err, 0);
        EXPECT_EQ(duo.second->wait(in).err, 0);
        EXPECT_TRUE(duo.second->verify(in, size, out)) << level << " " << size;
        duo.second->release(in);
        duo.first->release(out);
      }
    }
  }
}

TEST_P(Levels, delivery_of_a_small_message_needs_no_receive_and_match_does) {
  open();
  for (const size_t size : {size_t{0}, size_t{8}, size_t{200}, size_t{10000}}) {
    send(10, size, FI_COMPLETION | FI_DELIVERY_COMPLETE, true);
    EXPECT_EQ(duo.first->wait(10).err, 0) << "it is with the other side";
    send(11, size, FI_COMPLETION | FI_MATCH_COMPLETE, true);
    EXPECT_EQ(duo.first->wait(11, 30).err, -1) << "nobody has matched it";
    duo.second->tagged_receive(12, size, 7);
    EXPECT_EQ(duo.second->wait(12).err, 0);
    EXPECT_TRUE(duo.second->verify(12, size, 10));
    EXPECT_EQ(duo.first->wait(11, 30).err, -1);
    duo.second->tagged_receive(13, size, 7);
    EXPECT_EQ(duo.second->wait(13).err, 0);
    EXPECT_EQ(duo.first->wait(11).err, 0);
    EXPECT_TRUE(duo.second->verify(13, size, 11));
  }
}

TEST_P(Levels, delivery_finds_the_data_in_the_buffer_that_was_ready) {
  open();
  for (const size_t size : few_sizes()) {
    duo.second->receive(20, size);
    send(21, size, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    ASSERT_EQ(duo.first->wait(21).err, 0);
    EXPECT_TRUE(duo.second->verify(20, size, 21)) << size;
    ASSERT_EQ(duo.second->wait(20).err, 0);
  }
}

TEST_P(Levels, levels_may_be_defaults_of_the_endpoint) {
  for (const uint64_t level :
       {FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE}) {
    open_without_greeting({.tx_op_flags = level});
    for (const size_t size : {size_t{8}, size_t{5000}, size_t{300000}}) {
      Node* node = duo.first->node();
      Guarded out(size, 5);
      Op op;
      ASSERT_EQ(node->post(fi_tsend, out.data(), size, nullptr, duo.to_second, 7, &op), 0);
      if (level == FI_MATCH_COMPLETE) {
        EXPECT_EQ(node->wait(&op, 30).err, -1);
      }
      duo.second->tagged_receive(31, size, 7);
      EXPECT_EQ(duo.second->wait(31).err, 0);
      EXPECT_TRUE(duo.second->verify(31, size, 5));
      EXPECT_EQ(node->wait(&op).err, 0);
    }
    duo = Duo{};
  }
}

TEST_P(Levels, rma_of_every_level_is_in_place_when_it_completes) {
  open();
  const Remote remote = duo.second->region_open(1, kMiB, kAllAccess, 3);
  uint32_t id = 50;
  for (const uint64_t level : {FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE}) {
    for (const Ask what : {Ask::write, Ask::read}) {
      duo.first->ask({.ask = what,
                      .id = ++id,
                      .addr = duo.to_second,
                      .size = kMiB,
                      .seed = 77,
                      .flags = FI_COMPLETION | level,
                      .remote = remote});
      EXPECT_EQ(duo.first->wait(id).err, 0);
      EXPECT_TRUE(duo.first->verify(id, kMiB, 77));
      EXPECT_TRUE(duo.second->region_verify(1, 77));
    }
  }
}

TEST_P(Levels, inject_with_a_level_frees_the_buffer_at_once_and_completes_at_the_level) {
  open();
  Node* node = duo.first->node();
  uint8_t bytes[200];
  fill(bytes, 9);
  iovec iov{bytes, sizeof bytes};
  Op op;
  fi_msg_tagged m{&iov, nullptr, 1, duo.to_second, 7, 0, &op, 0};
  ASSERT_EQ(node->post(fi_tsendmsg, &m, FI_INJECT | FI_COMPLETION | FI_MATCH_COMPLETE), 0);
  std::fill(std::begin(bytes), std::end(bytes), uint8_t{0});
  EXPECT_EQ(node->wait(&op, 30).err, -1);
  duo.second->tagged_receive(60, sizeof bytes, 7);
  EXPECT_EQ(duo.second->wait(60).err, 0);
  EXPECT_TRUE(duo.second->verify(60, sizeof bytes, 9));
  EXPECT_EQ(node->wait(&op).err, 0);
}

TEST(LevelCalls, commit_is_refused) {
  Options options{.tx_op_flags = FI_COMMIT_COMPLETE};
  EXPECT_THROW(get_info(options), DoorError);
  Node node;
  const fi_addr_t self = node.insert(node.name());
  uint8_t byte = 0;
  iovec iov{&byte, 1};
  Op op;
  fi_msg m{&iov, nullptr, 1, self, &op, 0};
  EXPECT_EQ(fi_sendmsg(node.ep(), &m, FI_COMMIT_COMPLETE), -FI_EBADFLAGS);
  fi_rma_iov range{0, 1, 1};
  fi_msg_rma r{&iov, nullptr, 1, self, &range, 1, &op, 0};
  EXPECT_EQ(fi_writemsg(node.ep(), &r, FI_COMMIT_COMPLETE), -FI_EBADFLAGS);
  EXPECT_TRUE(node.quiet());
}

TEST(LevelCalls, match_is_for_tagged_messages) {
  Node node;
  const fi_addr_t self = node.insert(node.name());
  uint8_t byte = 0;
  iovec iov{&byte, 1};
  Op op;
  fi_msg m{&iov, nullptr, 1, self, &op, 0};
  EXPECT_EQ(fi_sendmsg(node.ep(), &m, FI_MATCH_COMPLETE), -FI_EBADFLAGS);
  EXPECT_TRUE(node.quiet());
}

}  // namespace
}  // namespace aperture::doors
