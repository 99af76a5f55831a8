// The shared segment and its lanes: see segment.hpp for the layout.
#include "link/shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "base/doorbell.hpp"
#include "base/invariant.hpp"
#include "base/no_throw.hpp"

namespace aperture::link::shm {

namespace {

constexpr uint64_t kMagic = 0x3130'6d68'7374'7061;  // "aptshm01", little-endian
constexpr uint32_t kVersion = 3;
constexpr size_t kPage = 4096;

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t lanes;
  uint64_t lane_stride;
};

constexpr uint32_t kRequestCellsLog2 = 8;
constexpr uint32_t kResponseCellsLog2 = 7;
constexpr size_t kRequestCellBytes = ring::kCellBytes << kRequestCellsLog2;
constexpr size_t kResponseCellBytes = ring::kCellBytes << kResponseCellsLog2;
constexpr size_t kRequestBytes = 256 * 1024;
constexpr size_t kResponseBytes = 512 * 1024;

constexpr size_t kWordsAt = 0;
constexpr size_t kClaimsAt = 4 * sizeof(ring::ChannelWords);
static_assert(kClaimsAt + 2 * Lane::kClaims * sizeof(uint64_t) <= kPage);
constexpr size_t kRequestCellsAt = kPage;
constexpr size_t kResponseCellsAt = kRequestCellsAt + 2 * kRequestCellBytes;
constexpr size_t kRequestBytesAt = kResponseCellsAt + 2 * kResponseCellBytes;
constexpr size_t kResponseBytesAt = kRequestBytesAt + 2 * kRequestBytes;
constexpr size_t kLaneStride = kResponseBytesAt + 2 * kResponseBytes;
constexpr size_t kLaneOpenBytes = kRequestBytesAt;  // allocated when the lane opens
constexpr size_t kSlotsAt = 1024;
constexpr size_t kLanesAt = kPage;
static_assert(sizeof(Header) <= kSlotsAt && kSlotsAt + 2 * Segment::kSlotBytes <= kLanesAt);
constexpr size_t kSegmentBytes = kLanesAt + kLanes * kLaneStride;
static_assert(kSegmentBytes == Segment::kBytes);
static_assert(kLaneOpenBytes <= 64 * 1024, "an idle peer costs at most 64 KiB");

size_t nth(Side side) noexcept {
  return side == Side::creator ? 0 : 1;
}
Side other(Side side) noexcept {
  return side == Side::creator ? Side::attacher : Side::creator;
}

}  // namespace

// One end of a lane in shared memory. Everything but the doorbell is done by the rings themselves.
class ShmLane final : public Lane {
 public:
  ShmLane(std::shared_ptr<Segment> segment, uint32_t index, const LanePeer& peer) noexcept
      : segment_(std::move(segment)),
        keep_(peer.keep),
        index_(index),
        doorbell_fd_(peer.doorbell_fd),
        doorbell_message_(peer.doorbell_message) {
    ringing = peer.ringing;
    remote = peer.remote;
    remote_domain = peer.remote_domain;
    direct = peer.direct;
    fence_always = peer.fence_always;
    const Side out = segment_->side_;
    const Side in = other(out);
    claims_out = claims(out);
    claims_in = claims(in);
    request_tx = {words(0, out), cells(kRequestCellsAt, kRequestCellBytes, out), kRequestCellsLog2,
                  bytes(kRequestBytesAt, kRequestBytes, out), kRequestBytes};
    request_rx = {words(0, in), cells(kRequestCellsAt, kRequestCellBytes, in), kRequestCellsLog2,
                  bytes(kRequestBytesAt, kRequestBytes, in), kRequestBytes};
    response_tx = {words(1, out), cells(kResponseCellsAt, kResponseCellBytes, out),
                   kResponseCellsLog2, bytes(kResponseBytesAt, kResponseBytes, out),
                   kResponseBytes};
    response_rx = {words(1, in), cells(kResponseCellsAt, kResponseCellBytes, in),
                   kResponseCellsLog2, bytes(kResponseBytesAt, kResponseBytes, in), kResponseBytes};
  }

