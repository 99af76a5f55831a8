// The memory that two processes share: one sealed memfd with kLanes lanes.
//
//   0        header: magic, version, sizes                                     1 KiB
//   1024     accessor slots, creator's then attacher's (protect::SlotArray)    1 KiB each
//   4096     lane 0, lane 1, ...                                               kLaneStride each
//
//   lane +0      words: 4 channels x 256 bytes, rendezvous claims 2 x 32 x 8   one page
//        +4096   request cells  creator -> attacher, attacher -> creator       16 KiB each
//                response cells creator -> attacher, attacher -> creator        8 KiB each
//        +53248  request bytes (256 KiB each), response bytes (512 KiB each)   on first use
//
// Nothing in it is a pointer, and nothing in it is believed. Pages are allocated before they are
// touched (a lane when it opens, a byte ring when it is first used), so memory that runs out is an
// error and never a SIGBUS. The file has no name and goes with its last process.
//
// A Segment is shared by its lanes (shared_ptr); open_lane() is for the control thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/fd.hpp"
#include "link/lane.hpp"

namespace aperture::link::shm {

inline constexpr uint32_t kLanes = 16;

enum class Side : uint8_t { creator, attacher };

// What a lane needs to know of the process at its other end.
struct LanePeer {
  Address remote;
  uint32_t remote_domain = 0;
  // Eventfd of the remote engine; or, if there is a message to ring with, a socket to send it to.
  int doorbell_fd = -1;
  std::span<const std::byte> doorbell_message;
  Ringing* ringing = nullptr;  // of that engine alone; null: each lane rings it for itself
  DirectPath direct;
  bool fence_always = false;
  // Owns doorbell_fd, doorbell_message, ringing and what direct points to; goes with the lane.
  std::shared_ptr<const void> keep;
};

class Segment : public std::enable_shared_from_this<Segment> {
 public:
  // Errors: no_fds, no_memory, no_space.
  static Result<std::shared_ptr<Segment>> create() noexcept;
  // From a peer: the size, the seals and the header are checked. Errors: protocol, no_memory.
  static Result<std::shared_ptr<Segment>> attach(UniqueFd fd) noexcept;

  int fd() const noexcept { return fd_.get(); }
  Side side() const noexcept { return side_; }
  // Memory of the accessor slots that `side` writes, zero at first.
  protect::SlotArray* slots_of(Side side) const noexcept;
  static constexpr size_t kSlotBytes = 1024;
  static constexpr size_t kBytes = 4096 + kLanes * 1'626'112;  // mapped, as drawn above

  // The creator picks a free lane, which is all zero, and has its pages allocated. Errors: no_space
  // (all in use), no_memory.
  Result<uint32_t> reserve_lane() noexcept;
  // The creator gives a lane back, once both sides have closed it.
  void release_lane(uint32_t index) noexcept;
  // Our end of lane `index`. Errors: protocol (no such lane).
  Result<std::unique_ptr<Lane>> open_lane(uint32_t index, const LanePeer& peer) noexcept;

 private:
  friend class ShmLane;
  Segment(UniqueFd fd, Mapping map, Side side) noexcept;
  std::byte* lane_base(uint32_t index) const noexcept;

  UniqueFd fd_;
  Mapping map_;
  Side side_;
  // Bit sets of lanes; creator only.
  uint32_t used_ = 0;    // reserved
  uint32_t marked_ = 0;  // have been, so that what their last life left is to be cleared
};

}  // namespace aperture::link::shm
