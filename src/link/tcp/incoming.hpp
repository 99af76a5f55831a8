// What a lane receives: frames are put together in the buffer, checked, and their contents placed
// in the incoming channels; what the other side has consumed is told to the outgoing ones.
//
// A frame is looked at when all of it is there but for the payload of the byte ring, whose place is
// checked first and which then goes straight there. Nobody looks at it before a record names it,
// and that record is in a later frame: so the trailer behind it may be checked last.
//
// The payload of a piece, which comes behind its record, may be received elsewhere: then its record
// is published as soon as all of the payload is known to have come.
//
// Belongs to its lane.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "link/lane.hpp"
#include "link/tcp/lane_memory.hpp"
#include "wire/frame.hpp"

namespace aperture::link::tcp {

class Incoming {
 public:
  Incoming(LinkEnds& ends, std::span<std::byte> buffer, const wire::FrameTrailer& trailer) noexcept
      : ends_(ends), buffer_(buffer), trailer_(trailer) {}

  // Where what comes next belongs, `limit` bytes of it at most.
  struct Places {
    std::array<iovec, 2> iov;
    size_t count;
    size_t bytes;
  };
  Places places(size_t limit) noexcept;
  // So many bytes lie there now. Null, or what no sound peer sends: then nothing more is taken, and
  // nothing of that frame was placed but bytes that no record names.
  const char* on_received(size_t n) noexcept;

  // A piece has come, but not all of its payload: so much is still missing from the buffer. Whoever
  // can have that elsewhere says so before anything else is received.
  size_t missing_of_piece() const noexcept {
    return is_piece_fresh_ ? payload_.size() - std::min(here(), payload_.size()) : 0;
  }
  wire::FrameChannel channel_of_piece() const noexcept { return payload_channel_; }
  // Publishes its record, for whom its payload is to land: all of it can be had at once.
  Landing publish_landing() noexcept;
  bool is_landing() const noexcept { return is_landing_; }
  // The first bytes of that payload. Once they were copied, what follows is received elsewhere, and
  // what comes behind it belongs there:
  std::span<const std::byte> begin_of_landing() const noexcept { return waiting(); }
  iovec place_behind_landing() noexcept;
  // All of it has landed, and so many bytes came behind it. As on_received().
  const char* on_landed(size_t behind) noexcept;
  // So many bytes of it were received elsewhere, the others belong into the ring.
  void on_landed_in_part(size_t n) noexcept;

  // The other side has said that this was all.
  bool was_closed() const noexcept { return closed_; }

 private:
  size_t here() const noexcept { return end_ - begin_; }  // bytes that wait in the buffer
  std::span<const std::byte> waiting() const noexcept {
    return buffer_.subspan(begin_, end_ - begin_);
  }
  // Each: null, or what is wrong. `again`: whether there may be another frame behind it.
  const char* take_next(bool& again) noexcept;
  const char* take_frame(const wire::FrameShape& shape) noexcept;
  const char* take_cells(std::span<const std::byte> frame) noexcept;
  const char* begin_bytes(std::span<const std::byte> frame) noexcept;
  const char* begin_piece(std::span<const std::byte> frame) noexcept;
  const char* begin_payload(wire::FrameChannel channel, Wild<uint64_t> position,
                            Wild<uint32_t> length) noexcept;
  const char* parse() noexcept;
  void end_payload() noexcept;
  const char* take_credit(std::span<const std::byte> frame) noexcept;
  const char* take_close(std::span<const std::byte> frame) noexcept;
  size_t trailer_bytes() const noexcept {
    return trailer_.is_there() ? wire::kFrameTrailerBytes : 0;
  }
  bool has_right_trailer(std::span<const std::byte> header, std::span<const std::byte> rest,
                         const std::byte* trailer) const noexcept;
  const char* wrong_trailer() const noexcept;
  void take_payload(size_t n) noexcept;
  void make_room() noexcept;

  LinkEnds& ends_;
  const std::span<std::byte> buffer_;
  const wire::FrameTrailer trailer_;
  size_t begin_ = 0;  // of what waits in the buffer
  size_t end_ = 0;
  uint64_t frames_ = 0;  // whose end has come: the number of the one that is under way

  // Of the payload that is under way.
  std::span<std::byte> payload_;  // its place; empty: there is none
  size_t placed_ = 0;
  uint64_t payload_at_ = 0;  // in the byte ring of that channel
  wire::FrameChannel payload_channel_ = wire::FrameChannel::requests;
  bool is_piece_ = false;        // its record lies in the next cell, and waits for it
  bool is_piece_fresh_ = false;  // nothing of its payload was taken yet
  bool is_landing_ = false;      // the record was published before
  bool after_piece_ = false;     // the last frame was one
  std::array<std::byte, wire::kBytesFrameBytes> payload_header_{};

  bool closed_ = false;
  bool broken_ = false;
};

}  // namespace aperture::link::tcp
