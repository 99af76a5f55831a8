// FI_FENCE: the fenced operation and those after it wait for all before it to the same peer.
// fi_cq(3), "FI_FENCE"; fi_msg(3), fi_tagged(3), fi_rma(3).

#include "doors/rma_setting.hpp"

namespace aperture::doors {
namespace {

class Fence : public testing::TestWithParam<Setting> {
 protected:
  Request request(Ask what, uint32_t id, size_t size, uint64_t seed, uint64_t flags) {
    return {.ask = what,
            .id = id,
            .addr = duo.to_second,
            .size = size,
            .seed = seed,
            .tag = 7,
            .flags = flags};
  }
  Duo duo;
};
using FenceOfMessages = Fence;

const auto kTargetsThatPoll = testing::Values(
    Setting{"self", Topology::self, 0}, Setting{"two_domains", Topology::two_domains, 0},
    Setting{"processes", Topology::two_processes, kBasicMr},
    Setting{"processes_denied", Topology::two_processes, 0, Reach::denied});
INSTANTIATE_TEST_SUITE_P(settings, Fence, kTargetsThatPoll, setting_name);
INSTANTIATE_TEST_SUITE_P(idle, Fence,
                         testing::Values(Setting{"processes_idle", Topology::two_processes,
                                                 kBasicMr, Reach::direct, false}),
                         setting_name);
// messages are for targets that poll
INSTANTIATE_TEST_SUITE_P(settings, FenceOfMessages, kTargetsThatPoll, setting_name);

TEST_P(Fence, a_fenced_write_replaces_what_was_written_before_it) {
  duo = open_setting(GetParam());
  const Remote remote = duo.second->region_open(1, kMiB, kAllAccess, 3);
  uint32_t id = 100;
  for (int round = 0; round < 4; ++round) {
    for (const size_t size : {kMiB, size_t{8}, size_t{5000}}) {
      // a large one that takes its time, and a fenced one over it
      Request first = request(Ask::write, id++, kMiB, 1, FI_COMPLETION);
      Request over = request(Ask::write, id++, size, 2, FI_COMPLETION | FI_FENCE);
      Request back = request(Ask::read, id++, kMiB, 0, FI_COMPLETION | FI_FENCE);
      first.remote = over.remote = back.remote = remote;
      for (const Request* q : {&first, &over, &back}) duo.first->ask(*q);
      for (const Request* q : {&first, &over, &back}) ASSERT_EQ(duo.first->wait(q->id).err, 0);
      EXPECT_TRUE(duo.first->verify(back.id, size, 2))
          << "a fenced read sees the fenced write: " << size;
      for (const Request* q : {&first, &over, &back}) duo.first->release(q->id);
    }
  }
}

TEST_P(FenceOfMessages, a_fenced_message_comes_after_the_bytes_of_a_write) {
  duo = open_setting(GetParam());
  const Remote remote = duo.second->region_open(1, kMiB, kAllAccess, 3);
  for (uint32_t round = 0; round < 4; ++round) {
    for (const bool tagged : {false, true}) {
      if (tagged) {
        duo.second->tagged_receive(5, 8, 7);
      } else {
        duo.second->receive(5, 8);
      }
      Request write = request(Ask::write, 10, kMiB, 100 + round, FI_COMPLETION);
      write.remote = remote;
      duo.first->ask(write);
      duo.first->ask(
          request(tagged ? Ask::tagged_send : Ask::send, 11, 8, 1, FI_COMPLETION | FI_FENCE));
      ASSERT_EQ(duo.second->wait(5).err, 0);
      EXPECT_TRUE(duo.second->region_verify(1, 100 + round)) << "the message overtook the write";
      ASSERT_EQ(duo.first->wait(10).err, 0);
      ASSERT_EQ(duo.first->wait(11).err, 0);
    }
  }
}

TEST_P(FenceOfMessages, nothing_passes_an_operation_that_waits) {
  duo = open_setting(GetParam());
  // an offer that nobody takes yet
  duo.first->ask(request(Ask::tagged_send, 10, 300000, 1, FI_COMPLETION | FI_MATCH_COMPLETE));
  duo.second->receive(1, 8);
  duo.second->receive(2, 8);
  duo.first->ask(request(Ask::send, 11, 8, 2, FI_COMPLETION | FI_FENCE));
  duo.first->ask(request(Ask::send, 12, 8, 3, FI_COMPLETION));
  EXPECT_EQ(duo.second->wait(1, 40).err, -1) << "the fenced one did not wait";
  EXPECT_EQ(duo.second->wait(2, 5).err, -1) << "nor the one after it";
  duo.second->tagged_receive(3, 300000, 7);
  EXPECT_EQ(duo.second->wait(3).err, 0);
  EXPECT_EQ(duo.second->wait(1).err, 0);
  EXPECT_TRUE(duo.second->verify(1, 8, 2));
  EXPECT_EQ(duo.second->wait(2).err, 0);
  EXPECT_TRUE(duo.second->verify(2, 8, 3));
  for (const uint32_t id : {10u, 11u, 12u}) EXPECT_EQ(duo.first->wait(id).err, 0);
}

TEST_P(FenceOfMessages, without_a_fence_messages_pass_an_offer_that_waits) {
  duo = open_setting(GetParam());
  duo.first->ask(request(Ask::tagged_send, 10, 300000, 1, FI_COMPLETION | FI_MATCH_COMPLETE));
  duo.second->receive(1, 8);
  duo.first->ask(request(Ask::send, 11, 8, 2, FI_COMPLETION));
  EXPECT_EQ(duo.second->wait(1).err, 0);
  duo.second->tagged_receive(3, 300000, 7);
  EXPECT_EQ(duo.second->wait(3).err, 0);
  EXPECT_EQ(duo.first->wait(10).err, 0);
}

TEST(FenceCalls, it_is_a_capability_and_a_flag_of_single_transmits) {
  Options options{.caps = FI_MSG | FI_RMA | FI_FENCE};
  EXPECT_NE(get_info(options)->caps & FI_FENCE, 0u);
  EXPECT_NE(get_info(options)->tx_attr->caps & FI_FENCE, 0u);
  Node node(options);
  uint8_t byte = 0;
  iovec iov{&byte, 1};
  Op op;
  fi_msg m{&iov, nullptr, 1, FI_ADDR_UNSPEC, &op, 0};
  EXPECT_EQ(fi_recvmsg(node.ep(), &m, FI_FENCE), -FI_EBADFLAGS);
  options.tx_op_flags = FI_FENCE;
  EXPECT_THROW(get_info(options), DoorError) << "no default of an endpoint";
}

TEST(FenceCalls, another_peer_is_not_waited_for) {
  Node a, b, c;
  const fi_addr_t to_b = a.insert(b.name()), to_c = a.insert(c.name());
  std::vector<uint8_t> large(300000);
  uint8_t in = 0;
  Op waits, fenced, receive, late;
  ASSERT_EQ(fi_recv(c.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(a.post(fi_tsend, large.data(), large.size(), nullptr, to_b, 1, &waits), 0);
  iovec iov{&in, 1};
  uint8_t out = 9;
  iov.iov_base = &out;
  fi_msg m{&iov, nullptr, 1, to_c, &fenced, 0};
  ASSERT_EQ(a.post(fi_sendmsg, &m, FI_FENCE | FI_COMPLETION), 0);
  EXPECT_EQ(c.wait(&receive).err, 0);
  EXPECT_EQ(a.wait(&fenced).err, 0);
  EXPECT_FALSE(a.take(&waits).has_value());
  ASSERT_EQ(fi_trecv(b.ep(), large.data(), large.size(), nullptr, FI_ADDR_UNSPEC, 1, 0, &late), 0);
  EXPECT_EQ(b.wait(&late).err, 0);
  EXPECT_EQ(a.wait(&waits).err, 0);
}

}  // namespace
}  // namespace aperture::doors
