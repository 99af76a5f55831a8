// The Link contract (src/link/lane.hpp), run over every link, bare and with delays on top: what is
// published arrives in order and once, room comes back only by `consumed`, requests and responses
// do not stand in each other's way, the doorbell rings only for who sleeps, and what was published
// before a loss can still be read.
#include <poll.h>

#include <cstring>
#include <thread>

#include "base/barrier.hpp"
#include "base/value_of.hpp"
#include "link/lane_pair.hpp"

namespace aperture::link {
namespace {

using aperture::test::value_of;
using test::LanePair;
using test::LinkKind;

enum class Kind { shm, loopback_pair, loopback_self, stream, delayed, delayed_stream };

std::string name_of(const testing::TestParamInfo<Kind>& info) {
  switch (info.param) {
    case Kind::shm: return "shm";
    case Kind::loopback_pair: return "loopback_pair";
    case Kind::loopback_self: return "loopback_self";
    case Kind::stream: return "stream";
    case Kind::delayed: return "delayed";
    case Kind::delayed_stream: return "delayed_stream";
  }
  return "unknown";
}

// Behind a head that is no record's: one cell is one message, whoever reads it.
constexpr size_t kValueAt = 16;

class LinkContract : public testing::TestWithParam<Kind> {
 protected:
  LinkContract() : pair_(link_of(GetParam())) {
    if (GetParam() == Kind::loopback_self) {
      const Address own = Address::v4(0x7f000001, 1);
      pair_.lane_a = value_of(loopback::make_self_lane(own, 1, pair_.bell_b()));
    } else {
      pair_.make(1, 2);
    }
  }

