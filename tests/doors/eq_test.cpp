// fi_eq(3): reading nothing, user events, peeking, waiting, errors and what is refused.
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <thread>

#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

constexpr ssize_t kWhole = sizeof(fi_eq_entry);  // what reading gives

class Eq : public testing::TestWithParam<fi_wait_obj> {
 protected:
  void SetUp() override {
    fi_eq_attr attr{.size = 16, .flags = FI_WRITE, .wait_obj = GetParam()};
    fid_eq* raw = nullptr;
    const int code = fi_eq_open(node.fabric(), &attr, &raw, this);
    if (code != 0) {
      EXPECT_TRUE(refuses_wait_object(code)) << code;
      EXPECT_EQ(GetParam(), FI_WAIT_YIELD) << "cannot be refused";
      EXPECT_FALSE(on_aperture()) << "offered here";
      GTEST_SKIP() << "refused with " << code;
    }
    eq.reset(raw);
  }
  void write(uint64_t data) {
    fi_eq_entry out{.fid = &eq->fid, .data = data};
    ASSERT_EQ(fi_eq_write(eq.get(), FI_NOTIFY, &out, sizeof out, 0), kWhole);
  }
  // The next event, into `event` and `entry`.
  ssize_t read(uint64_t flags = 0) {
    return fi_eq_read(eq.get(), &event, &entry, sizeof entry, flags);
  }
  bool blocks() const { return GetParam() != FI_WAIT_NONE; }
  Node node;
  Fid<fid_eq> eq;
  uint32_t event = 0;
  fi_eq_entry entry{};
};
using BlockingEq = Eq;
using EqWithDescriptor = Eq;

constexpr auto kByWaitObject = [](const auto& p) { return std::string(wait_name(p.param)); };
const auto kThatBlock = testing::Values(FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD);
INSTANTIATE_TEST_SUITE_P(NoObject, Eq, testing::Values(FI_WAIT_NONE), kByWaitObject);
INSTANTIATE_TEST_SUITE_P(Objects, Eq, kThatBlock, kByWaitObject);
INSTANTIATE_TEST_SUITE_P(Objects, BlockingEq, kThatBlock, kByWaitObject);
INSTANTIATE_TEST_SUITE_P(Objects, EqWithDescriptor, testing::Values(FI_WAIT_FD), kByWaitObject);

TEST_P(Eq, reading_an_empty_queue_is_eagain) {
  EXPECT_EQ(read(), -FI_EAGAIN);
  EXPECT_EQ(read(FI_PEEK), -FI_EAGAIN);
  fi_eq_err_entry error{};
  EXPECT_EQ(fi_eq_readerr(eq.get(), &error, 0), -FI_EAGAIN);
  EXPECT_EQ(eq->fid.context, this);
}

TEST_P(Eq, written_events_come_back_in_order) {
  for (uint64_t i = 0; i < 5; ++i) write(i);
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_EQ(read(), kWhole);
    EXPECT_EQ(event, static_cast<uint32_t>(FI_NOTIFY));
    EXPECT_EQ(entry.data, i);
    EXPECT_EQ(entry.fid, &eq->fid);
  }
  EXPECT_EQ(read(), -FI_EAGAIN);
}

TEST_P(Eq, peeking_leaves_the_event) {
  write(9);
  for (int i = 0; i < 3; ++i) {
    entry = {};
    ASSERT_EQ(read(FI_PEEK), kWhole);
    EXPECT_EQ(entry.data, 9u);
  }
  ASSERT_EQ(read(), kWhole);
  EXPECT_EQ(read(FI_PEEK), -FI_EAGAIN);
}

TEST_P(Eq, a_buffer_that_is_too_small_is_refused_and_the_event_stays) {
  write(9);
  uint8_t small[4] = {1, 1, 1, 1};
  EXPECT_EQ(fi_eq_read(eq.get(), &event, small, sizeof small, 0), -FI_ETOOSMALL);
  EXPECT_EQ(small[0], 1);
  EXPECT_EQ(read(), kWhole);
}

