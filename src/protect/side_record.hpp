// What a region has beyond one flat range that everybody with the key may reach: several buffers,
// pages that must have been verified, a secret, one endpoint that alone may reach it, watchers,
// memory that a device's driver has to copy.
//
// It is the owner's own and no peer sees it: the entry of such a region carries kFlagAskOwner (as
// do a few others, key_file.hpp), and peers leave its accesses to the owner. But where a device's
// driver shares the memory, and there is nothing else to a region, the entry carries kFlagDevice
// instead, and peers that may copy by themselves do so by that driver; of all the record they read
// the Share. Built before the region is added; changed afterwards only inside the engine lock of
// the region's domain, in which every check of it runs too.
// man 3 fi_mr: several buffers, "MMU notify", raw keys, regions of endpoints, RMA events,
// persistent memory, FI_MR_HMEM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory/driver.hpp"
#include "protect/rights.hpp"

namespace aperture::protect {

// Told of each remote write or atomic that changed the region, inside the engine lock.
class WriteWatcher {
 public:
  virtual ~WriteWatcher() = default;
  virtual void on_remote_write() noexcept = 0;
};

// The endpoint through which an access comes: unique in this process, never 0.
using EndpointId = uint32_t;
EndpointId new_endpoint_id() noexcept;

// Which pages of a range were found to be mapped. (fi_mr(3), "MMU notify")
class PageMap {
 public:
  // Looks at every page of the range now. May throw bad_alloc.
  PageMap(const std::byte* base, uint64_t length);
  // Looks again at the pages that [from, from + len) touches; inside the range.
  void verify(const std::byte* from, uint64_t len);
  // Whether every page that [offset, offset + len) touches was verified; inside the range.
  bool covers(uint64_t offset, uint64_t len) const noexcept;
  bool is_complete() const noexcept { return missing_ == 0; }

 private:
  size_t page_of(const std::byte* at) const noexcept;
  const std::byte* base_;
  size_t first_page_;
  std::vector<bool> verified_;
  size_t missing_;
};

struct Segment {
  std::byte* base = nullptr;
  uint64_t length = 0;           // bytes
  std::optional<PageMap> pages;  // empty: an access finds out for itself
  // Of memory that the CPU must not touch; null: the CPU copies. Shared with operations that use it
  // locally, which may end after the region.
  std::shared_ptr<const memory::Registration> device = nullptr;

  // False: no memory is there any more, or not for that; some of it may have been copied.
  bool copy_in(std::byte* at, const void* from, size_t n) const noexcept;
  bool copy_out(void* to, const std::byte* at, size_t n) const noexcept;
};

struct SideRecord {
  std::vector<Segment> segments;        // in the order of the region's offsets; at least one
  std::optional<uint64_t> secret;       // who does not show it has not got the key
  bool needs_endpoint = false;          // reached through one endpoint only ...
  EndpointId endpoint = 0;              // ... this one; 0: through none
  std::vector<WriteWatcher*> watchers;  // each told of each write; not owned
  bool persistent = false;              // a commit reaches the file behind it
  bool in_device = false;               // all of its segments are
  // For peers; null: they leave it to the owner. They read it at its address, for as long as the
  // region lives.
  std::unique_ptr<const memory::Share> share{};

  // Whether device memory in one piece is all that there is to it.
  bool is_device_alone() const noexcept {
    return in_device && segments.size() == 1 && !segments[0].pages && !secret && !needs_endpoint &&
           watchers.empty() && !persistent;
  }
  // Where that is so, the user wants it (APERTURE_DEVICE_SHARE=on), and its driver shares it with
  // other processes: `share` is what peers need.
  void share_device() noexcept;
  // The rules that it adds, for [offset, offset + len), which lies inside the region.
  Denial validate(EndpointId through, uint64_t offset, uint64_t len) const noexcept;
};

// Whether every page of the range is mapped, as far as the kernel tells: a system call.
bool is_mapped(const std::byte* base, uint64_t length) noexcept;

// Calls fn(const Segment&, std::byte* piece, size_t n) for each run of [offset, offset + len) until
// it returns false; false then. The range lies inside the segments.
template <typename Fn>
bool each_run_of(std::span<const Segment> segments, uint64_t offset, uint64_t len, Fn&& fn) {
  for (const Segment& s : segments) {
    if (len == 0) break;
    if (offset >= s.length) {
      offset -= s.length;
      continue;
    }
    const uint64_t n = len < s.length - offset ? len : s.length - offset;
    if (!fn(s, s.base + offset, static_cast<size_t>(n))) return false;
    offset = 0;
    len -= n;
  }
  return true;
}
// The same without the segment.
template <typename Fn>
bool each_run(std::span<const Segment> segments, uint64_t offset, uint64_t len, Fn&& fn) {
  return each_run_of(segments, offset, len,
                     [&fn](const Segment&, std::byte* piece, size_t n) { return fn(piece, n); });
}

}  // namespace aperture::protect
