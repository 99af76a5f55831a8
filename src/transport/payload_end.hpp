// Payload that does not lie in cells: the bytes behind the rings of one end of a lane.
//
// It goes through the put_ and take_ calls. In shared memory they are the copies to and from the
// byte rings. A piece, which is payload with a record of its own, may be sent by the link from
// where it lies, and may be received where it belongs. Whoever has put bytes publishes the record
// that tells of them, next (lane_end.hpp). Guarded by the engine's lock.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/wild.hpp"
#include "link/lane.hpp"

namespace aperture::transport {

// What became of put_bytes().
enum class Put : uint8_t {
  done,
  no_room,    // of the ring, now; try again when the other side has taken something
  no_memory,  // for the ring's pages
  no_source,  // fill() has failed: nothing was taken from the ring
};

// Payload in a byte ring that the other side named. Copy it once, then done_with() gives its place
// back. Null: the place does not lie in the ring, or is too long.
class BytesIn {
 public:
  BytesIn() = default;
  BytesIn(const std::byte* from, uint64_t length, uint64_t end_position,
          link::Lane* landing) noexcept
      : len(length), end(end_position), from_(from), landing_(landing) {}

  explicit operator bool() const noexcept { return from_ != nullptr; }
  const std::byte* from() const noexcept {
    assert(landing_ == nullptr);
    return from_;
  }

  // take_piece() alone: it may still lie with the link. Then either land() has it where it belongs,
  // or stage() brings it into the ring, for from(). False: no memory takes it there, or it cannot
  // be had any more.
  bool may_land() const noexcept { return landing_ != nullptr; }
  bool land(std::byte* to) noexcept { return std::exchange(landing_, nullptr)->land(to); }
  bool stage() noexcept {
    link::Lane* const lane = std::exchange(landing_, nullptr);
    return lane == nullptr || lane->stage();
  }

  uint64_t len = 0;
  uint64_t end = 0;  // position behind it

 private:
  const std::byte* from_ = nullptr;
  link::Lane* landing_ = nullptr;
};

// Where the payload of a piece goes, whose record is laid out already.
class PieceOut {
 public:
  PieceOut(link::Lane& lane, ring::ChannelTx& tx, uint64_t position, uint32_t length) noexcept
      : lane_(lane), tx_(tx), position_(position), length_(length) {}

  // Has the link take all of it from there, where it would. no: it is to be copied to at(). stays:
  // it is there until the PieceRun is over.
  link::Carried carry(const std::byte* from, bool stays) noexcept {
    if (!lane_.carries) [[likely]]
      return link::Carried::no;
    return lane_.carry(tx_, position_, {from, length_}, stays);
  }
  std::byte* at() noexcept { return tx_.bytes.at(position_); }

 private:
  link::Lane& lane_;
  ring::ChannelTx& tx_;
  const uint64_t position_;
  const uint32_t length_;
};

// While pieces of the application's memory are put one after the other, which go together then.
class PieceRun {
 public:
  explicit PieceRun(link::Lane& lane) noexcept : lane_(lane.carries ? &lane : nullptr) {
    if (lane_ != nullptr) lane_->begin_pieces();
  }
  ~PieceRun() {
    if (lane_ != nullptr) lane_->end_pieces();
  }
  PieceRun(const PieceRun&) = delete;
  PieceRun& operator=(const PieceRun&) = delete;

 private:
  link::Lane* const lane_;
};

// Of a lane that is attached, for one call: nothing of it is stored.
class PayloadEnd {
 public:
  // moved: LaneEnd::moved_for_peer().
  PayloadEnd(link::Lane& lane, uint64_t& moved) noexcept : lane_(lane), moved_(moved) {}

  // --- out ---

