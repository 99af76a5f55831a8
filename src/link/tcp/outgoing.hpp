// What a lane sends: frames of what was published in its outgoing channels, and of what was
// consumed of the incoming ones.
//
// They are made in batches, each of everything there is at that moment; the next batch is made once
// the stream has taken all of the last. Within one, responses come before requests and both before
// the credits, bytes before the cells that name them: a refusal arrives before the acknowledgement
// that passes it by (docs/adr/0002), and no record names bytes that are not there. What is small is
// copied into the buffer; long runs of the byte rings are sent from where they lie, which the other
// side has to free first before anything is written there again.
//
// Belongs to its lane.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <span>

#include "link/lane.hpp"
#include "link/tcp/lane_memory.hpp"
#include "wire/frame.hpp"

namespace aperture::link::tcp {

class Outgoing {
 public:
  Outgoing(LinkEnds& ends, std::span<std::byte> buffer, const wire::FrameTrailer& trailer) noexcept
      : ends_(ends), buffer_(buffer), trailer_(trailer) {}

  // The batch that is under way: what the stream has not taken yet, and how much it has taken now.
  bool is_under_way() const noexcept { return first_piece_ != pieces_end_; }
  std::span<const iovec> pieces() const noexcept;
  void on_taken(size_t n) noexcept;

  // Makes a batch; false: there is nothing to be sent.
  bool gather(Lane& lane) noexcept;
  // Adds a piece, whose payload is sent from where it lies, to the batch that was just made; where
  // frames have no trailers, and while may_add_piece().
  static constexpr size_t kMostCarried = 8;  // in a batch: what a ring has room for
  bool may_add_piece() const noexcept { return carried_ < kMostCarried; }
  void add_piece_frame(ring::ChannelTx& tx, wire::FrameChannel channel, uint64_t position,
                       std::span<const std::byte> payload) noexcept;
  bool holds_payload() const noexcept { return carried_ != 0; }
  // What the stream has not taken of those payloads is copied to where they would lie in the byte
  // ring. False: a part of one is not mapped.
  bool copy_payload_left() noexcept;
  // Makes one of the close alone.
  void gather_close() noexcept;

  // Whether anything was published that is in no batch yet.
  bool has_published(Lane& lane) const noexcept;
  // Whether there is anything to be sent that should not wait: what was published, and credit for
  // a quarter of a ring.
  bool has_urgent(Lane& lane) const noexcept;

 private:
  struct Told {
    uint64_t consumed = 0;
    uint64_t bytes_consumed = 0;
  };

  static constexpr size_t kMostPieces = 12 + 2 * kMostCarried;
  static constexpr uint64_t kCopiedBytes = 2048;  // longer runs are sent from where they lie

  void add_bytes(wire::FrameChannel channel, ring::ByteWriter& ring) noexcept;
  void add_run(wire::FrameChannel channel, uint64_t position,
               std::span<const std::byte> run) noexcept;
  void add_cells(wire::FrameChannel channel, const ring::ChannelTx& tx) noexcept;
  void add_credit(wire::FrameChannel channel) noexcept;
  void add_trailer(std::span<const std::byte> header, std::span<const std::byte> rest) noexcept;
  bool owes_much(wire::FrameChannel channel, const ring::ChannelRx& rx) const noexcept;
  std::span<std::byte> take_buffer(size_t n) noexcept;
  void add_piece(const std::byte* from, size_t n) noexcept;
  void begin() noexcept;

  LinkEnds& ends_;
  const std::span<std::byte> buffer_;
  const wire::FrameTrailer trailer_;
  size_t filled_ = 0;  // of the buffer
  std::array<iovec, kMostPieces> pieces_;
  size_t first_piece_ = 0;
  size_t pieces_end_ = 0;
  // Payload by reference: which of the pieces it is, and where it would end in its ring.
  struct Payload {
    size_t piece;
    std::byte* end;
  };
  std::array<Payload, kMostCarried> payloads_{};
  size_t carried_ = 0;
  uint64_t frames_ = 0;       // made so far: the number of the next
  std::array<Told, 2> told_;  // of what was consumed, in the credits made so far
};

}  // namespace aperture::link::tcp
