// Grant: the leave to touch one chunk of a region. Nothing else in Aperture turns a peer's address
// into a pointer.
//
// Only protect/ makes a Grant. It lives on the stack of the thread that asked, for one chunk of at
// most kChunkBytes, inside the engine lock of the region's domain: Revocation::begin() is called
// under that lock too, so that no Grant of the owner's own threads outlives it. It cannot be
// copied, moved or allocated; longer operations keep its RegionRef and ask again.
// docs/revocation.md says why.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/guarded_copy.hpp"
#include "protect/rights.hpp"
#include "protect/side_record.hpp"

namespace aperture::protect {

class AccessCheck;

// Which life of which entry: survives the Grant, and is refused once the region is closed even if
// the same key was registered again.
struct RegionRef {
  uint32_t index = 0;
  uint64_t generation = 0;  // 0: none
};

class Grant {
 public:
  Grant(const Grant&) = delete;
  Grant& operator=(const Grant&) = delete;
  static void* operator new(size_t) = delete;
  static void* operator new[](size_t) = delete;

  std::byte* data() const noexcept { return data_; }  // of its first byte
  size_t size() const noexcept { return size_; }      // min(length asked for, kChunkBytes)
  RegionRef region() const noexcept { return region_; }

  // Both copy at most size() bytes; more is an error of ours. False: no memory is mapped there (any
  // more), or not for that; some of it may have been copied. That is Denial::not_backed.
  [[nodiscard]] bool copy_in(const void* from, size_t n, size_t at = 0) const noexcept {
    assert(at <= size_ && n <= size_ - at);
    if (parts_ == nullptr) [[likely]]
      return guarded_copy(data_ + at, from, n);
    return copy_in_parts(from, n, at);
  }
  [[nodiscard]] bool copy_out(void* to, size_t n, size_t at = 0) const noexcept {
    assert(at <= size_ && n <= size_ - at);
    if (parts_ == nullptr) [[likely]]
      return guarded_copy(to, data_ + at, n);
    return copy_out_parts(to, n, at);
  }

  // The CPU must not touch it: both copies are a driver's work.
  bool is_in_device() const noexcept { return parts_ != nullptr && parts_->in_device; }
  // Whose driver that is: of its first segment.
  const memory::Registration* device() const noexcept {
    return is_in_device() ? parts_->segments.front().device.get() : nullptr;
  }
  // Its bytes where they are one run of memory that the CPU may touch; else null.
  std::byte* run() const noexcept { return parts_ == nullptr ? data_ : nullptr; }
  // For who works in place: calls fn(std::byte* piece, size_t n) -> bool for each run of the chunk
  // until it says false; false then. Memory of a device has no place for it: false at once.
  template <typename Fn>
  bool each_piece(Fn&& fn) const {
    if (parts_ == nullptr) return fn(data_, size_);
    if (parts_->in_device) return false;
    return each_run(parts_->segments, offset_, size_, std::forward<Fn>(fn));
  }

 private:
  friend class AccessCheck;
  friend class Checked;
  Grant() noexcept = default;
  bool copy_in_parts(const void* from, size_t n, size_t at) const noexcept;
  bool copy_out_parts(void* to, size_t n, size_t at) const noexcept;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  RegionRef region_;
  const SideRecord* parts_ = nullptr;  // where the chunk is more than one run, or in a device
  uint64_t offset_ = 0;                // of the chunk in the region; with parts_
};

// The answer of a check: a Grant, or why not.
class [[nodiscard]] Checked {
 public:
  Checked(const Checked&) = delete;
  Checked& operator=(const Checked&) = delete;
  static void* operator new(size_t) = delete;
  static void* operator new[](size_t) = delete;

  bool ok() const noexcept { return denial_ == Denial::none; }
  explicit operator bool() const noexcept { return ok(); }
  Denial denial() const noexcept { return denial_; }
  const Grant& grant() const noexcept {
    assert(ok());
    return grant_;
  }

 private:
  friend class AccessCheck;
  explicit Checked(Denial denial) noexcept : denial_(denial) {}
  Checked(std::byte* data, size_t size, RegionRef region) noexcept : denial_(Denial::none) {
    grant_.data_ = data;
    grant_.size_ = size;
    grant_.region_ = region;
  }
  Checked(std::byte* data, size_t size, RegionRef region, const SideRecord* parts,
          uint64_t offset) noexcept
      : Checked(data, size, region) {
    grant_.parts_ = parts;
    grant_.offset_ = offset;
  }

  Denial denial_;
  Grant grant_;
};

}  // namespace aperture::protect
