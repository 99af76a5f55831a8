// A channel between two threads over one mapping: order, acknowledgements, bytes, and sleep without
// a lost wake-up. The messages carry plain memory: ThreadSanitizer validates the ring's order.
#include "ring/channel.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "base/clock.hpp"

namespace aperture::ring {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kMessages = 20'000;
#else
constexpr uint64_t kMessages = 200'000;
#endif
constexpr uint32_t kLog2 = 4;
constexpr uint64_t kBytes = 8192;

struct Memory {
  ChannelWords words{};
  Cell cells[1u << kLog2]{};
  std::byte bytes[kBytes]{};
};

struct Ends {
  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  ChannelTx tx{&memory->words, memory->cells, kLog2, memory->bytes, kBytes};
  ChannelRx rx{&memory->words, memory->cells, kLog2, memory->bytes, kBytes};
};

TEST(Channel, acknowledgements_come_in_batches_and_only_forward) {
  Ends e;
  for (uint32_t i = 0; i < 10; ++i) e.tx.cells.publish(1);
  e.rx.cells.advance(4);
  EXPECT_EQ(e.rx.unpublished(), 4u);
  EXPECT_EQ(e.tx.refresh(), 0u);
  e.rx.publish_consumed();
  EXPECT_EQ(e.rx.unpublished(), 0u);
  EXPECT_EQ(e.tx.refresh(), 4u);
  for (const uint64_t nonsense : {uint64_t{11}, uint64_t{2}, ~uint64_t{0}}) {
    e.memory->words.consumed.store(nonsense);
    EXPECT_EQ(e.tx.refresh(), 4u);
    EXPECT_EQ(e.tx.consumed_seen(), 4u);
  }
  EXPECT_TRUE(e.tx.room(10));
  EXPECT_FALSE(e.tx.room(11));
}

TEST(Channel, room_looks_again_before_it_says_no) {
  Ends e;
  for (uint32_t i = 0; i < 16; ++i) e.tx.cells.publish(1);
  EXPECT_FALSE(e.tx.room(1));
  e.rx.cells.advance(1);
  e.rx.publish_consumed();
  EXPECT_TRUE(e.tx.room(1));
  uint64_t pos = 0;
  ASSERT_TRUE(e.tx.reserve_bytes(8192, pos));
  e.tx.bytes.commit(pos, 8192);
  EXPECT_FALSE(e.tx.reserve_bytes(1, pos));
  e.rx.cells.advance(1);
  e.rx.free_bytes_before(4096);
  e.rx.publish_consumed();
  EXPECT_TRUE(e.tx.reserve_bytes(4096, pos));
  EXPECT_FALSE(e.tx.reserve_bytes(4097, pos));
}

TEST(Channel, doorbell_is_rung_once_for_each_sleep) {
  Ends e;
  EXPECT_FALSE(e.tx.must_ring());
  EXPECT_TRUE(e.tx.consumer_hot());
  for (int sleep = 0; sleep < 2; ++sleep) {
    e.rx.set_state(ConsumerState::asleep);
    EXPECT_FALSE(e.tx.consumer_hot());
    EXPECT_TRUE(e.tx.must_ring());
    EXPECT_TRUE(e.tx.must_ring_for_acknowledgement());
    e.tx.note_rung();
    EXPECT_FALSE(e.tx.must_ring());
    EXPECT_FALSE(e.tx.must_ring_for_acknowledgement());
    EXPECT_FALSE(e.tx.consumer_hot());
  }
  for (const uint64_t nonsense : {uint64_t{4}, uint64_t{78}, ~uint64_t{1}}) {
    e.memory->words.state.store(nonsense);
    EXPECT_FALSE(e.tx.must_ring());
    EXPECT_FALSE(e.tx.must_ring_for_acknowledgement());
  }
}

TEST(Channel, whoever_rings_learns_the_number_of_the_sleep_that_he_marked) {
  Ends e;
  EXPECT_EQ(e.tx.note_rung(), kUnnumbered) << "it is awake";
  for (const uint64_t sleep : {uint64_t{1}, uint64_t{2}, ~uint64_t{0} >> kStateBits}) {
    e.rx.set_state(ConsumerState::asleep_for_records, sleep);
    EXPECT_TRUE(e.tx.must_ring());
    EXPECT_FALSE(e.tx.must_ring_for_acknowledgement());
    EXPECT_EQ(e.tx.note_rung(), sleep);
    EXPECT_EQ(e.tx.note_rung(), kUnnumbered) << "it is marked";
    EXPECT_FALSE(e.tx.must_ring());
    EXPECT_FALSE(e.tx.consumer_hot());
  }
}

TEST(Channel, a_consumer_that_has_woken_up_before_it_is_rung_stays_hot) {
  Ends e;
  e.rx.set_state(ConsumerState::asleep);
  ASSERT_TRUE(e.tx.must_ring());
  e.rx.set_state(ConsumerState::hot);  // by itself, or rung by another channel
  e.tx.note_rung();
  EXPECT_TRUE(e.tx.consumer_hot());
}

TEST(Channel, who_sleeps_for_records_hears_no_acknowledgement) {
  Ends e;
  e.rx.set_state(ConsumerState::asleep_for_records);
  EXPECT_FALSE(e.tx.consumer_hot());
  EXPECT_FALSE(e.tx.must_ring_for_acknowledgement());
  EXPECT_TRUE(e.tx.must_ring());
}

// Messages of 1 to 5 cells, some with a piece of the byte ring behind them.
TEST(Channel, two_threads_move_every_message_once_and_in_order) {
  Ends e;
  const auto bytes_of = [](uint64_t i) { return static_cast<uint32_t>(i % 3 == 0 ? i % 2000 : 0); };
  std::thread producer([&] {
    for (uint64_t i = 0; i < kMessages; ++i) {
      const auto n = static_cast<uint32_t>(1 + i % 5);
      uint64_t pos = 0;
      while (!e.tx.room(n) || !e.tx.reserve_bytes(bytes_of(i), pos)) std::this_thread::yield();
      std::memset(e.tx.bytes.at(pos), static_cast<int>(i & 0xff), bytes_of(i));
      e.tx.bytes.commit(pos, bytes_of(i));
      BodyWriter cursor(e.tx.cells, 0);
      cursor.copy_in(&i, sizeof i);
      cursor.copy_in(&pos, sizeof pos);
      for (uint32_t c = 1; c < n; ++c) std::memcpy(e.tx.cells.body(c), &i, sizeof i);
      e.tx.cells.publish(n);
    }
  });
  for (uint64_t i = 0; i < kMessages;) {
    if (!e.rx.cells.ready()) {
      e.rx.publish_consumed();
      std::this_thread::yield();
      continue;
    }
    const auto n = static_cast<uint32_t>(1 + i % 5);
    uint64_t got = 0;
    uint64_t pos = 0;
    BodyReader cursor(e.rx.cells, 0);
    cursor.copy_out(&got, sizeof got);
    cursor.copy_out(&pos, sizeof pos);
    ASSERT_EQ(got, i);
    for (uint32_t c = 1; c < n; ++c) {
      std::memcpy(&got, e.rx.cells.body(c), sizeof got);
      ASSERT_EQ(got, i);
    }
    const std::byte* piece = e.rx.bytes.view(pos, bytes_of(i));
    ASSERT_NE(piece, nullptr);
    for (uint32_t b = 0; b < bytes_of(i); b += 97) ASSERT_EQ(piece[b], std::byte(i & 0xff));
    e.rx.free_bytes_before(ByteReader::after(pos, bytes_of(i)));
    e.rx.cells.advance(n);
    if (i % 7 == 0) e.rx.publish_consumed();
    ++i;
  }
  e.rx.publish_consumed();
  producer.join();
  EXPECT_EQ(e.tx.refresh(), e.rx.cells.pos());
}

// The consumer sleeps on a doorbell whenever it finds nothing: no message may find it asleep
// without waking it. A lost wake-up shows as a poll that times out with a message ready.
TEST(Channel, sleeper_is_woken_by_every_message) {
  ASSERT_TRUE(register_for_heavy_barriers());
  Ends e;
  const int bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const uint64_t messages = kMessages / 10;
  std::thread producer([&] {
    for (uint64_t i = 0; i < messages; ++i) {
      while (!e.tx.room(1)) std::this_thread::yield();
      e.tx.cells.publish(1);
      if (e.tx.must_ring()) {
        e.tx.note_rung();
        const uint64_t one = 1;
        EXPECT_EQ(::write(bell, &one, sizeof one), ssize_t{sizeof one});
      }
      for (uint64_t spin = i * 7919 % 300; spin > 0; --spin) cpu_relax();
    }
  });
  uint64_t seen = 0;
  uint64_t slept = 0;
  while (seen < messages) {
    while (e.rx.cells.ready()) {
      e.rx.cells.advance(1);
      ++seen;
    }
    e.rx.publish_consumed();
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained = ::read(bell, &count, sizeof count);
    e.rx.set_state(ConsumerState::asleep);
    heavy_barrier();
    if (!e.rx.cells.ready() && seen < messages) {
      ++slept;
      pollfd p{bell, POLLIN, 0};
      const int woken = ::poll(&p, 1, 10'000);
      ASSERT_EQ(woken, 1) << "lost wake-up after " << seen << ", ready: " << e.rx.cells.ready();
    }
    e.rx.set_state(ConsumerState::hot);
  }
  producer.join();
  ::close(bell);
  EXPECT_GT(slept, 0u);
}

}  // namespace
}  // namespace aperture::ring
