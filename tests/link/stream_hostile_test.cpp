// Frames that no sound peer sends, against a live lane: each ends it, says so once, and places
// nothing; what had come before can still be read. Numbers as in the list of hostile inputs.
#include <gtest/gtest.h>

#include "base/crc32c.hpp"
#include "link/simulated_stream.hpp"

namespace aperture::link::test {
namespace {

using wire::FrameChannel;
using Bytes = std::vector<std::byte>;

constexpr auto kRequests = FrameChannel::requests;
constexpr auto kResponses = FrameChannel::responses;

Bytes cells(uint16_t count, uint8_t fill = 1, FrameChannel channel = kRequests) {
  Bytes frame(wire::kCellsFrameBytes + count * ring::kBodyBytes, std::byte{fill});
  wire::encode(wire::CellsFrame{channel, Wild(count)}, frame);
  return frame;
}
Bytes bytes(uint64_t position, uint32_t length, FrameChannel channel = kRequests) {
  Bytes frame(wire::kBytesFrameBytes);
  wire::encode(wire::BytesFrame{channel, Wild(position), Wild(length)},
               std::span(frame).first<wire::kBytesFrameBytes>());
  return frame;
}
Bytes piece(uint64_t position, uint32_t length, FrameChannel channel = kRequests,
            uint8_t fill = 3) {
  Bytes frame(wire::kPieceFrameBytes, std::byte{fill});
  wire::encode(wire::PieceFrame{channel, Wild(position), Wild(length)},
               std::span(frame).first<wire::kPieceFrameBytes>());
  return frame;
}
Bytes payload(uint32_t length, uint8_t fill = 7) {
  return Bytes(length, std::byte{fill});
}
Bytes credit(uint64_t consumed, uint64_t bytes_consumed, FrameChannel channel = kRequests) {
  Bytes frame(wire::kCreditFrameBytes);
  wire::encode(wire::CreditFrame{channel, Wild(consumed), Wild(bytes_consumed)},
               std::span(frame).first<wire::kCreditFrameBytes>());
  return frame;
}
Bytes close() {
  Bytes frame(wire::kCloseFrameBytes);
  wire::encode_close(std::span(frame).first<wire::kCloseFrameBytes>());
  return frame;
}
Bytes flipped(Bytes frame, size_t at, uint8_t bits) {
  frame[at] ^= std::byte{bits};
  return frame;
}
// As flipped(), with a checksum that is right again.
Bytes forged(Bytes frame, size_t at, uint8_t bits) {
  frame[at] ^= std::byte{bits};
  const std::span all(frame);
  const uint32_t crc = crc32c(all.subspan(8), crc32c(all.first(4)));
  std::memcpy(&frame[4], &crc, sizeof crc);
  return frame;
}

class HostileStream : public testing::Test {
 protected:
  explicit HostileStream(const wire::FrameTrailers& trailers = {}) {
    lane_ = side_.lane_over(std::make_unique<SimulatedStream>(out_, in_), trailers);
    lane_->on_attached();
  }
  ~HostileStream() override { lane_->on_released(); }

  void say(const Bytes& what) {
    in_->put(what);
    side_.poll();
  }
  void expect_alive() const {
    EXPECT_FALSE(lane_->lost());
    EXPECT_TRUE(side_.host->ends.empty());
  }
  void expect_ended(Errc why = Errc::protocol) {
    EXPECT_TRUE(lane_->lost());
    EXPECT_EQ(side_.host->ends, std::vector{why});
    const size_t left = in_->under_way().size();
    say(cells(1));
    EXPECT_EQ(side_.host->ends.size(), 1u) << "told twice";
    EXPECT_EQ(in_->under_way().size(), left + cells(1).size()) << "read after its end";
  }
  void expect_refused(const Bytes& what) {
    expect_alive();
    say(what);
    EXPECT_FALSE(lane_->request_rx.cells.ready());
    EXPECT_FALSE(lane_->response_rx.cells.ready());
    EXPECT_EQ(lane_->request_tx.refresh(), 0u);
    EXPECT_EQ(lane_->response_tx.refresh(), 0u);
    expect_ended();
  }
  // Publishes so many requests, which the other side is sent.
  void publish(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      lane_->request_tx.cells.publish(1);
      lane_->ring_doorbell();
    }
    side_.poll();
  }