  // No such put of n bytes would say no_room now.
  bool has_room_for_request_bytes(uint32_t n) noexcept { return has_room(lane_.request_tx, n); }
  bool has_room_for_response_bytes(uint32_t n) noexcept { return has_room(lane_.response_tx, n); }
  // Copies n bytes, at most a piece, into the byte ring behind the requests: fill(to) puts them
  // there, or says false. pos: their place, for the record that tells of them.
  template <typename Fill>
  Put put_request_bytes(uint32_t n, uint64_t& pos, Fill&& fill) noexcept {
    return put_bytes(lane_.request_tx, n, pos, fill,
                     [this] { return lane_.prepare_request_bytes(); });
  }
  template <typename Fill>
  Put put_response_bytes(uint32_t n, uint64_t& pos, Fill&& fill) noexcept {
    const Put put = put_bytes(lane_.response_tx, n, pos, fill,
                              [this] { return lane_.prepare_response_bytes(); });
    if (put == Put::done) moved_ += n;
    return put;
  }
  // The same for a piece: record(body, pos) lays out its record, which is one cell and published by
  // the caller, next; there is room for it. fill(PieceOut) has the payload carried or copies it, or
  // says false.
  template <typename Record, typename Fill>
  Put put_request_piece(uint32_t n, Record&& record, Fill&& fill) noexcept {
    return put_piece(lane_.request_tx, n, record, fill,
                     [this] { return lane_.prepare_request_bytes(); });
  }
  template <typename Record, typename Fill>
  Put put_response_piece(uint32_t n, Record&& record, Fill&& fill) noexcept {
    const Put put = put_piece(lane_.response_tx, n, record, fill,
                              [this] { return lane_.prepare_response_bytes(); });
    if (put == Put::done) moved_ += n;
    return put;
  }

  // --- in ---

  // What a record says to lie in the byte ring, `limit` bytes at most.
  BytesIn take_bytes(const ring::ChannelRx& rx, Wild<uint64_t> pos, uint64_t len,
                     uint64_t limit) noexcept {
    BytesIn bytes = take_piece(rx, pos, len, limit);
    return !bytes.may_land() || bytes.stage() ? bytes : BytesIn{};
  }
  BytesIn take_bytes(const ring::ChannelRx& rx, Wild<uint64_t> pos, Wild<uint64_t> len,
                     uint64_t limit) noexcept {
    uint64_t n = 0;
    return len.bounded(limit, n) ? take_bytes(rx, pos, n, limit) : BytesIn{};
  }
  // The same for who says where it belongs, and may leave it for later.
  BytesIn take_piece(const ring::ChannelRx& rx, Wild<uint64_t> pos, uint64_t len,
                     uint64_t limit) noexcept {
    if (len > limit) return {};
    const uint64_t at = pos.unchecked();  // view() bounds it
    const link::Landing& landing = lane_.landing;
    const bool may_land = landing.rx == &rx && landing.position == at && landing.length == len;
    return {rx.bytes.view(at, len), len, rx.bytes.after(at, len), may_land ? &lane_ : nullptr};
  }
  BytesIn take_piece(const ring::ChannelRx& rx, Wild<uint64_t> pos, Wild<uint64_t> len,
                     uint64_t limit) noexcept {
    uint64_t n = 0;
    return len.bounded(limit, n) ? take_piece(rx, pos, n, limit) : BytesIn{};
  }
  void done_with(ring::ChannelRx& rx, const BytesIn& bytes) noexcept {
    assert(bytes);
    moved_ += bytes.len;
    rx.free_bytes_before(bytes.end);
  }

 private:
  static bool has_room(ring::ChannelTx& tx, uint32_t n) noexcept {
    uint64_t pos = 0;
    return tx.reserve_bytes(n, pos);  // commit() would take it
  }
  template <typename Fill, typename Prepare>
  Put put_bytes(ring::ChannelTx& tx, uint32_t n, uint64_t& pos, Fill&& fill,
                Prepare&& prepare) noexcept {
    return put_piece(
        tx, n, [&](std::byte*, uint64_t at) { pos = at; },
        [&](PieceOut out) { return fill(out.at()); }, prepare);
  }
  template <typename Record, typename Fill, typename Prepare>
  Put put_piece(ring::ChannelTx& tx, uint32_t n, Record&& record, Fill&& fill,
                Prepare&& prepare) noexcept {
    assert(n <= tx.bytes.size());
    uint64_t pos = 0;
    if (!tx.reserve_bytes(n, pos)) return Put::no_room;
    if (!prepare()) [[unlikely]]
      return Put::no_memory;
    record(tx.cells.body(), pos);
    if (!fill(PieceOut(lane_, tx, pos, n))) [[unlikely]]
      return Put::no_source;
    tx.bytes.commit(pos, n);
    return Put::done;
  }

  link::Lane& lane_;
  uint64_t& moved_;
};

}  // namespace aperture::transport
