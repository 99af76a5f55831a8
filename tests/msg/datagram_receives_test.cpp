// Datagrams go to the oldest receive that takes them, and are nobody's otherwise.
#include "msg/datagram_receives.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace aperture::msg {
namespace {

class DatagramReceivesTest : public testing::Test {
 protected:
  Status post(uint64_t n, uint64_t source = qp::kAnySource) {
    const iovec iov{memory[n], sizeof memory[n]};
    return receives->recv(
        {.iov = &iov, .iov_count = 1, .len = iov.iov_len, .source = source, .context = memory[n]});
  }
  bool take(const std::string& text, uint64_t source = qp::kNoSource) {
    return receives->take(
        {.payload = std::as_bytes(std::span(text)), .source = source, .reported = source + 100});
  }
  // The context of the next completion.
  void* next() {
    void* const context = cq.error_first() ? cq.pop_error().entry.context : cq.front().context;
    if (!cq.empty() && cq.front().context == context) cq.pop();
    return context;
  }
  void rules(const DatagramReceives::Rules& r) { receives.emplace(port, 4, r); }
  void SetUp() override {
    port.rx_cq = &cq;
    rules({});
  }

  std::unique_ptr<protect::KeyTable> keys = *protect::KeyTable::create(16);
  qp::Cq cq{4};
  qp::Port port{*keys, 0};
  std::optional<DatagramReceives> receives;
  char memory[8][16] = {};
};

TEST_F(DatagramReceivesTest, the_oldest_takes_it_and_without_one_it_is_nobodys) {
  EXPECT_FALSE(take("none"));
  ASSERT_TRUE(post(0));
  ASSERT_TRUE(post(1));
  EXPECT_EQ(receives->room(), 2u);
  EXPECT_TRUE(take("first"));
  EXPECT_TRUE(take("second"));
  EXPECT_FALSE(take("third"));
  EXPECT_EQ(next(), memory[0]);
  EXPECT_EQ(next(), memory[1]);
  EXPECT_STREQ(memory[0], "first");
  EXPECT_STREQ(memory[1], "second");
}

TEST_F(DatagramReceivesTest, there_is_room_for_no_more_than_the_queue_has_entries) {
  for (uint64_t n = 0; n < 8; ++n) ASSERT_TRUE(post(n));
  EXPECT_EQ(receives->room(), 4u);
  cq.reserve();
  EXPECT_EQ(receives->room(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(take("x"));
  EXPECT_EQ(receives->room(), 0u);
  EXPECT_FALSE(take("no entry is left")) << "another's is promised";
  cq.unreserve();
  EXPECT_TRUE(take("x"));
}

TEST_F(DatagramReceivesTest, a_receive_that_names_another_is_passed_by) {
  rules({.directed = true, .report_source = true});
  ASSERT_TRUE(post(0, 7));
  ASSERT_TRUE(post(1, 8));
  EXPECT_TRUE(take("of 8", 8));
  EXPECT_EQ(cq.front().source, 108u);
  EXPECT_EQ(next(), memory[1]);
  EXPECT_FALSE(take("of 8", 8));
  EXPECT_FALSE(take("of nobody"));
  receives->rename_source(7, 3);
  EXPECT_FALSE(take("of 7", 7));
  EXPECT_TRUE(take("of 3", 3));
  EXPECT_EQ(next(), memory[0]);
}

TEST_F(DatagramReceivesTest, sources_that_nobody_asked_for_are_not_told) {
  ASSERT_TRUE(post(0, 7));
  EXPECT_TRUE(take("of 8", 8));
  EXPECT_EQ(cq.front().source, qp::kNoSource);
}

TEST_F(DatagramReceivesTest, a_cancelled_one_ends_in_error_and_the_next_has_its_turn) {
  ASSERT_TRUE(post(0));
  ASSERT_TRUE(post(1));
  EXPECT_TRUE(receives->cancel(memory[0]));
  EXPECT_EQ(receives->cancel(memory[0]).error(), Errc::no_entry);
  ASSERT_TRUE(cq.error_first());
  EXPECT_EQ(cq.pop_error().err, Errc::canceled);
  EXPECT_EQ(receives->room(), 1u);
  EXPECT_TRUE(take("x"));
  EXPECT_EQ(next(), memory[1]);
  ASSERT_TRUE(post(2));
  receives->cancel_all(Errc::canceled);
  EXPECT_EQ(cq.pop_error().entry.context, memory[2]);
  EXPECT_EQ(receives->room(), 0u);
}

TEST_F(DatagramReceivesTest, a_prefix_counts_and_stays_as_it_is) {
  rules({.prefix_bytes = 8});
  std::memset(memory[0], 'p', sizeof memory[0]);
  ASSERT_TRUE(post(0));
  EXPECT_TRUE(take("word"));
  EXPECT_EQ(cq.front().len, 12u);
  EXPECT_EQ(std::string(memory[0], 16), "ppppppppwordpppp");
  next();
  ASSERT_TRUE(post(1));
  EXPECT_TRUE(take("longer than 8"));
  ASSERT_TRUE(cq.error_first());
  const qp::CompletionError e = cq.pop_error();
  EXPECT_EQ(e.err, Errc::truncated);
  EXPECT_EQ(e.entry.len, 16u);
  EXPECT_EQ(e.overflow, 5u);
  const iovec iov{memory[2], 16};
  EXPECT_EQ(receives->recv_multi({.iov = &iov, .iov_count = 1, .len = 16}, 1).error(),
            Errc::invalid);
}

TEST_F(DatagramReceivesTest, one_buffer_takes_many_until_too_little_is_left) {
  port.release_flag = 0x100;
  const iovec iov{memory[0], 16};
  ASSERT_TRUE(receives->recv_multi({.iov = &iov, .iov_count = 1, .len = 16}, 6));
  ASSERT_TRUE(post(1));
  EXPECT_TRUE(take("12345678"));
  EXPECT_EQ(cq.front().flags, 0u);
  EXPECT_EQ(cq.front().buf, memory[0]);
  cq.pop();
  EXPECT_TRUE(take("abc"));
  EXPECT_EQ(cq.front().flags, 0x100u);
  EXPECT_EQ(cq.front().buf, memory[0] + 8);
  cq.pop();
  EXPECT_TRUE(take("next"));
  EXPECT_EQ(next(), memory[1]);
  EXPECT_EQ(std::string(memory[0], 11), "12345678abc");
}

}  // namespace
}  // namespace aperture::msg
