// Lanes over streams as their engine moves them, over TCP on loopback and over simulated streams:
// what goes out when, what wakes a sleeping engine, how a lane ends.
#include "link/tcp/stream.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <deque>

#include "base/clock.hpp"
#include "base/forked.hpp"
#include "base/value_of.hpp"
#include "link/simulated_stream.hpp"

namespace aperture::link::test {
namespace {

using aperture::test::value_of;
using tcp::StreamLane;

constexpr unsigned kSilenceMs = 5000;

struct Sockets {
  UniqueFd first, second;
};
Sockets connected() {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t len = sizeof at;
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&at), len), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &len);
  Sockets two;
  two.first = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(two.first.get(), reinterpret_cast<sockaddr*>(&at), len), 0);
  two.second = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(two.second);
  return two;
}

bool is_ready(int fd, short events = POLLIN, int timeout_ms = 0) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}

// A lane as a queue pair has it, whose engine is this test.
struct End {
  explicit End(std::unique_ptr<tcp::Stream> stream) : End(std::move(stream), MovingSide()) {}
  End(std::unique_ptr<tcp::Stream> stream, const MovingSide& mover) : side(mover) {
    lane = side.lane_over(std::move(stream));
    lane->on_attached();
  }
  End(End&&) = default;
  ~End() {
    if (lane != nullptr) lane->on_released();
  }

  bool put(uint64_t value) {
    ring::ChannelTx& tx = lane->request_tx;
    if (!tx.room(1)) return false;
    std::memcpy(tx.cells.body(), &value, sizeof value);
    tx.cells.publish(1);
    ring(tx);
    return true;
  }
  bool put_bytes(uint32_t n, std::byte fill) {
    uint64_t pos = 0;
    ring::ChannelTx& tx = lane->request_tx;
    if (!tx.room(1) || !tx.reserve_bytes(n, pos)) return false;
    std::memset(tx.bytes.at(pos), std::to_integer<int>(fill), n);
    tx.bytes.commit(pos, n);
    return put(pos);
  }
  bool take(uint64_t& value) {
    ring::ChannelRx& rx = lane->request_rx;
    if (!rx.cells.ready()) return false;
    std::memcpy(&value, rx.cells.body(), sizeof value);
    rx.cells.advance(1);
    return true;
  }
  void acknowledge() {
    lane->request_rx.publish_consumed();
    if (lane->response_tx.must_ring_for_acknowledgement()) ring(lane->response_tx);
  }
  void ring(ring::ChannelTx& tx) {
    if (!tx.must_ring()) return;
    lane->request_tx.note_rung();
    lane->response_tx.note_rung();
    lane->ring_doorbell();
  }
  template <typename So>
  bool until(So&& so) {
    for (const uint64_t end = now_ns() + 5'000'000'000; !so();) {
      if (now_ns() > end) return false;
      side.poll();
    }
    return true;
  }
  const std::vector<Errc>& told() const { return side.host->ends; }

  MovingSide side;
  std::unique_ptr<StreamLane> lane;
};

class TcpLane : public testing::Test {
 protected:
  TcpLane() : TcpLane(connected()) {}
  explicit TcpLane(Sockets sockets)
      : fd_a_(sockets.first.get()),
        fd_b_(sockets.second.get()),
        a_(stream_over(std::move(sockets.first))),
        b_(stream_over(std::move(sockets.second))) {}

  static std::unique_ptr<tcp::Stream> stream_over(UniqueFd socket) {
    return value_of(tcp::make_stream(ParentOnlyFd(std::move(socket)), kSilenceMs));
  }

  const int fd_a_, fd_b_;
  End a_, b_;
};

TEST(TcpStream, is_made_over_tcp_alone) {
  int two[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, two), 0);
  const UniqueFd other(two[1]);
  EXPECT_EQ(tcp::make_stream(ParentOnlyFd(UniqueFd(two[0])), kSilenceMs).error(), Errc::io);
}