TEST_P(Eq, sread_returns_what_is_there_and_times_out_otherwise) {
  if (!blocks()) {
    if (on_aperture()) {
      EXPECT_LT(fi_eq_sread(eq.get(), &event, &entry, sizeof entry, 10, 0), 0);
    }
    return;
  }
  const int64_t start = now_ns();
  EXPECT_EQ(fi_eq_sread(eq.get(), &event, &entry, sizeof entry, 40, 0), -FI_EAGAIN);
  EXPECT_GE(now_ns() - start, 35'000'000);
  write(3);
  EXPECT_EQ(fi_eq_sread(eq.get(), &event, &entry, sizeof entry, 5000, 0), kWhole);
  EXPECT_EQ(entry.data, 3u);
}

TEST_P(BlockingEq, sread_wakes_up_for_an_event) {
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    write(4);
  });
  EXPECT_EQ(fi_eq_sread(eq.get(), &event, &entry, sizeof entry, 8000, 0), kWhole);
  writer.join();
}

TEST_P(EqWithDescriptor, the_file_descriptor_follows_the_events) {
  int fd = -1;
  ASSERT_EQ(fi_control(&eq->fid, FI_GETWAIT, &fd), 0);
  fid* fids[] = {&eq->fid};
  EXPECT_EQ(fi_trywait(node.fabric(), fids, 1), 0);
  pollfd p{fd, POLLIN, 0};
  EXPECT_EQ(poll(&p, 1, 20), 0);
  write(1);
  EXPECT_EQ(fi_trywait(node.fabric(), fids, 1), -FI_EAGAIN);
  EXPECT_EQ(poll(&p, 1, 1000), 1);
  EXPECT_EQ(read(), kWhole);
  EXPECT_EQ(fi_trywait(node.fabric(), fids, 1), 0);
}

TEST_P(Eq, strerror_has_words) {
  char text[64];
  const char* words = fi_eq_strerror(eq.get(), FI_EACCES, nullptr, text, sizeof text);
  ASSERT_NE(words, nullptr);
  EXPECT_GT(std::strlen(words), 0u);
}

// Nothing could signal a condition here while the application sleeps at it.
TEST(EqOpen, a_mutex_and_a_condition_are_not_offered) {
  Node node;
  fi_eq_attr attr{.wait_obj = FI_WAIT_MUTEX_COND};
  const int code = code_of(fi_eq_open, node.fabric(), &attr);
  EXPECT_TRUE(refuses_wait_object(code) || (code == 0 && !on_aperture())) << code;
}

TEST(EqOpen, writing_needs_the_flag) {
  if (!on_aperture()) GTEST_SKIP() << "others let it pass";
  Node node;
  fi_eq_attr attr{};
  const Fid<fid_eq> eq = DOOR_MADE(fi_eq_open, node.fabric(), &attr);
  fi_eq_entry entry{};
  EXPECT_LT(fi_eq_write(eq.get(), FI_NOTIFY, &entry, sizeof entry, 0), 0);
  uint32_t event = 0;
  EXPECT_EQ(fi_eq_read(eq.get(), &event, &entry, sizeof entry, 0), -FI_EAGAIN);
}

TEST(EqOpen, bad_attributes_are_refused) {
  if (!on_aperture()) GTEST_SKIP() << "others let it pass";
  Node node;
  fi_eq_attr attr{};
  attr.flags = 1ull << 60;
  EXPECT_EQ(code_of(fi_eq_open, node.fabric(), &attr), -FI_EBADFLAGS);
  attr = {.wait_obj = no_such_value<fi_wait_obj>(77)};
  const int code = code_of(fi_eq_open, node.fabric(), &attr);
  EXPECT_TRUE(code == -FI_EINVAL || code == -FI_ENOSYS) << code;
  attr.wait_obj = FI_WAIT_SET;
  EXPECT_LT(code_of(fi_eq_open, node.fabric(), &attr), 0) << "without its wait set";
}

TEST(EqOpen, bound_to_endpoint_and_domain_it_cannot_be_closed_first) {
  if (!on_aperture()) GTEST_SKIP() << "others let it pass";
  Node node({.enable = false});
  fi_eq_attr attr{};
  Fid<fid_eq> eq = DOOR_MADE(fi_eq_open, node.fabric(), &attr);
  ASSERT_EQ(fi_ep_bind(node.ep(), &eq->fid, 0), 0);
  EXPECT_EQ(fi_close(&eq->fid), -FI_EBUSY);
  node.close_endpoint();
  EXPECT_EQ(fi_close(&eq.release()->fid), 0);
}

}  // namespace
}  // namespace aperture::doors
