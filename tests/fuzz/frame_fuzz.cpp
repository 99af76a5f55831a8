// Whatever comes on the stream of a lane: no decoder reads past the end, and what one accepts is
// written again as the very same bytes; and a live lane, to which the input is given in pieces of
// any length, writes nothing beside its rings, nothing over what was not read, and ends at most
// once. The first byte says how it is cut, and whether frames have checksums behind them; with its
// upper bit set all checksums are put right first, so that what lies behind those is reached.
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/crc32c.hpp"
#include "fuzz/steps.hpp"
#include "link/tcp/mover.hpp"
#include "link/tcp/stream_lane.hpp"
#include "wire/frame.hpp"

namespace {

using namespace aperture;             // NOLINT: a program of one file
using namespace aperture::link::tcp;  // NOLINT
using fuzz::require;
using wire::FrameKind;

// --- the codec ---

template <typename Message, size_t kBytes>
void check(std::span<const std::byte> frame, const Result<Message>& message) {
  if (!message.ok()) return;
  std::array<std::byte, kBytes> again;
  wire::encode(message.value(), again);
  require(std::memcmp(again.data(), frame.data(), kBytes) == 0, "not written as it was read");
}

void decode(std::span<const std::byte> in) {
  if (in.size() < wire::kFrameHeadBytes) return;
  const auto shape = wire::frame_shape(in.first<wire::kFrameHeadBytes>());
  if (!shape.ok()) return;
  require(shape.value().bytes <= wire::kMaxFrameBytes, "a frame that is too long");
  if (in.size() < shape.value().bytes) return;
  const auto frame = in.first(shape.value().bytes);
  check<wire::BytesFrame, wire::kBytesFrameBytes>(frame, wire::decode_bytes(frame));
  check<wire::CreditFrame, wire::kCreditFrameBytes>(frame, wire::decode_credit(frame));
  (void)wire::decode_close(frame);
  std::vector<std::byte> again(frame.begin(), frame.end());
  if (const auto piece = wire::decode_piece(frame); piece.ok()) {
    wire::encode(piece.value(), std::span(again).first<wire::kPieceFrameBytes>());
    require(std::memcmp(again.data(), frame.data(), frame.size()) == 0, "a piece");
  }
  const auto cells = wire::decode_cells(frame);
  if (!cells.ok()) return;
  wire::encode(cells.value(), again);
  require(std::memcmp(again.data(), frame.data(), frame.size()) == 0, "cells");
}

// --- a lane ---

struct Host final : MoverHost, StreamHost {
  Status begin_moving(link::Progress&) noexcept override { return {}; }
  void end_moving(link::Progress&) noexcept override {}
  void on_stream_down(Errc) noexcept override { require(++ends == 1, "ended twice"); }
  int ends = 0;
};

// Gives the input in pieces, then says that it has ended; takes everything.
class Input final : public Stream {
 public:
  Input(std::span<const std::byte> in, size_t cut) : in_(in), cut_(cut) {}
  Result<size_t> send(std::span<const iovec> pieces) noexcept override {
    size_t n = 0;
    for (const iovec& piece : pieces) n += piece.iov_len;
    return n;
  }
  Result<size_t> receive(std::span<const iovec> places) noexcept override {
    if (in_.empty()) return Errc::shut_down;
    size_t n = 0;
    for (const iovec& place : places) {
      const size_t part = std::min({place.iov_len, in_.size(), cut_ - n});
      std::memcpy(place.iov_base, in_.data(), part);
      in_ = in_.subspan(part);
      n += part;
    }
    require(n != 0, "nowhere to put anything");
    return n;
  }
  size_t waiting() const noexcept override { return cut_ >= 16 ? in_.size() : 0; }
  void finish() noexcept override {}
  int fd() const noexcept override { return -1; }

 private:
  std::span<const std::byte> in_;
  const size_t cut_;
};

constexpr wire::FrameTrailer kSum{wire::FrameTrailer::Kind::checksum, {}};

// Puts the checksums right of as many frames as follow each other.
void mend(std::span<std::byte> in, bool has_trailers) {
  for (uint64_t number = 0; in.size() >= wire::kFrameHeadBytes; ++number) {
    const auto shape = wire::frame_shape(in.first<wire::kFrameHeadBytes>());
    if (!shape.ok() || shape.value().bytes > in.size()) return;
    const auto frame = in.first(shape.value().bytes);
    const uint32_t crc = crc32c(frame.subspan(8), crc32c(frame.first(4)));
    std::memcpy(&frame[4], &crc, sizeof crc);
    size_t whole = frame.size();
    if (shape.value().kind == FrameKind::bytes || shape.value().kind == FrameKind::piece) {
      uint32_t length = 0;
      std::memcpy(&length, &frame[16], sizeof length);
      whole += length;
    }
    if (has_trailers) {
      const size_t header =
          shape.value().kind == FrameKind::cells ? wire::kCellsFrameBytes : frame.size();
      if (whole + wire::kFrameTrailerBytes > in.size()) return;
      const KeyedTag sum =
          wire::frame_trailer(kSum, number, in.first(header), in.subspan(header, whole - header));
      std::memcpy(&in[whole], sum.data(), sum.size());
      whole += sum.size();
    }
    if (whole > in.size()) return;
    in = in.subspan(whole);
  }
}

// The consumer has read some of what is there; what it has not keeps its mark and its first byte.
// Every other time a payload that may land does so, with nothing written behind it.
void consume(link::Lane& lane, ring::ChannelRx& rx, size_t at_most) {
  for (; at_most != 0 && rx.cells.ready(); --at_most) {
    if (lane.landing.rx == &rx && at_most % 2 == 0) {
      std::vector<std::byte> to(lane.landing.length);
      require(lane.land(to.data()) || lane.lost(), "it was there");
    }
    rx.cells.advance(1);
  }
  rx.publish_consumed();
}

void play(std::span<const std::byte> in, size_t cut, size_t reads, bool has_trailers) {
  auto host = std::make_shared<Host>();
  StreamSpec spec;
  spec.host = host;
  if (has_trailers) spec.trailers = {kSum, kSum};
  spec.mover = std::make_shared<Mover>(*host);
  auto lane = std::move(StreamLane::make(std::make_unique<Input>(in, cut), spec)).value();
  lane->on_attached();
  for (int i = 0; i < 5; ++i) lane->request_tx.cells.publish(1);
  lane->ring_doorbell();
  spec.mover->flush(true);
  std::byte first{};
  bool unread = false;
  while (!lane->lost()) {
    spec.mover->progress();
    if (unread) require(lane->request_rx.cells.body()[0] == first, "written over");
    consume(*lane, lane->request_rx, reads);
    consume(*lane, lane->response_rx, reads);
    unread = lane->request_rx.cells.ready();
    if (unread) first = lane->request_rx.cells.body()[0];
    require(lane->request_tx.refresh() <= 5, "more was taken than there was");
    spec.mover->flush(true);
  }
  require(host->ends == 1, "ended, and nobody was told");
  lane->on_released();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::vector<std::byte> in(reinterpret_cast<const std::byte*>(data + 1),
                            reinterpret_cast<const std::byte*>(data + size));
  decode(in);
  const bool has_trailers = (data[0] & 0x70) == 0x70;
  if ((data[0] & 0x80) != 0) mend(in, has_trailers);
  const size_t cut = (data[0] & 0x0f) == 0 ? in.size() : data[0] & 0x0f;
  play(in, cut, data[0] >> 4 & 7, has_trailers);
  return 0;
}
