// The memory of one end of a lane over a stream: the rings of a lane in shared memory, here for
// this process alone, and the two buffers in which small frames gather and arrive.
//
//   words            4 x 256 bytes: requests out, requests in, responses out, responses in
//   cells            requests 2 x 256, responses 2 x 128
//   byte rings       requests and responses, 2 x 512 KiB each
//   buffers          out and in, 32 KiB each
//
// Pages that nobody has touched cost nothing: that is most of them while a lane is idle. Belongs to
// its lane.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/fd.hpp"
#include "ring/channel.hpp"

namespace aperture::link::tcp {

class LaneMemory {
 public:
  enum Way : size_t { out = 0, in = 1 };

  static constexpr uint32_t kRequestCellsLog2 = 8;
  static constexpr uint32_t kResponseCellsLog2 = 7;
  static constexpr size_t kRequestBytes = 512 * 1024;
  static constexpr size_t kResponseBytes = 512 * 1024;
  static constexpr size_t kBufferBytes = 32 * 1024;

  // Errors: no_memory.
  static Result<LaneMemory> make() noexcept {
    auto map = Mapping::map_anonymous(kBytes);
    if (!map) return map.error();
    // else the first word of a lane might bring pages for all of it, and for its neighbours
    (void)::madvise(map->data(), kBytes, MADV_NOHUGEPAGE);
    return LaneMemory(*std::move(map));
  }

  // Both ends of a ring: the queue pair has one, the link the other.
  ring::ChannelTx requests_tx(Way way) const noexcept {
    return {words(way), request_cells(way), kRequestCellsLog2, request_bytes(way), kRequestBytes};
  }
  ring::ChannelRx requests_rx(Way way) const noexcept {
    return {words(way), request_cells(way), kRequestCellsLog2, request_bytes(way), kRequestBytes};
  }
  ring::ChannelTx responses_tx(Way way) const noexcept {
    return {words(2 + way), response_cells(way), kResponseCellsLog2, response_bytes(way),
            kResponseBytes};
  }
  ring::ChannelRx responses_rx(Way way) const noexcept {
    return {words(2 + way), response_cells(way), kResponseCellsLog2, response_bytes(way),
            kResponseBytes};
  }
  std::span<std::byte> buffer(Way way) const noexcept {
    return {at(kBuffersAt + way * kBufferBytes), kBufferBytes};
  }

 private:
  static constexpr size_t kWordsBytes = 4096;
  static constexpr size_t kRequestCellBytes = ring::kCellBytes << kRequestCellsLog2;
  static constexpr size_t kResponseCellBytes = ring::kCellBytes << kResponseCellsLog2;
  static constexpr size_t kRequestCellsAt = kWordsBytes;
  static constexpr size_t kResponseCellsAt = kRequestCellsAt + 2 * kRequestCellBytes;
  static constexpr size_t kRequestBytesAt = kResponseCellsAt + 2 * kResponseCellBytes;
  static constexpr size_t kResponseBytesAt = kRequestBytesAt + 2 * kRequestBytes;
  static constexpr size_t kBuffersAt = kResponseBytesAt + 2 * kResponseBytes;
  static_assert(4 * sizeof(ring::ChannelWords) <= kWordsBytes);

 public:
  static constexpr size_t kBytes = kBuffersAt + 2 * kBufferBytes;

 private:
  explicit LaneMemory(Mapping map) noexcept : map_(std::move(map)) {
    assert(map_.size() == kBytes);
  }

  std::byte* at(size_t offset) const noexcept {
    assert(map_ && offset < kBytes);
    return map_.data() + offset;
  }
  ring::ChannelWords* words(size_t channel) const noexcept {
    return reinterpret_cast<ring::ChannelWords*>(at(0)) + channel;
  }
  ring::Cell* request_cells(Way way) const noexcept {
    return reinterpret_cast<ring::Cell*>(at(kRequestCellsAt + way * kRequestCellBytes));
  }
  ring::Cell* response_cells(Way way) const noexcept {
    return reinterpret_cast<ring::Cell*>(at(kResponseCellsAt + way * kResponseCellBytes));
  }
  std::byte* request_bytes(Way way) const noexcept {
    return at(kRequestBytesAt + way * kRequestBytes);
  }
  std::byte* response_bytes(Way way) const noexcept {
    return at(kResponseBytesAt + way * kResponseBytes);
  }

  Mapping map_;
};

// The link's ends of the four channels, by wire::FrameChannel: it consumes what the queue pair
// produces, and the other way round.
struct LinkEnds {
  explicit LinkEnds(const LaneMemory& memory) noexcept
      : drained{memory.requests_rx(LaneMemory::out), memory.responses_rx(LaneMemory::out)},
        filled{memory.requests_tx(LaneMemory::in), memory.responses_tx(LaneMemory::in)} {}

  std::array<ring::ChannelRx, 2> drained;
  std::array<ring::ChannelTx, 2> filled;
  std::array<uint64_t, 2> drained_bytes{};  // byte-ring positions up to which frames were made
};

}  // namespace aperture::link::tcp