TEST_F(TcpLane, messages_arrive_in_order_and_once_in_both_directions) {
  uint64_t sent[2] = {}, got[2] = {};
  End* const ends[2] = {&a_, &b_};
  for (const uint64_t give_up = now_ns() + 20'000'000'000; got[0] + got[1] < 20'000;) {
    ASSERT_LT(now_ns(), give_up);
    for (int i = 0; i < 2; ++i) {
      while (sent[i] < 10'000 && ends[i]->put(sent[i])) ++sent[i];
      ends[i]->side.poll([&] {
        uint64_t value = 0;
        while (ends[i]->take(value)) ASSERT_EQ(value, got[i]++);
        ends[i]->acknowledge();
      });
    }
  }
}

TEST_F(TcpLane, bytes_of_many_rings_full_arrive_as_they_were_put) {
  constexpr uint32_t kPiece = 100'000;
  constexpr int kPieces = 200;
  int sent = 0;
  int got = 0;
  const uint64_t begin = now_ns();
  while (got < kPieces) {
    ASSERT_LT(now_ns(), begin + 20'000'000'000);
    while (sent < kPieces && a_.put_bytes(kPiece, static_cast<std::byte>(sent))) ++sent;
    a_.side.poll();
    b_.side.poll([&] {
      uint64_t pos = 0;
      while (b_.take(pos)) {
        const std::byte* bytes = b_.lane->request_rx.bytes.view(pos, kPiece);
        ASSERT_NE(bytes, nullptr);
        ASSERT_EQ(std::count(bytes, bytes + kPiece, static_cast<std::byte>(got)), kPiece);
        b_.lane->request_rx.free_bytes_before(ring::ByteReader::after(pos, kPiece));
        ++got;
      }
      b_.acknowledge();
    });
  }
}

TEST_F(TcpLane, sleeping_engine_is_woken_by_what_arrives_and_by_room_and_by_nothing_else) {
  for (int i = 0; i < 40; ++i) b_.side.poll();
  const int fd = b_.side.mover->fd();
  EXPECT_FALSE(is_ready(fd));
  ASSERT_TRUE(a_.put(1));
  a_.side.poll();
  EXPECT_TRUE(is_ready(fd, POLLIN, 5000));
  ASSERT_TRUE(b_.until([&] { return b_.lane->request_rx.cells.ready(); }));
  EXPECT_FALSE(is_ready(fd));
}

TEST_F(TcpLane, what_the_socket_does_not_take_goes_once_it_has_room) {
  const int small = 4096;
  // said aloud, the sizes stay what they are; unsaid, the kernel might take all of it at once
  ASSERT_EQ(::setsockopt(fd_a_, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  ASSERT_EQ(::setsockopt(fd_b_, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  ASSERT_TRUE(a_.put_bytes(128 * 1024, std::byte{1}));
  ASSERT_TRUE(a_.put_bytes(128 * 1024, std::byte{2}));
  for (int i = 0; i < 5; ++i) a_.side.poll();
  ASSERT_FALSE(is_ready(fd_a_, POLLOUT));
  EXPECT_FALSE(a_.side.mover->needs_polling()) << "it is woken, and need not poll";
  EXPECT_FALSE(is_ready(a_.side.mover->fd()));
  ASSERT_TRUE(b_.until([&] { return is_ready(a_.side.mover->fd()); }));
  int got = 0;
  ASSERT_TRUE(b_.until([&] {
    a_.side.poll();
    uint64_t pos = 0;
    got += b_.take(pos);
    return got == 2;
  }));
  for (int i = 0; i < 40; ++i) a_.side.poll();
  EXPECT_FALSE(is_ready(a_.side.mover->fd())) << "nothing is waited for any more";
}

TEST_F(TcpLane, what_was_published_before_the_lane_was_given_back_arrives_and_then_its_end) {
  ASSERT_TRUE(a_.put_bytes(200'000, std::byte{3}));
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(a_.put(i));
  ASSERT_TRUE(b_.put(5));  // nobody reads it, and it destroys nothing
  b_.side.poll();
  a_.lane->on_released();
  ASSERT_TRUE(b_.until([&] { return a_.lane->linger() || b_.lane->lost(); }));
  EXPECT_EQ(b_.told(), std::vector{Errc::shut_down});
  uint64_t value = 0;
  for (int i = 0; i < 101; ++i) ASSERT_TRUE(b_.take(value)) << i;
  EXPECT_EQ(value, 99u);
  EXPECT_FALSE(a_.lane->linger()) << "the other side has not ended";
  EXPECT_EQ(a_.lane->events(), POLLIN);
  b_.lane->on_released();
  EXPECT_TRUE(b_.lane->linger());
  b_.lane.reset();
  EXPECT_TRUE(is_ready(fd_a_, POLLIN, 5000));
  EXPECT_TRUE(a_.lane->linger());
  a_.lane.reset();
}

TEST_F(TcpLane, peer_that_is_gone_is_lost_and_what_it_had_sent_can_be_read) {
  ASSERT_TRUE(a_.put(7));
  a_.side.poll();
  a_.lane->on_released();
  a_.lane.reset();  // as its process would
  ASSERT_TRUE(b_.until([&] { return b_.lane->lost(); }));
  EXPECT_EQ(b_.told(), std::vector{Errc::peer_lost});
  uint64_t value = 0;
  ASSERT_TRUE(b_.take(value));
  EXPECT_EQ(value, 7u);
  EXPECT_FALSE(is_ready(b_.side.mover->fd())) << "it is waited on no more";
}

TEST_F(TcpLane, reset_is_told_once_whether_sending_or_receiving_finds_it) {
  const linger hard{1, 0};
  ASSERT_EQ(::setsockopt(fd_a_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard), 0);
  a_.lane->on_released();
  a_.lane.reset();
  for (int i = 0; i < 40; ++i) {
    b_.put(1);
    b_.side.poll();
  }
  EXPECT_TRUE(b_.lane->lost());
  EXPECT_EQ(b_.told(), std::vector{Errc::peer_lost});
}

TEST_F(TcpLane, forked_child_leaves_the_parents_lanes_alone) {
  ASSERT_TRUE(guard_against_fork());
  // a mover that was opened in this life
  Sockets sockets = connected();
  End here(stream_over(std::move(sockets.first)));
  End there(stream_over(std::move(sockets.second)));
  EXPECT_TRUE(aperture::test::holds_in_child([&] {
    const bool moved = here.side.mover->progress();
    here.side.mover->flush(true);
    here.lane->on_released();
    const bool ended = here.lane->linger();
    here.lane.reset();
    return !moved && ended;
  }));
  ASSERT_TRUE(here.put(2));
  here.side.poll();
  ASSERT_TRUE(there.until([&] { return there.lane->request_rx.cells.ready(); }));
  uint64_t value = 0;
  ASSERT_TRUE(there.take(value));
  EXPECT_EQ(value, 2u);
  EXPECT_FALSE(here.lane->lost() || there.lane->lost());
}

// Lanes of one mover, and at the other end of each a mover of its own.
struct ManyLanes {
  explicit ManyLanes(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Sockets sockets = connected();
      const auto over = [](UniqueFd socket) {
        return value_of(tcp::make_stream(ParentOnlyFd(std::move(socket)), kSilenceMs));
      };
      here.emplace_back(over(std::move(sockets.first)), side);
      there.emplace_back(over(std::move(sockets.second)));
    }
  }

  MovingSide side;
  std::deque<End> here, there;
};

TEST(Mover, moves_more_lanes_than_it_keeps_hot) {
  ManyLanes lanes(40);
  MovingSide& side = lanes.side;
  std::deque<End>& here = lanes.here;
  std::deque<End>& there = lanes.there;
  EXPECT_TRUE(side.host->moving);
  for (int round = 0; round < 20; ++round) {
    for (End& end : there) {
      ASSERT_TRUE(end.put(static_cast<uint64_t>(round)));
      end.side.poll();
    }
    for (End& end : here) {
      ASSERT_TRUE(end.until([&] { return end.lane->request_rx.cells.ready(); }));
      uint64_t value = 0;
      ASSERT_TRUE(end.take(value));
      EXPECT_EQ(value, static_cast<uint64_t>(round));
      end.acknowledge();
    }
  }
  here.clear();
  EXPECT_FALSE(side.host->moving);
}

TEST(Mover, has_read_what_came_over_all_others_when_it_tells_the_end_of_one) {
  ManyLanes lanes(70);  // more than one question to the kernel answers
  std::deque<End>& here = lanes.here;
  std::deque<End>& there = lanes.there;
  ASSERT_TRUE(there[0].put(1));
  ASSERT_TRUE(here[0].until([&] { return here[0].lane->request_rx.cells.ready(); }))
      << "it is hot, and read before all others";
  for (size_t i = 1; i < there.size(); ++i) {
    ASSERT_TRUE(there[i].put(i));
    there[i].side.poll();
  }
  there[0].lane->on_released();
  there[0].lane.reset();
  ASSERT_TRUE(here[0].until([&] { return here[0].lane->lost(); }));
  for (size_t i = 1; i < here.size(); ++i) {
    EXPECT_TRUE(here[i].lane->request_rx.cells.ready()) << "lane " << i;
  }
}

// --- when something goes, over simulated streams ---

class SimulatedLane : public testing::Test {
 protected:
  SimulatedLane() {
    for (int i = 0; i < 3; ++i) end_.side.poll();
    await_quiet();
  }
  static void await_quiet() {
    for (const uint64_t end = now_ns() + 100'000; now_ns() < end;) {
    }
  }
  void receive_one(uint16_t count = 1) {
    std::vector<std::byte> frame(wire::kCellsFrameBytes + count * ring::kBodyBytes);
    wire::encode(wire::CellsFrame{wire::FrameChannel::requests, Wild(count)}, frame);
    in_->put(frame);
  }

  std::shared_ptr<Pipe> out_ = std::make_shared<Pipe>(), in_ = std::make_shared<Pipe>();
  End end_{std::make_unique<SimulatedStream>(out_, in_)};
};

TEST_F(SimulatedLane, first_message_after_a_pause_goes_at_once_and_the_next_gather) {
  ASSERT_TRUE(end_.put(1));
  const uint64_t one = wire::kCellsFrameBytes + ring::kBodyBytes;
  EXPECT_EQ(out_->taken, one);
  EXPECT_FALSE(end_.side.mover->needs_polling());
  end_.side.poll([&] {
    await_quiet();
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(end_.put(2));
    EXPECT_EQ(out_->taken, one) << "the end of the poll is near";
    EXPECT_TRUE(end_.side.mover->needs_polling());
  });
  EXPECT_EQ(out_->taken, one + wire::kCellsFrameBytes + 10 * ring::kBodyBytes);
  EXPECT_FALSE(end_.side.mover->needs_polling());
}

TEST_F(SimulatedLane, credit_waits_for_company_until_the_next_poll) {
  receive_one();
  uint64_t value = 0;
  end_.side.poll(
      [&] {
        ASSERT_TRUE(end_.take(value));
        end_.acknowledge();
      },
      false);
  EXPECT_EQ(out_->taken, 0u);
  EXPECT_TRUE(end_.side.mover->needs_polling());
  await_quiet();
  ASSERT_TRUE(end_.put(1));  // takes the credit along, at once
  EXPECT_EQ(out_->taken, wire::kCellsFrameBytes + ring::kBodyBytes + wire::kCreditFrameBytes);
  receive_one();
  end_.side.poll(
      [&] {
        ASSERT_TRUE(end_.take(value));
        end_.acknowledge();
      },
      false);
  const uint64_t before = out_->taken;
  end_.side.mover->progress();
  EXPECT_EQ(out_->taken, before + wire::kCreditFrameBytes);
  EXPECT_FALSE(end_.side.mover->needs_polling());
}

TEST_F(SimulatedLane, credit_goes_at_once_before_a_sleep_and_for_a_quarter_of_a_ring) {
  const auto consume = [&](uint16_t count, bool hurry) {
    receive_one(count);
    const uint64_t before = out_->taken;
    end_.side.poll(
        [&] {
          end_.lane->request_rx.cells.advance(count);
          end_.acknowledge();
        },
        hurry);
    return out_->taken - before;
  };
  EXPECT_EQ(consume(1, true), wire::kCreditFrameBytes);
  EXPECT_EQ(consume(63, false), 0u);
  end_.side.poll();
  EXPECT_EQ(consume(64, false), wire::kCreditFrameBytes);
}

TEST_F(SimulatedLane, ring_for_nothing_sends_nothing) {
  end_.lane->ring_doorbell();
  end_.side.poll();
  EXPECT_EQ(out_->taken, 0u);
  EXPECT_FALSE(end_.side.mover->needs_polling());
}

TEST_F(SimulatedLane, sleeper_relies_on_no_barrier) {
  EXPECT_TRUE(end_.lane->request_rx.producer_fences());
  EXPECT_TRUE(end_.lane->response_rx.producer_fences());
}

TEST(StreamLane, that_cannot_be_moved_is_lost_and_its_host_is_told) {
  MovingSide side;
  side.host->refuse = Errc::no_fds;
  auto lane = side.lane_over(
      std::make_unique<SimulatedStream>(std::make_shared<Pipe>(), std::make_shared<Pipe>()));
  lane->on_attached();
  EXPECT_TRUE(lane->lost());
  EXPECT_EQ(side.host->ends, std::vector{Errc::no_fds});
  lane->on_released();
  EXPECT_TRUE(lane->linger());
}

}  // namespace
}  // namespace aperture::link::test