  std::shared_ptr<Pipe> out_ = std::make_shared<Pipe>(), in_ = std::make_shared<Pipe>();
  MovingSide side_;
  std::unique_ptr<tcp::StreamLane> lane_;
};

TEST_F(HostileStream, what_is_sound_is_taken) {
  say(cells(1));
  say(bytes(0, 64));
  say(payload(64));
  say(cells(1, 2, kResponses));
  expect_alive();
  ASSERT_TRUE(lane_->request_rx.cells.ready());
  EXPECT_EQ(lane_->request_rx.cells.body()[59], std::byte{1});
  ASSERT_TRUE(lane_->response_rx.cells.ready());
  EXPECT_EQ(lane_->response_rx.cells.body()[0], std::byte{2});
  EXPECT_EQ(lane_->request_rx.bytes.view(0, 64)[63], std::byte{7});
}

TEST_F(HostileStream, sound_piece_is_taken_with_its_record) {
  say(piece(0, 100));
  EXPECT_FALSE(lane_->request_rx.cells.ready()) << "before its payload";
  say(payload(99));
  EXPECT_FALSE(lane_->request_rx.cells.ready());
  say(payload(1, 8));
  ASSERT_TRUE(lane_->request_rx.cells.ready());
  EXPECT_EQ(lane_->request_rx.cells.body()[59], std::byte{3});
  EXPECT_EQ(lane_->request_rx.bytes.view(0, 100)[98], std::byte{7});
  EXPECT_EQ(lane_->request_rx.bytes.view(0, 100)[99], std::byte{8});
  say(bytes(128, 64));  // the next granule
  say(payload(64));
  expect_alive();
}
TEST_F(HostileStream, payload_that_nobody_lets_land_is_in_the_ring_after_the_poll) {
  in_->put(piece(0, 40'000));
  in_->put(payload(40'000));
  in_->put(cells(1));
  side_.poll([&] {
    ASSERT_TRUE(lane_->request_rx.cells.ready());
    EXPECT_EQ(lane_->landing.rx, &lane_->request_rx);
    EXPECT_EQ(lane_->landing.length, 40'000u);
  });
  EXPECT_EQ(lane_->landing.rx, nullptr);
  EXPECT_EQ(lane_->request_rx.bytes.view(0, 40'000)[39'999], std::byte{7});
  lane_->request_rx.cells.advance(1);
  side_.poll();
  EXPECT_TRUE(lane_->request_rx.cells.ready()) << "what came behind it";
  expect_alive();
}
TEST_F(HostileStream, payload_lands_where_it_belongs_and_nowhere_else) {
  in_->put(piece(0, 40'000));
  in_->put(payload(40'000));
  in_->put(piece(40'000, 30'000));
  in_->put(payload(30'000, 9));
  Bytes first(40'001), second(30'001);
  side_.poll([&] {
    ASSERT_TRUE(lane_->request_rx.cells.ready());
    ASSERT_TRUE(lane_->land(first.data()));
    lane_->request_rx.cells.advance(1);
  });
  side_.poll([&] {
    ASSERT_TRUE(lane_->request_rx.cells.ready());
    ASSERT_TRUE(lane_->land(second.data()));
    lane_->request_rx.cells.advance(1);
  });
  EXPECT_EQ(first[0], std::byte{7});
  EXPECT_EQ(first[39'999], std::byte{7});
  EXPECT_EQ(first[40'000], std::byte{0});
  EXPECT_EQ(second[0], std::byte{9});
  EXPECT_EQ(second[29'999], std::byte{9});
  EXPECT_EQ(second[30'000], std::byte{0});
  EXPECT_EQ(lane_->request_rx.bytes.view(0, 40'000)[0], std::byte{0});
  expect_alive();
}
TEST_F(HostileStream, hostile_24_a_piece_without_bytes_is_refused) {
  expect_refused(piece(0, 0));
}
TEST_F(HostileStream, hostile_26_a_piece_with_a_damaged_record_is_refused) {
  expect_refused(flipped(piece(0, 64), 79, 1));
}
TEST_F(HostileStream, hostile_28_a_gap_before_a_piece_is_refused) {
  expect_refused(piece(64, 64));
}
TEST_F(HostileStream, hostile_28_a_piece_without_room_for_its_record_ends_the_stream) {
  say(cells(256));
  say(piece(0, 64));
  expect_ended();
}
TEST_F(HostileStream, hostile_29_piece_beyond_the_end_of_its_ring) {
  expect_refused(piece(0, 512 * 1024 + 1));
}
TEST_F(HostileStream, hostile_30_ends_in_the_middle_of_a_piece) {
  say(piece(0, 40'000));
  say(payload(39'999));
  in_->finished = true;
  side_.poll();
  EXPECT_FALSE(lane_->request_rx.cells.ready());
  EXPECT_TRUE(lane_->lost());
  EXPECT_EQ(side_.host->ends, std::vector{Errc::peer_lost});
}
TEST_F(HostileStream, hostile_24_a_frame_of_no_cells_is_refused) {
  expect_refused(forged(cells(1), 2, 1));
}
TEST_F(HostileStream, hostile_24_more_cells_than_a_frame_may_have) {
  expect_refused(forged(cells(256), 2, 1));
}
TEST_F(HostileStream, hostile_24_a_frame_of_no_bytes_is_refused) {
  expect_refused(bytes(0, 0));
}
TEST_F(HostileStream, hostile_24_bytes_that_are_no_granules) {
  expect_refused(bytes(0, 1));
}
TEST_F(HostileStream, hostile_24_the_most_of_everything_is_taken) {
  say(cells(256));
  say(cells(128, 2, kResponses));
  say(bytes(0, 512 * 1024));
  say(payload(512 * 1024));
  say(bytes(0, 512 * 1024, kResponses));
  for (int i = 0; i < 8; ++i) say(payload(64 * 1024));
  for (int i = 0; i < 20; ++i) side_.poll();
  expect_alive();
  EXPECT_TRUE(in_->under_way().empty());
}
TEST_F(HostileStream, hostile_25_unknown_kinds_are_refused) {
  expect_refused(flipped(cells(1), 0, 0x80));
}
TEST_F(HostileStream, hostile_25_kind_zero_is_refused) {
  expect_refused(Bytes(64));
}
TEST_F(HostileStream, hostile_25_an_unknown_channel_is_refused) {
  expect_refused(forged(cells(1), 1, 2));
}
TEST_F(HostileStream, hostile_25_reserved_bits_are_refused) {
  expect_refused(forged(bytes(0, 64), 2, 1));
}
TEST_F(HostileStream, hostile_25_reserved_bits_of_a_close) {
  expect_refused(forged(close(), 1, 1));
}
TEST_F(HostileStream, hostile_26_a_wrong_checksum_is_refused) {
  expect_refused(flipped(cells(1), 5, 1));
}
TEST_F(HostileStream, hostile_26_a_damaged_body_is_refused) {
  expect_refused(flipped(cells(3), 150, 0x10));
}
TEST_F(HostileStream, hostile_27_acknowledges_what_was_never_sent) {
  expect_refused(credit(1, 0));
}
TEST_F(HostileStream, hostile_27_frees_bytes_that_were_never_sent) {
  expect_refused(credit(0, 64));
}
TEST_F(HostileStream, hostile_27_acknowledges_more_than_was_sent) {
  publish(3);
  say(credit(3, 0));
  expect_alive();
  EXPECT_EQ(lane_->request_tx.refresh(), 3u);
  say(credit(4, 0));
  EXPECT_EQ(lane_->request_tx.refresh(), 3u);
  expect_ended();
}
TEST_F(HostileStream, hostile_28_acknowledges_less_than_before) {
  publish(3);
  say(credit(2, 0));
  expect_alive();
  say(credit(1, 0));
  EXPECT_EQ(lane_->request_tx.refresh(), 2u);
  expect_ended();
}
TEST_F(HostileStream, hostile_28_cells_over_some_that_were_not_read) {
  say(cells(200));
  expect_alive();
  say(cells(57, 9));
  EXPECT_EQ(lane_->request_rx.cells.body(0)[0], std::byte{1});
  expect_ended();
}
TEST_F(HostileStream, hostile_28_read_cells_make_room_only_once_they_are_acknowledged) {
  say(cells(256));
  lane_->request_rx.cells.advance(10);
  lane_->request_rx.publish_consumed();
  say(cells(10));
  expect_alive();
  lane_->request_rx.cells.advance(10);
  say(cells(1));
  expect_ended();
}
TEST_F(HostileStream, hostile_28_a_gap_between_bytes_is_refused) {
  expect_refused(bytes(64, 64));
}
TEST_F(HostileStream, hostile_28_bytes_that_come_again) {
  say(bytes(0, 64));
  say(payload(64));
  expect_refused(bytes(0, 64));
}
TEST_F(HostileStream, hostile_28_bytes_over_some_that_were_not_read) {
  say(bytes(0, 512 * 1024));
  for (int i = 0; i < 8; ++i) say(payload(64 * 1024));
  for (int i = 0; i < 10; ++i) side_.poll();
  say(bytes(512 * 1024, 64));
  EXPECT_EQ(lane_->request_rx.bytes.view(0, 64)[0], std::byte{7});
  expect_ended();
}
TEST_F(HostileStream, hostile_29_bytes_beyond_the_end_of_their_ring) {
  say(bytes(0, 512 * 1024 - 64));
  say(payload(512 * 1024 - 64));
  for (int i = 0; i < 10; ++i) side_.poll();
  expect_refused(bytes(512 * 1024 - 64, 128));
}
TEST_F(HostileStream, hostile_29_positions_at_the_end_of_all_numbers) {
  expect_refused(bytes(~uint64_t{0} - 63, 64));
}
TEST_F(HostileStream, hostile_29_the_longest_length_is_refused) {
  expect_refused(bytes(0, ~uint32_t{0} - 63));
}
TEST_F(HostileStream, hostile_30_ends_in_the_middle_of_a_frame) {
  Bytes half = cells(1);
  half.resize(30);
  say(half);
  in_->finished = true;
  side_.poll();
  EXPECT_FALSE(lane_->request_rx.cells.ready());
  EXPECT_TRUE(lane_->lost());
  EXPECT_EQ(side_.host->ends, std::vector{Errc::peer_lost});
}
TEST_F(HostileStream, hostile_30_ends_in_the_middle_of_bytes) {
  say(cells(1));
  say(bytes(0, 640));
  say(payload(600));
  in_->finished = true;
  side_.poll();
  EXPECT_TRUE(lane_->request_rx.cells.ready()) << "what was whole before can be read";
  EXPECT_EQ(side_.host->ends, std::vector{Errc::peer_lost});
}
TEST_F(HostileStream, hostile_30_goes_on_after_its_close) {
  say(cells(1));
  say(close());
  expect_alive();
  say(cells(1));
  EXPECT_TRUE(lane_->request_rx.cells.ready());
  lane_->request_rx.cells.advance(1);
  EXPECT_FALSE(lane_->request_rx.cells.ready());
  expect_ended();
}
TEST_F(HostileStream, nonsense_in_a_record_makes_our_own_credit_no_nonsense) {
  say(cells(2));
  lane_->request_rx.free_bytes_before(uint64_t{1} << 60);  // as a record of the peer's had it
  lane_->request_rx.cells.advance(2);
  lane_->request_rx.publish_consumed();
  lane_->ring_doorbell();
  side_.poll();
  ASSERT_EQ(out_->bytes.size(), wire::kCreditFrameBytes);
  const auto sent = wire::decode_credit(out_->bytes);
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent.value().consumed.unchecked(), 2u);
  EXPECT_EQ(sent.value().bytes_consumed.unchecked(), 0u);
  say(bytes(0, 64));
  say(payload(64));
  expect_alive();
}

// --- with trailers ---

Bytes trailed(const wire::FrameTrailer& by, const Bytes& frame, uint64_t number,
              const Bytes& after = {}) {
  const bool is_cells = frame[0] == std::byte{1};
  const size_t header = is_cells ? wire::kCellsFrameBytes : frame.size();
  const std::span all(frame);
  const KeyedTag trailer =
      wire::frame_trailer(by, number, all.first(header), is_cells ? all.subspan(header) : after);
  Bytes out = frame;
  out.insert(out.end(), after.begin(), after.end());
  out.insert(out.end(), trailer.begin(), trailer.end());
  return out;
}

using TrailerKind = wire::FrameTrailer::Kind;

wire::FrameTrailers some_trailers(TrailerKind kind) {
  wire::FrameTrailers trailers;
  trailers.in.kind = trailers.out.kind = kind;
  trailers.in.key[3] = std::byte{1};
  trailers.out.key[7] = std::byte{2};
  return trailers;
}

class HostileTrailedStream : public HostileStream, public testing::WithParamInterface<TrailerKind> {
 protected:
  HostileTrailedStream() : HostileStream(some_trailers(GetParam())) {}

  Bytes sound(const Bytes& frame, uint64_t number, const Bytes& after = {}) {
    return trailed(some_trailers(GetParam()).in, frame, number, after);
  }
};

INSTANTIATE_TEST_SUITE_P(By, HostileTrailedStream,
                         testing::Values(TrailerKind::tag, TrailerKind::checksum),
                         [](const auto& kind) {
                           return kind.param == TrailerKind::tag ? "tag" : "checksum";
                         });

TEST_P(HostileTrailedStream, what_is_sound_in_turn_is_taken) {
  say(sound(cells(1), 0));
  say(sound(bytes(0, 64), 1, payload(64)));
  say(sound(cells(1), 2));
  say(sound(close(), 3));
  expect_alive();
  EXPECT_TRUE(lane_->request_rx.cells.ready());
}
TEST_P(HostileTrailedStream, hostile_26_piece_which_has_no_trailer) {
  expect_refused(piece(0, 64));
}
TEST_P(HostileTrailedStream, hostile_26_a_frame_without_its_trailer_is_refused) {
  Bytes two = cells(1);
  two.resize(two.size() + 8);
  expect_refused(two);
}
TEST_P(HostileTrailedStream, hostile_26_a_trailer_with_a_bit_flipped_is_refused) {
  Bytes frame = sound(cells(1), 0);
  frame.back() ^= std::byte{1};
  expect_refused(frame);
}
TEST_P(HostileTrailedStream, hostile_28_frame_that_comes_again) {
  say(sound(credit(0, 0), 0));
  expect_alive();
  expect_refused(sound(credit(0, 0), 0));
}
TEST_P(HostileTrailedStream, hostile_28_frame_that_was_left_out) {
  expect_refused(sound(cells(1), 1));
}
TEST_P(HostileTrailedStream, hostile_29_each_bit_of_a_payload_counts) {
  const Bytes whole = sound(bytes(0, 64), 0, payload(64));
  for (const size_t bit : {size_t{0}, size_t{100}, size_t{511}, size_t{512}, size_t{575}}) {
    const size_t at = wire::kBytesFrameBytes + bit / 8;
    MovingSide side;
    const auto in = std::make_shared<Pipe>();
    const auto lane = side.lane_over(
        std::make_unique<SimulatedStream>(std::make_shared<Pipe>(), in), some_trailers(GetParam()));
    lane->on_attached();
    in->put(flipped(whole, at, static_cast<uint8_t>(1u << bit % 8)));
    in->put(sound(cells(1), 1));
    side.poll();
    EXPECT_TRUE(lane->lost()) << "bit " << bit;
    EXPECT_FALSE(lane->request_rx.cells.ready()) << "named although it was changed, bit " << bit;
    lane->on_released();
  }
}

class HostileTaggedStream : public HostileStream {
 protected:
  HostileTaggedStream() : HostileStream(some_trailers(TrailerKind::tag)) {}
};

TEST_F(HostileTaggedStream, hostile_29_a_key_of_another_connection_is_refused) {
  expect_refused(trailed(some_trailers(TrailerKind::tag).out, cells(1), 0));
}

}  // namespace
}  // namespace aperture::link::test
