// First contact between two that share no memory: the connection of the hello stays, and becomes
// the lane. Both ends are in this process, which shares no memory with anybody (APERTURE_LINK=tcp).
// The numbers are those of the project's list of hostile inputs.
#include <sys/socket.h>

#include <thread>

#include "base/value_of.hpp"
#include "link/tcp/mover.hpp"
#include "link/tcp/stream_lane.hpp"
#include "nic/eventually.hpp"
#include "nic/proof.hpp"
#include "nic/raw_client.hpp"
#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

using wire::Verdict;
using wire::Why;

class NoEngine final : public link::tcp::MoverHost {
  Status begin_moving(link::Progress&) noexcept override { return {}; }
  void end_moving(link::Progress&) noexcept override {}
};

std::shared_ptr<const Secret> key_of(uint8_t seed) {
  std::vector<uint8_t> bytes(32);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(seed * 31 + i * 7);
  return std::make_shared<Secret>(std::move(Secret::copy_of(bytes)).value());
}

class Streams : public testing::Test {
 protected:
  Streams() : mover_(std::make_shared<link::tcp::Mover>(no_engine_)) {
    EXPECT_TRUE(Identity::read().value().streams_only) << "APERTURE_LINK=tcp has to be set";
  }

  std::unique_ptr<Side> side(std::shared_ptr<const Secret> key = nullptr) {
    return std::make_unique<Side>(1, loopback_v4(), std::move(key), false, mover_);
  }
  // What an engine does once a queue pair has the lane.
  void attach(HeldLane& lane) { lane->on_attached(); }
  void give_back(HeldLane& lane) {
    lane->on_released();
    lane.reset();
  }
  void send(link::Lane& lane, uint64_t word) {
    send_word(lane, word);
    if (lane.request_tx.must_ring()) {
      lane.request_tx.note_rung();
      lane.ring_doorbell();
    }
  }
  bool pump_until(const std::function<bool()>& so) {
    const uint64_t until = now_ns() + 3'000'000'000;
    while (!so()) {
      if (now_ns() > until) return false;
      mover_->progress();
      mover_->flush(true);
    }
    return true;
  }
  void expect_word(link::Lane& lane, uint64_t word) {
    ASSERT_TRUE(pump_until([&] { return lane.request_rx.cells.ready(); }));
    EXPECT_EQ(receive_word(lane), word);
  }
  void expect_carries_both_ways(Side& a, Side& b) {
    Ends ends = join(a, b);
    attach(ends.at_from);
    attach(ends.at_to);
    for (uint64_t i = 1; i < 100; ++i) {
      send(*ends.at_from, i);
      expect_word(*ends.at_to, i);
      send(*ends.at_to, ~i);
      expect_word(*ends.at_from, ~i);
    }
    give_back(ends.at_from);
    EXPECT_TRUE(pump_until([&] { return ends.at_to->lost(); }));
    EXPECT_EQ(b.down(ends.at_to.get()), Errc::shut_down);
    give_back(ends.at_to);
  }

  NoEngine no_engine_;
  std::shared_ptr<link::tcp::Mover> mover_;
};

TEST_F(Streams, two_endpoints_get_one_lane_that_carries_both_ways) {
  const auto a = side(), b = side();
  expect_carries_both_ways(*a, *b);
  EXPECT_TRUE(eventually([] { return contact().census().peers == 0; }));
}

TEST_F(Streams, with_the_same_key_frames_are_tagged_and_carry) {
  const auto a = side(key_of(1)), b = side(key_of(1));
  expect_carries_both_ways(*a, *b);
}

TEST_F(Streams, different_keys_get_no_lane) {
  const auto a = side(key_of(1)), b = side(key_of(2)), without = side();
  for (const auto& [from, to] : {std::pair{a.get(), b.get()}, std::pair{a.get(), without.get()},
                                 std::pair{without.get(), b.get()}}) {
    from->connect(*to);
    EXPECT_EQ(from->failure(), Errc::access_denied);
    EXPECT_TRUE(to->silent(20));
  }
  EXPECT_TRUE(eventually([] { return contact().census().peers == 0; }));
}

