// The owner's half of remote writes and reads, as steps: check the whole range, then for each piece
// check again and copy. The families of queue pairs answer refusals each in their own manner.
//
// The whole range is checked with the first piece that this side executes, so an operation that
// leaves its region changes nothing. From then on only that life of that region will do: a range
// that is closed and registered anew in between is refused. Every byte of the ask is the peer's
// word; only a Grant of protect/ is copied through, and it lives for one piece. Guarded by the
// engine's lock.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "protect/access_check.hpp"
#include "ring/cell.hpp"
#include "transport/lane_end.hpp"
#include "transport/tuning.hpp"

namespace aperture::transport {

class RemoteAccess {
 public:
  explicit RemoteAccess(const protect::AccessCheck& checks) noexcept : checks_(checks) {}

  protect::LookupHint& hint() noexcept { return hint_; }
  // Of the range under way: the region that was met, {} before its first piece.
  protect::RegionRef region() const noexcept { return region_; }

  // A write in one request, whose payload lies in the cells from body offset `at` on.
  protect::Denial write_cells(const protect::AccessAsk& ask, const ring::CellReader& cells,
                              size_t at, size_t len) noexcept {
    const protect::Checked checked = checks_.check(ask, &hint_);
    if (!checked) return checked.denial();
    region_ = checked.grant().region();
    size_t done = 0;
    bool copied = true;
    ring::BodyReader(cells, at).each_piece(len, [&](const std::byte* piece, size_t n) {
      copied = copied && checked.grant().copy_in(piece, n, done);
      done += n;
    });
    return copied ? protect::Denial::none : protect::Denial::not_backed;
  }

  // A read that is answered in one piece, at most a chunk.
  protect::Denial read_once(const protect::AccessAsk& ask, std::byte* to, size_t len) noexcept {
    assert(len <= protect::kChunkBytes);
    const protect::Checked checked = checks_.check(ask, &hint_);
    if (!checked) return checked.denial();
    return checked.grant().copy_out(to, len) ? protect::Denial::none : protect::Denial::not_backed;
  }

  // A range that takes several pieces begins, or is over.
  void begin_range() noexcept {
    region_ = {};
    read_done_ = 0;
  }
  // The first look at the whole of it. A peer that has rewritten its request begins anew.
  protect::Denial check_whole(const protect::AccessAsk& whole) noexcept {
    read_done_ = 0;
    const protect::Checked checked = checks_.check(whole, &hint_);
    region_ = checked ? checked.grant().region() : protect::RegionRef{};
    return checked.denial();
  }
  // [offset, offset + n) of it: n bytes at most a chunk, which the caller has seen to lie inside.
  protect::Denial write_piece(const protect::AccessAsk& whole, uint64_t offset,
                              BytesIn& bytes) noexcept;
  protect::Denial read_piece(const protect::AccessAsk& whole, uint64_t offset, std::byte* to,
                             uint64_t n) noexcept;

  // What became of a long read for now. turn_over: the rest comes with the next polls.
  enum class Streamed : uint8_t { all, no_room, turn_over, denied, changed };
  // Puts pieces of the result of a read of [offset, offset + len) of `whole`, which was checked,
  // into the response ring, going on where it was: record(body, done, pos, n) lays out the record
  // of each, which begins at offset + done, in one cell. changed: a part was sent, and the request,
  // which lies in the peer's reach, is shorter by now.
  template <typename Record>
  Streamed stream_read(LaneEnd& lane, const protect::AccessAsk& whole, uint64_t offset,
                       uint64_t len, protect::Denial& denial, Record&& record) noexcept {
    ring::ChannelTx& tx = lane->response_tx;
    if (read_done_ > len) return Streamed::changed;
    const uint64_t moved_before = lane.moved_for_peer();
    while (read_done_ < len) {
      if (lane.moved_for_peer() - moved_before >= kPollBytes) return Streamed::turn_over;
      const auto n = static_cast<uint32_t>(std::min(len - read_done_, lane->piece_bytes));
      if (!tx.room(2)) return Streamed::no_room;
      const Put put = lane.payload().put_response_piece(
          n, [&](std::byte* body, uint64_t pos) { record(body, read_done_, pos, n); },
          [&](PieceOut out) {
            denial = put_piece(whole, offset + read_done_, n, out);
            return denial == protect::Denial::none;
          });
      if (put == Put::no_room) return Streamed::no_room;
      if (put == Put::no_memory) denial = protect::Denial::not_backed;
      if (put != Put::done) {
        read_done_ = 0;
        return Streamed::denied;
      }
      lane.publish_response(1);
      read_done_ += n;
    }
    assert(read_done_ == len);
    read_done_ = 0;
    return Streamed::all;
  }
  // Part of a result has been sent, and the rest waits for room, or for the next poll.
  bool is_streaming() const noexcept { return read_done_ != 0; }
  // That read is not answered any further.
  void end_read() noexcept { read_done_ = 0; }

 private:
  protect::Denial put_piece(const protect::AccessAsk& whole, uint64_t offset, uint64_t n,
                            PieceOut& out) noexcept;

  const protect::AccessCheck& checks_;
  protect::LookupHint hint_;
  protect::RegionRef region_;  // of the range under way
  uint64_t read_done_ = 0;     // of the read, or the part of one, at the head of the ring
};

}  // namespace aperture::transport