  static LinkKind link_of(Kind kind) {
    if (kind == Kind::stream) return LinkKind::stream;
    if (kind == Kind::delayed) return LinkKind::delayed;
    if (kind == Kind::delayed_stream) return LinkKind::delayed_stream;
    return kind == Kind::shm ? LinkKind::shm : LinkKind::loopback;
  }
  Lane& left() { return *pair_.lane_a; }
  // a lane to oneself has one end
  Lane& right() { return pair_.lane_b != nullptr ? *pair_.lane_b : *pair_.lane_a; }
  bool bell_rang() {
    pollfd p{pair_.bell_b(), POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
  }

  bool put(ring::ChannelTx& tx, uint64_t value) {
    if (!tx.room(1)) return false;
    std::memset(tx.cells.body(), 0, kValueAt);
    std::memcpy(tx.cells.body() + kValueAt, &value, sizeof value);
    tx.cells.publish(1);
    pair_.move();
    return true;
  }
  void acknowledge(ring::ChannelRx& rx) {
    rx.publish_consumed();
    pair_.move();
  }
  static bool take(ring::ChannelRx& rx, uint64_t& value) {
    if (!rx.cells.ready()) return false;
    std::memcpy(&value, rx.cells.body() + kValueAt, sizeof value);
    rx.cells.advance(1);
    return true;
  }

  LanePair pair_;
};
using ContractOfTwoEnds = LinkContract;
using ContractOfSharedRings = LinkContract;

TEST_P(LinkContract, messages_arrive_in_order_and_once) {
  uint64_t sent = 0;
  uint64_t got = 0;
  while (got < 10'000) {
    while (sent < 10'000 && put(left().request_tx, sent)) ++sent;
    uint64_t value = 0;
    while (take(right().request_rx, value)) ASSERT_EQ(value, got++);
    acknowledge(right().request_rx);
  }
  EXPECT_FALSE(right().request_rx.cells.ready());
}

TEST_P(LinkContract, a_full_channel_has_room_again_only_once_consumed) {
  uint64_t n = 0;
  while (put(left().request_tx, n)) ++n;
  EXPECT_EQ(n, left().request_tx.cells.capacity());
  uint64_t value = 0;
  ASSERT_TRUE(take(right().request_rx, value));
  EXPECT_FALSE(put(left().request_tx, n)) << "read, but not published as consumed";
  acknowledge(right().request_rx);
  EXPECT_TRUE(put(left().request_tx, n));
  EXPECT_FALSE(put(left().request_tx, n));
}

TEST_P(LinkContract, full_requests_hold_up_no_response) {
  while (put(left().request_tx, 1)) {
  }
  ASSERT_TRUE(put(left().response_tx, 77));
  uint64_t value = 0;
  ASSERT_TRUE(take(right().response_rx, value));
  EXPECT_EQ(value, 77u);
}

TEST_P(ContractOfTwoEnds, both_directions_are_apart) {
  ASSERT_TRUE(put(left().request_tx, 1));
  ASSERT_TRUE(put(right().request_tx, 2));
  uint64_t value = 0;
  ASSERT_TRUE(take(left().request_rx, value));
  EXPECT_EQ(value, 2u);
  ASSERT_TRUE(take(right().request_rx, value));
  EXPECT_EQ(value, 1u);
}

TEST_P(LinkContract, consumed_is_seen_by_the_producer) {
  ASSERT_TRUE(put(left().request_tx, 1));
  EXPECT_EQ(left().request_tx.refresh(), 0u);
  uint64_t value = 0;
  ASSERT_TRUE(take(right().request_rx, value));
  acknowledge(right().request_rx);
  EXPECT_EQ(left().request_tx.refresh(), 1u);
}

TEST_P(LinkContract, byte_rings_carry_what_was_put_and_come_back) {
  ASSERT_TRUE(left().prepare_request_bytes());
  ASSERT_TRUE(left().prepare_response_bytes());
  const auto piece = static_cast<uint32_t>(left().request_tx.bytes.size() / 2);
  for (int round = 0; round < 5; ++round) {
    uint64_t pos = 0;
    ASSERT_TRUE(left().request_tx.reserve_bytes(piece, pos)) << "round " << round;
    std::memset(left().request_tx.bytes.at(pos), round + 1, piece);
    left().request_tx.bytes.commit(pos, piece);
    ASSERT_TRUE(put(left().request_tx, pos));
    uint64_t told = 0;
    ASSERT_TRUE(take(right().request_rx, told));
    const std::byte* seen = right().request_rx.bytes.view(told, piece);
    ASSERT_NE(seen, nullptr);
    EXPECT_EQ(seen[0], std::byte(round + 1));
    EXPECT_EQ(seen[piece - 1], std::byte(round + 1));
    right().request_rx.free_bytes_before(ring::ByteReader::after(told, piece));
    acknowledge(right().request_rx);
  }
}

TEST_P(ContractOfSharedRings, only_a_sleeping_consumer_is_rung_and_only_once) {
  ASSERT_TRUE(put(left().request_tx, 1));
  EXPECT_FALSE(left().request_tx.must_ring());
  right().request_rx.set_state(ring::ConsumerState::asleep);
  heavy_barrier();
  ASSERT_TRUE(put(left().request_tx, 2));
  ASSERT_TRUE(left().request_tx.must_ring());
  left().request_tx.note_rung();
  left().ring_doorbell();
  EXPECT_TRUE(bell_rang());
  EXPECT_FALSE(left().request_tx.must_ring()) << "rung already";
}

TEST_P(LinkContract, what_was_published_before_a_loss_can_be_read) {
  ASSERT_TRUE(put(left().request_tx, 5));
  right().mark_lost();
  EXPECT_TRUE(right().lost());
  // the other side is gone, its mapping too
  if (GetParam() != Kind::loopback_self) pair_.drop(LanePair::Of::a);
  pair_.move();
  uint64_t value = 0;
  ASSERT_TRUE(take(right().request_rx, value));
  EXPECT_EQ(value, 5u);
}

TEST_P(ContractOfSharedRings, two_threads_see_every_message_whole) {
  constexpr uint64_t kMessages = 20'000;
  std::thread producer([&] {
    for (uint64_t i = 0; i < kMessages;) {
      if (put(left().request_tx, i * 3)) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (uint64_t i = 0; i < kMessages;) {
    uint64_t value = 0;
    if (!take(right().request_rx, value)) {
      std::this_thread::yield();
      continue;
    }
    if (value != i * 3) ADD_FAILURE() << "message " << i << " reads " << value;
    ++i;
    acknowledge(right().request_rx);
  }
  producer.join();
}

INSTANTIATE_TEST_SUITE_P(Links, LinkContract,
                         testing::Values(Kind::shm, Kind::loopback_pair, Kind::loopback_self,
                                         Kind::stream, Kind::delayed, Kind::delayed_stream),
                         name_of);
// a lane to oneself has one direction
INSTANTIATE_TEST_SUITE_P(Links, ContractOfTwoEnds,
                         testing::Values(Kind::shm, Kind::loopback_pair, Kind::stream,
                                         Kind::delayed, Kind::delayed_stream),
                         name_of);
// a lane over a stream is one thread's at a time, and what wakes the other side is the stream
INSTANTIATE_TEST_SUITE_P(Links, ContractOfSharedRings,
                         testing::Values(Kind::shm, Kind::loopback_pair, Kind::loopback_self),
                         name_of);

}  // namespace
}  // namespace aperture::link
