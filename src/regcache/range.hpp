// A range of our own addresses, and what may be done with it. No state, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aperture::regcache {

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;  // behind the last byte

  constexpr uint64_t size() const noexcept { return end - begin; }
  constexpr bool is_empty() const noexcept { return begin >= end; }
  constexpr bool covers(const Range& other) const noexcept {
    return begin <= other.begin && other.end <= end;
  }
  constexpr bool overlaps(const Range& other) const noexcept {
    return begin < other.end && other.begin < end;
  }
};

uint64_t page_size() noexcept;

// The whole pages around [addr, addr + len); empty if that is none, or leaves the address space.
Range pages_around(const void* addr, size_t len) noexcept;

// What the resource lets its user do with the memory. Never widened: a resource of fewer rights is
// not found by who asks for more, and ranges grow together only where their rights are the same.
enum class Access : uint8_t { read = 1, write = 2, read_write = 3 };

constexpr bool allows(Access had, Access wanted) noexcept {
  return (static_cast<unsigned>(wanted) & ~static_cast<unsigned>(had)) == 0;
}

}  // namespace aperture::regcache