TEST_F(Streams, crossing_connects_end_with_one_lane) {
  for (int round = 0; round < 20; ++round) {
    const auto a = side(), b = side();
    a->connect(*b);
    b->connect(*a);
    HeldLane at_a, at_b;
    settle(*a, at_a);
    settle(*b, at_b);
    attach(at_a);
    attach(at_b);
    send(*at_a, 1);
    expect_word(*at_b, 1);
    give_back(at_a);
    give_back(at_b);
  }
}

TEST_F(Streams, what_was_published_before_a_lane_was_given_back_still_comes) {
  const auto a = side(), b = side();
  Ends ends = join(*a, *b);
  attach(ends.at_from);
  for (uint64_t i = 0; i < 200; ++i) send_word(*ends.at_from, i);
  give_back(ends.at_from);
  attach(ends.at_to);
  for (uint64_t i = 0; i < 200; ++i) expect_word(*ends.at_to, i);
  EXPECT_TRUE(pump_until([&] { return ends.at_to->lost(); }));
  EXPECT_EQ(b->down(), Errc::shut_down);
  give_back(ends.at_to);
}

TEST_F(Streams, nobody_listening_is_refused) {
  const auto a = side();
  Address nobody = side()->address();  // it has been closed again
  a->connect(nobody);
  EXPECT_EQ(a->failure(), Errc::refused);
}

// --- strangers -----------------------------------------------------------------------------------

// Somebody who is told to stay and goes on by hand.
struct Stranger : RawClient {
  explicit Stranger(const Address& to) : RawClient(to) { EXPECT_EQ(verdict(), Verdict::stays); }

  wire::Open open_here() const {
    wire::Open open = good_open();
    open.segment = Wild<uint32_t>(0);
    return open;
  }
  template <size_t kBytes>
  std::optional<std::array<std::byte, kBytes>> hear() {
    std::array<std::byte, kBytes> bytes;
    size_t got = 0;
    while (readable(tcp.get())) {
      const Status s = receive_bytes(tcp.get(), bytes, got);
      if (s.ok()) return bytes;
      if (s.error() != Errc::again) break;
    }
    return std::nullopt;
  }
  std::optional<Why> why_rejected() {
    const auto bytes = hear<wire::kRejectBytes>();
    if (!bytes) return std::nullopt;
    auto reject = wire::decode_reject(*bytes);
    return reject ? std::optional(reject->why) : std::nullopt;
  }
  // Asks, and what comes of it.
  std::optional<wire::Accept> ask(const wire::Open& open) {
    if (!say(wire::encode(open).view())) return std::nullopt;
    const auto bytes = hear<wire::kAcceptBytes>();
    if (!bytes) return std::nullopt;
    auto accept = wire::decode_accept(*bytes);
    return accept ? std::optional(accept.value()) : std::nullopt;
  }
};

bool wants_checksums() {
  return std::getenv("APERTURE_CHECKSUMS") != nullptr;
}

TEST_F(Streams, a_stranger_with_the_right_ticket_gets_a_lane) {
  const auto victim = side();
  Stranger guest(victim->address());
  const auto accept = guest.ask(guest.open_here());
  ASSERT_TRUE(accept);
  EXPECT_EQ(accept->checksums, wants_checksums());
  EXPECT_NE(victim->lane(), nullptr);
}

