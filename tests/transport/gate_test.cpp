// The gate of a lane: what an older permit allowed does not land once it has moved. Direct copies
// are played by calls of our own, so that each order of events is met on purpose.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "link/lane_pair.hpp"
#include "transport/one_sided.hpp"
#include "transport/permit.hpp"

namespace aperture::transport {
namespace {

using link::test::LanePair;
using link::test::LinkKind;
using Outcome = protect::DirectResult::Outcome;

constexpr protect::DomainId kDomain = 2;

struct Record {
  uint64_t number;
  uint16_t flags;
};

void put_record(std::byte* body, uint64_t number, uint16_t flags) noexcept {
  const Record r{number, flags};
  std::memcpy(body, &r, sizeof r);
}

// A writes into B's region, which this process shares.
class GateTest : public testing::Test {
 protected:
  GateTest() : pair_(LinkKind::direct), memory_(1 << 16, std::byte{0}) {
    pair_.make(1, kDomain);
    a_.attach(std::move(pair_.lane_a));
    b_.attach(std::move(pair_.lane_b));
    initiator_.begin();
    protect::RegionSpec spec;
    spec.pd = kDomain;
    spec.base = reinterpret_cast<uint64_t>(memory_.data());
    spec.length = memory_.size();
    spec.rights = protect::Rights::remote_read | protect::Rights::remote_write;
    region_ = *pair_.keys->add(spec);
    key_ = region_.key;
  }
  ~GateTest() override {
    initiator_.end();
    gate_.shut(b_, pair_.keys->accessors());
  }
  void permit(uint16_t flags) { gate_.permit(b_, pair_.keys->accessors(), flags, put_record); }
  void hear() {
    a_.take_responses([this](const std::byte* body) {
      Record r;
      std::memcpy(&r, body, sizeof r);
      initiator_.take_permit(r.number, r.flags);
      return 1u;
    });
  }
  protect::DirectResult write(std::byte value, size_t len = 64) {
    std::vector<std::byte> from(len, value);
    const iovec local{from.data(), len};
    protect::DirectAsk ask;
    ask.key = key_;
    ask.addr = reinterpret_cast<uint64_t>(memory_.data());
    ask.local = &local;
    ask.local_count = 1;
    return initiator_.write(ask);
  }

  LanePair pair_;
  LaneEnd a_, b_;
  std::vector<std::byte> memory_;
  protect::RegionHandle region_;
  uint64_t key_ = 0;
  Gate gate_;
  Target target_{a_};
  OneSided initiator_{a_, target_};
};

TEST_F(GateTest, without_a_permit_nothing_may_be_accessed_directly) {
  EXPECT_FALSE(initiator_.is_possible(kPermitReads));
  EXPECT_FALSE(initiator_.is_possible(kPermitWrites));
}

TEST_F(GateTest, a_permit_allows_what_it_names_and_nothing_else) {
  permit(kPermitWrites | kTellOfReads);
  hear();
  EXPECT_TRUE(initiator_.is_possible(kPermitWrites));
  EXPECT_FALSE(initiator_.is_possible(kPermitReads));
  EXPECT_TRUE(initiator_.is_permitted(kTellOfReads));
  EXPECT_FALSE(initiator_.is_permitted(kTellOfWrites));
  ASSERT_TRUE(initiator_.has_slot());
  EXPECT_EQ(write(std::byte{5}).outcome, Outcome::done);
  EXPECT_EQ(memory_[0], std::byte{5});
}

TEST_F(GateTest, an_older_permit_opens_nothing_once_another_is_in_force) {
  permit(kPermitWrites);
  hear();
  ASSERT_TRUE(initiator_.has_slot());
  permit(kPermitReads);  // not heard of yet
  EXPECT_EQ(write(std::byte{5}).outcome, Outcome::through_ring);
  EXPECT_EQ(memory_[0], std::byte{0});
  hear();
  EXPECT_FALSE(initiator_.is_possible(kPermitWrites));
}

TEST_F(GateTest, nothing_lands_once_it_is_shut_and_a_later_permit_has_another_number) {
  permit(kPermitWrites);
  hear();
  ASSERT_TRUE(initiator_.has_slot());
  gate_.shut(b_, pair_.keys->accessors());
  EXPECT_EQ(write(std::byte{5}).outcome, Outcome::through_ring);
  permit(kPermitWrites);
  EXPECT_EQ(write(std::byte{6}).outcome, Outcome::through_ring);
  hear();
  EXPECT_EQ(write(std::byte{7}).outcome, Outcome::done);
  EXPECT_EQ(memory_[0], std::byte{7});
}

TEST_F(GateTest, a_permit_that_finds_no_room_is_told_when_there_is_some) {
  ring::ChannelTx& tx = b_->response_tx;
  while (tx.room(1)) b_.publish_response(1);
  permit(kPermitWrites);
  EXPECT_TRUE(gate_.is_due());
  EXPECT_FALSE(gate_.tell(b_, put_record));
  while (a_.take_responses([](const std::byte*) { return 1u; })) {
  }
  EXPECT_TRUE(gate_.tell(b_, put_record));
  EXPECT_FALSE(gate_.is_due());
  hear();
  EXPECT_TRUE(initiator_.is_possible(kPermitWrites));
}

// Many writers in a loop while the gate is shut at a random moment: canaries stay as they were.
TEST_F(GateTest, a_writer_in_the_middle_of_its_copies_is_waited_for) {
  for (int round = 0; round < 200; ++round) {
    permit(kPermitWrites);
    hear();
    ASSERT_TRUE(initiator_.has_slot());
    std::atomic<bool> stop{false};
    std::atomic<int> copies{0};
    std::thread writer([&] {
      while (!stop.load()) {
        if (write(std::byte{1}, memory_.size()).outcome != Outcome::done) break;
        ++copies;
      }
    });
    while (copies.load() < 1 + round % 3) std::this_thread::yield();
    gate_.shut(b_, pair_.keys->accessors());
    std::fill(memory_.begin(), memory_.end(), std::byte{0});
    std::this_thread::sleep_for(std::chrono::microseconds(round % 100));
    const bool clean =
        std::all_of(memory_.begin(), memory_.end(), [](std::byte b) { return b == std::byte{0}; });
    stop = true;
    writer.join();
    ASSERT_TRUE(clean) << "round " << round;
  }
}

}  // namespace
}  // namespace aperture::transport