  bool prepare_request_bytes() noexcept override {
    return prepare(request_bytes_ready_, kRequestBytesAt, kRequestBytes);
  }
  bool prepare_response_bytes() noexcept override {
    return prepare(response_bytes_ready_, kResponseBytesAt, kResponseBytes);
  }
  void ring_doorbell() noexcept override {
    if (!doorbell_message_.empty()) {
      // a full socket has messages that will wake the other side anyway; no cancellation point, as
      // with a pipe (base/doorbell.hpp)
      ::syscall(SYS_sendto, doorbell_fd_, doorbell_message_.data(), doorbell_message_.size(),
                MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
      return;
    }
    aperture::ring_doorbell(doorbell_fd_);
  }

 private:
  ring::ChannelWords* words(size_t kind, Side side) const noexcept {
    return reinterpret_cast<ring::ChannelWords*>(base() + kWordsAt) + kind * 2 + nth(side);
  }
  ring::Cell* cells(size_t at, size_t size, Side side) const noexcept {
    return reinterpret_cast<ring::Cell*>(base() + at + nth(side) * size);
  }
  std::byte* bytes(size_t at, size_t size, Side side) const noexcept {
    return base() + at + nth(side) * size;
  }
  std::atomic<uint64_t>* claims(Side side) const noexcept {
    return reinterpret_cast<std::atomic<uint64_t>*>(base() + kClaimsAt) + nth(side) * kClaims;
  }
  std::byte* base() const noexcept { return segment_->lane_base(index_); }

  bool prepare(bool& ready, size_t at, size_t size) noexcept {
    if (ready) return true;
    const size_t lane_at = static_cast<size_t>(base() - segment_->map_.data());
    const size_t begin = lane_at + at + nth(segment_->side_) * size;
    ready = allocate_pages(segment_->fd(), begin, size).ok();
    return ready;
  }

  std::shared_ptr<Segment> segment_;
  std::shared_ptr<const void> keep_;
  const uint32_t index_;
  const int doorbell_fd_;
  const std::span<const std::byte> doorbell_message_;
  bool request_bytes_ready_ = false;
  bool response_bytes_ready_ = false;
};

Segment::Segment(UniqueFd fd, Mapping map, Side side) noexcept
    : fd_(std::move(fd)), map_(std::move(map)), side_(side) {}

std::byte* Segment::lane_base(uint32_t index) const noexcept {
  APERTURE_DEBUG_ASSERT(index < kLanes);
  return map_.data() + kLanesAt + index * kLaneStride;
}

protect::SlotArray* Segment::slots_of(Side side) const noexcept {
  return reinterpret_cast<protect::SlotArray*>(map_.data() + kSlotsAt + nth(side) * kSlotBytes);
}

Result<std::shared_ptr<Segment>> Segment::create() noexcept {
  auto fd = make_sealed_memfd("aperture-lanes", kSegmentBytes);
  if (!fd) return fd.error();
  if (auto s = allocate_pages(fd->get(), 0, kLanesAt); !s) return s.error();
  auto map = Mapping::map_shared(fd->get(), kSegmentBytes, Mapping::Access::read_write);
  if (!map) return map.error();
  const Header h{kMagic, kVersion, kLanes, kLaneStride};
  std::memcpy(map->data(), &h, sizeof h);
  return no_throw([&]() -> Result<std::shared_ptr<Segment>> {
    return std::shared_ptr<Segment>(new Segment(*std::move(fd), *std::move(map), Side::creator));
  });
}

Result<std::shared_ptr<Segment>> Segment::attach(UniqueFd fd) noexcept {
  if (!is_sealed_and_at_least(fd.get(), kSegmentBytes)) return Errc::protocol;
  auto map = Mapping::map_shared(fd.get(), kSegmentBytes, Mapping::Access::read_write);
  if (!map) return map.error();
  Header h;
  std::memcpy(&h, map->data(), sizeof h);
  if (h.magic != kMagic || h.version != kVersion || h.lanes != kLanes ||
      h.lane_stride != kLaneStride) {
    return Errc::protocol;
  }
  // the creator may have left holes: a page of ours that is missing must not be a SIGBUS later
  if (auto s = allocate_pages(fd.get(), 0, kLanesAt); !s) return s.error();
  return no_throw([&]() -> Result<std::shared_ptr<Segment>> {
    return std::shared_ptr<Segment>(new Segment(std::move(fd), *std::move(map), Side::attacher));
  });
}

Result<uint32_t> Segment::reserve_lane() noexcept {
  APERTURE_DEBUG_ASSERT(side_ == Side::creator);
  for (uint32_t i = 0; i < kLanes; ++i) {
    if ((used_ & (1u << i)) != 0) continue;
    const size_t at = kLanesAt + i * kLaneStride;
    if (auto s = allocate_pages(fd_.get(), at, kLaneOpenBytes); !s) return s.error();
    if ((marked_ & (1u << i)) != 0) std::memset(lane_base(i), 0, kLaneOpenBytes);
    used_ |= 1u << i;
    marked_ |= 1u << i;
    return i;
  }
  return Errc::no_space;
}

void Segment::release_lane(uint32_t index) noexcept {
  APERTURE_DEBUG_ASSERT(side_ == Side::creator);
  if (index >= kLanes) return;
  APERTURE_DEBUG_ASSERT((used_ & (1u << index)) != 0);
  used_ &= ~(1u << index);
  // the byte rings may have grown large: nobody looks at them any more, so their pages go back
  const auto at = static_cast<off_t>(kLanesAt + index * kLaneStride + kLaneOpenBytes);
  const auto len = static_cast<off_t>(kLaneStride - kLaneOpenBytes);
  ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len);
}

Result<std::unique_ptr<Lane>> Segment::open_lane(uint32_t index, const LanePeer& peer) noexcept {
  if (index >= kLanes) return Errc::protocol;
  const size_t at = kLanesAt + index * kLaneStride;
  if (auto s = allocate_pages(fd_.get(), at, kLaneOpenBytes); !s) return s.error();
  // all at once, and not a fault for each page in the rings' first lap; a kernel before 5.14 cannot
  ::madvise(lane_base(index), kLaneOpenBytes, MADV_POPULATE_WRITE);
  auto* lane = new (std::nothrow) ShmLane(shared_from_this(), index, peer);
  if (lane == nullptr) return Errc::no_memory;
  return std::unique_ptr<Lane>(lane);
}

}  // namespace aperture::link::shm