TEST_F(Streams, who_asks_for_checksums_gets_them_and_has_to_send_them) {
  constexpr wire::FrameTrailer kSum{wire::FrameTrailer::Kind::checksum, {}};
  const auto other = side();
  Stranger guest(other->address());
  wire::Open open = guest.open_here();
  open.checksums = true;
  const auto accept = guest.ask(open);
  ASSERT_TRUE(accept);
  EXPECT_TRUE(accept->checksums);
  HeldLane lane = Side::sure(other->lane());
  attach(lane);
  send(*lane, 7);
  mover_->flush(true);
  constexpr size_t kCells = wire::kCellsFrameBytes + ring::kBodyBytes;
  const auto heard = guest.hear<kCells + wire::kFrameTrailerBytes>();
  ASSERT_TRUE(heard);
  const std::span all(*heard);
  const KeyedTag sum = wire::frame_trailer(kSum, 0, all.first(wire::kCellsFrameBytes),
                                           all.subspan(wire::kCellsFrameBytes, ring::kBodyBytes));
  EXPECT_EQ(std::memcmp(sum.data(), &all[kCells], sum.size()), 0);

  // the very same frame is sound here, too, and without its checksum it is not
  ASSERT_TRUE(guest.say(all));
  expect_word(*lane, 7);
  ASSERT_TRUE(guest.say(all.first(kCells)));
  ASSERT_TRUE(guest.say(all.first(kCells)));
  EXPECT_TRUE(pump_until([&] { return lane->lost(); }));
  EXPECT_EQ(other->down(lane.get()), Errc::protocol);
  give_back(lane);
}

TEST_F(Streams, an_answer_without_the_checksums_that_were_asked_for_is_none) {
  const auto before = contact().connector_limits;
  contact().connector_limits.timeout_ns = 300'000'000;
  {
    const auto honest = side();
    Impostor far;
    honest->connect(far.address);
    const ParentOnlyFd connection = far.accept();
    Impostor::hear(connection.get());
    wire::Answer answer;
    answer.verdict = Verdict::stays;
    answer.incarnation = random_id();
    answer.nonce = random_id();
    answer.ticket = 1;
    ASSERT_TRUE(send_bytes(connection.get(), wire::encode(answer)).ok());
    std::array<std::byte, wire::kOpenBytes> bytes{};
    size_t got = 0;
    while (readable(connection.get()) &&
           receive_bytes(connection.get(), bytes, got).error() == Errc::again) {
    }
    const auto open = wire::decode_open(bytes);
    ASSERT_TRUE(open.ok());
    EXPECT_EQ(open.value().checksums, wants_checksums());
    wire::Accept accept;
    accept.attempt = open.value().attempt;
    ASSERT_TRUE(send_bytes(connection.get(), wire::encode(accept).view()).ok());
    if (wants_checksums()) {
      EXPECT_EQ(honest->failure(), Errc::timed_out);  // it has been tried again meanwhile
    } else {
      EXPECT_NE(honest->lane(), nullptr);
    }
  }
  contact().connector_limits = before;
}

TEST_F(Streams, hostile_5_a_wrong_nonce_ticket_or_end_is_a_bad_ticket) {
  const auto victim = side(), other = side();
  using Change = std::function<void(wire::Open&)>;
  const Change changes[] = {
      [](wire::Open& open) { open.nonce[15] ^= 1; },
      [](wire::Open& open) { open.ticket = Wild<uint64_t>(open.ticket.unchecked() + 1); },
      [](wire::Open& open) { open.source.port ^= 1; },
      [&](wire::Open& open) { open.destination = other->address(); },
  };
  for (const Change& change : changes) {
    Stranger thief(victim->address());
    wire::Open open = thief.open_here();
    change(open);
    ASSERT_TRUE(thief.say(wire::encode(open).view()));
    EXPECT_EQ(thief.why_rejected(), Why::bad_ticket);
    EXPECT_TRUE(closed_by_peer(thief.tcp.get()));
  }
  EXPECT_TRUE(victim->silent(20));
}

TEST_F(Streams, hostile_5_another_connections_ticket_is_no_good_here) {
  const auto victim = side();
  Stranger honest(victim->address());
  Stranger thief(victim->address());
  wire::Open stolen = honest.open_here();
  ASSERT_TRUE(thief.say(wire::encode(stolen).view()));
  EXPECT_EQ(thief.why_rejected(), Why::bad_ticket);  // it is another incarnation's
}

