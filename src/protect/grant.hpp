// Grant: the leave to touch one chunk of a region. Nothing else in Aperture turns a peer's address
// into a pointer.
//
// Only protect/ makes a Grant. It lives on the stack of the thread that asked, for one chunk of at
// most kChunkBytes, inside the engine lock of the region's domain: revoke_begin() is called under
// that lock too, so that no Grant of the owner's own threads outlives it (revocation.md). It cannot
// be copied, moved or allocated; longer operations keep its RegionRef and ask again.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/copy.hpp"
#include "protect/rights.hpp"

namespace aperture::protect {

class KeyTable;

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

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }  // min(length asked for, kChunkBytes)
  RegionRef region() const noexcept { return region_; }

  // Both copy at most size() bytes; more is an error of ours.
  void copy_in(const void* from, size_t n, size_t at = 0) const noexcept {
    assert(at <= size_ && n <= size_ - at);
    copy(data_ + at, from, n);
  }
  void copy_out(void* to, size_t n, size_t at = 0) const noexcept {
    assert(at <= size_ && n <= size_ - at);
    copy(to, data_ + at, n);
  }

 private:
  static void copy(void* to, const void* from, size_t n) noexcept {
    if (n <= kShortBytes) {
      copy_short(to, from, n);
    } else {
      std::memcpy(to, from, n);
    }
  }

  friend class KeyTable;
  friend class Checked;
  Grant() noexcept = default;

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  RegionRef region_;
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
  friend class KeyTable;
  explicit Checked(Denial denial) noexcept : denial_(denial) {}
  Checked(std::byte* data, size_t size, RegionRef region) noexcept : denial_(Denial::none) {
    grant_.data_ = data;
    grant_.size_ = size;
    grant_.region_ = region;
  }

  Denial denial_;
  Grant grant_;
};

}  // namespace aperture::protect
