// Datagrams with faults on top of a link that writes down what it is given: each is lost, repeated,
// late or behind the next one as the plan says, whole, and what is held back wakes who sleeps.
#include "link/faulty/datagrams.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "base/clock.hpp"

namespace aperture::link::faulty {
namespace {

using Sent = std::vector<std::string>;

struct Recorder final : Datagrams {
  Recorder(Sent& to, const bool& has_room) : sent(to), room(has_room) {}
  uint16_t port() const noexcept override { return 7; }
  bool is_own(const Address&) const noexcept override { return false; }
  Status send(const Address&, const Address&, std::span<const iovec> pieces) noexcept override {
    if (!room) return Errc::again;
    std::string all;
    for (const iovec& piece : pieces) {
      all.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    sent.push_back(all);
    return {};
  }
  size_t receive(DatagramSink&, size_t) noexcept override { return 0; }
  bool anything_arrived() const noexcept override { return false; }
  void ask_wake(bool) noexcept override {}
  int wake_fd() const noexcept override { return bell.get(); }
  Status join(const Address&, const Address&) noexcept override { return {}; }
  Status leave(const Address&) noexcept override { return {}; }

  Sent& sent;
  const bool& room;
  UniqueFd bell{::eventfd(0, EFD_CLOEXEC)};
};

class FaultyDatagramsTest : public testing::Test {
 protected:
  void make(const std::string& text) {
    ASSERT_EQ(read_fault_plan(text, plan), "");
    auto made = FaultyDatagrams::make(std::make_unique<Recorder>(sent, room), plan, 1);
    ASSERT_TRUE(made.ok());
    link = *std::move(made);
  }
  Status send(const std::string& text) {
    const size_t half = text.size() / 2;
    const iovec pieces[2] = {{const_cast<char*>(text.data()), half},
                             {const_cast<char*>(text.data()) + half, text.size() - half}};
    return link->send(here, there, pieces);
  }
  void send_all(const Sent& all) {
    for (const std::string& one : all) ASSERT_TRUE(send(one));
  }
  bool is_woken(int within_ms) {
    pollfd p{link->wake_fd(), POLLIN, 0};
    return ::poll(&p, 1, within_ms) == 1;
  }

  const Address here = Address::v4(0x7f000001, 7), there = Address::v4(0x7f000001, 8);
  FaultPlan plan;
  Sent sent;
  bool room = true;
  std::unique_ptr<FaultyDatagrams> link;
};

TEST_F(FaultyDatagramsTest, one_that_is_dropped_was_sent_as_far_as_its_sender_knows) {
  make("drop=after:1");
  send_all({"a", "bb", "ccc"});
  EXPECT_EQ(sent, (Sent{"a", "ccc"}));
}

TEST_F(FaultyDatagramsTest, one_that_is_duplicated_goes_out_twice) {
  make("duplicate=after:1");
  send_all({"a", "bb", "ccc"});
  EXPECT_EQ(sent, (Sent{"a", "bb", "bb", "ccc"}));
}

TEST_F(FaultyDatagramsTest, one_that_is_reordered_goes_behind_the_next) {
  make("reorder=after:1");
  send_all({"a", "bb", "ccc", "dddd"});
  EXPECT_EQ(sent, (Sent{"a", "ccc", "bb", "dddd"}));
}

TEST_F(FaultyDatagramsTest, one_that_is_reordered_goes_by_itself_if_there_is_no_next) {
  make("reorder=after:0");
  send_all({"a"});
  EXPECT_EQ(sent, Sent{});
  ASSERT_TRUE(is_woken(5'000));
  EXPECT_FALSE(link->anything_arrived());
  EXPECT_EQ(sent, Sent{"a"});
  EXPECT_FALSE(is_woken(0)) << "there is nothing more";
}

TEST_F(FaultyDatagramsTest, one_that_is_delayed_wakes_who_sleeps_when_it_is_due) {
  make("delay=20ms:after:0");
  const uint64_t begun = now_ns();
  send_all({"a", "bb"});
  EXPECT_EQ(sent, Sent{"bb"});
  ASSERT_TRUE(is_woken(5'000));
  EXPECT_GE(now_ns() - begun, 20'000'000u);
  EXPECT_FALSE(link->anything_arrived());
  EXPECT_EQ(sent, (Sent{"bb", "a"}));
}

TEST_F(FaultyDatagramsTest, what_is_held_back_goes_out_before_the_end) {
  make("delay=10s:after:0");
  send_all({"a"});
  link = nullptr;
  EXPECT_EQ(sent, Sent{"a"});
}

TEST_F(FaultyDatagramsTest, what_finds_no_room_is_not_sent_and_drawn_for_again) {
  make("duplicate=after:0");
  room = false;
  EXPECT_EQ(send("a").error(), Errc::again);
  room = true;
  send_all({"a", "bb"});
  EXPECT_EQ(sent, (Sent{"a", "a", "bb"}));
}

TEST_F(FaultyDatagramsTest, more_than_can_be_held_go_at_once) {
  make("delay=10s:100%");
  for (size_t i = 0; i < FaultyDatagrams::kMostHeld + 3; ++i) ASSERT_TRUE(send("a"));
  EXPECT_EQ(sent.size(), 3u);
}

TEST_F(FaultyDatagramsTest, a_piece_that_is_not_mapped_is_an_error_and_no_signal) {
  make("delay=10s:100%");
  const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const hole = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  const iovec piece{hole, 8};
  EXPECT_EQ(link->send(here, there, {&piece, 1}).error(), Errc::bad_buffer);
  ::munmap(hole, size);
}

TEST_F(FaultyDatagramsTest, the_same_seed_loses_the_same_ones) {
  const auto lost_by = [this](const std::string& seed) {
    sent.clear();
    make("seed=" + seed + ",drop=10%");
    for (int i = 0; i < 500; ++i) EXPECT_TRUE(send(std::to_string(i)));
    return sent;
  };
  const Sent first = lost_by("7");
  EXPECT_EQ(lost_by("7"), first);
  EXPECT_NE(lost_by("8"), first);
  EXPECT_NEAR(double(first.size()), 450, 40);
}

}  // namespace
}  // namespace aperture::link::faulty