TEST_F(Streams, hostile_25_what_names_memory_or_cannot_come_now_ends_the_connection) {
  const auto victim = side();
  const auto expect_end = [&](std::span<const std::byte> bytes) {
    Stranger stranger(victim->address());
    ASSERT_TRUE(stranger.say(bytes));
    EXPECT_TRUE(closed_by_peer(stranger.tcp.get()));
  };
  wire::Join join;
  expect_end(wire::encode_join(join).view());
  expect_end(wire::encode(wire::Accept{}).view());
  expect_end(wire::encode(wire::Withdraw{}).view());
  expect_end(wire::encode_ring().view());
  auto bad_length = wire::encode(wire::Open{});
  bad_length.bytes[4] = std::byte{0xff};
  expect_end(bad_length.view());
  auto bad_version = wire::encode(wire::Open{});
  bad_version.bytes[1] = std::byte{9};
  expect_end(bad_version.view());

  using Change = void (*)(wire::Open&);
  for (const Change change :
       {Change([](wire::Open& o) { o.segment = Wild<uint32_t>(1); }),
        Change([](wire::Open& o) { o.lane = Wild<uint32_t>(1); }),
        Change([](wire::Open& o) { o.engine = Wild<uint64_t>(1); }),
        Change([](wire::Open& o) { o.key_file_bytes = Wild<uint64_t>(1); })}) {
    Stranger stranger(victim->address());
    wire::Open open = stranger.open_here();
    change(open);
    ASSERT_TRUE(stranger.say(wire::encode(open).view()));
    EXPECT_EQ(stranger.why_rejected(), Why::bad_lane);
  }
  EXPECT_TRUE(victim->silent(20));
}

TEST_F(Streams, hostile_31_who_says_it_slowly_or_never_goes_when_his_time_is_up) {
  const auto before = contact().listener_limits;
  contact().listener_limits.timeout_ns = 300'000'000;
  {
    const auto victim = side();
    Stranger silent(victim->address()), slow(victim->address());
    const auto open = wire::encode(slow.open_here());
    ASSERT_TRUE(slow.say(open.view().first(open.size - 1)));
    EXPECT_TRUE(closed_by_peer(silent.tcp.get()));
    EXPECT_TRUE(closed_by_peer(slow.tcp.get()));
    EXPECT_TRUE(victim->silent(20));
    EXPECT_TRUE(eventually([] { return contact().census().peers == 0; }));
    EXPECT_TRUE(eventually([] { return contact().census().handshakes == 0; }));
  }
  contact().listener_limits = before;
}

TEST_F(Streams, who_leaves_before_he_asks_gives_his_ticket_back) {
  const auto victim = side();
  {
    Stranger one(victim->address()), other(victim->address());
    EXPECT_EQ(contact().census().handshakes, 2u);
  }
  EXPECT_TRUE(eventually([] { return contact().census().handshakes == 0; }));
  EXPECT_TRUE(eventually([] { return contact().census().peers == 0; }));
}

TEST_F(Streams, hostile_24_to_26_what_is_no_frame_ends_the_lane_and_nothing_else) {
  const auto victim = side(), honest = side(), friendly = side();
  Ends good = join(*honest, *friendly);
  attach(good.at_from);
  attach(good.at_to);
  for (const size_t bytes : {size_t{1}, size_t{64}, size_t{5000}}) {
    Stranger stranger(victim->address());
    ASSERT_TRUE(stranger.ask(stranger.open_here()));
    HeldLane lane = Side::sure(victim->lane());
    attach(lane);
    ASSERT_TRUE(stranger.say(std::vector<std::byte>(bytes, std::byte{0xff})));
    ::shutdown(stranger.tcp.get(), SHUT_WR);
    EXPECT_TRUE(pump_until([&] { return lane->lost(); }));
    const Errc why = victim->down(lane.get());
    EXPECT_TRUE(why == Errc::protocol || (bytes < 64 && why == Errc::peer_lost)) << describe(why);
    EXPECT_FALSE(lane->request_rx.cells.ready());
    give_back(lane);
  }
  send(*good.at_from, 7);
  expect_word(*good.at_to, 7);
  give_back(good.at_from);
  give_back(good.at_to);
}

}  // namespace
}  // namespace aperture::nic::test
