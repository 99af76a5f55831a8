// Side records: see side_record.hpp.
#include "protect/side_record.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>

namespace aperture::protect {

namespace {

uintptr_t page_bytes() noexcept {
  static const auto bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

uintptr_t page_number(const void* at) noexcept {
  return reinterpret_cast<uintptr_t>(at) / page_bytes();
}

// How many pages hold any of those length > 0 bytes, which may be anywhere, at null as well.
size_t pages_of(const std::byte* base, uint64_t length) noexcept {
  const uintptr_t last = reinterpret_cast<uintptr_t>(base) + (length - 1);
  return last / page_bytes() - page_number(base) + 1;
}

// msync with MS_ASYNC does nothing but say whether every page of the range is mapped.
bool are_pages_mapped(uintptr_t first_page, size_t count) noexcept {
  return ::msync(reinterpret_cast<void*>(first_page * page_bytes()), count * page_bytes(),
                 MS_ASYNC) == 0;
}

}  // namespace

EndpointId new_endpoint_id() noexcept {
  static std::atomic<uint32_t> next{1};
  // relaxed: only uniqueness matters
  EndpointId id = next.fetch_add(1, std::memory_order_relaxed);
  while (id == 0) id = next.fetch_add(1, std::memory_order_relaxed);
  return id;
}

bool is_mapped(const std::byte* base, uint64_t length) noexcept {
  if (length == 0) return true;
  return are_pages_mapped(page_number(base), pages_of(base, length));
}

PageMap::PageMap(const std::byte* base, uint64_t length)
    : base_(base),
      first_page_(page_number(base)),
      verified_(length == 0 ? 0 : pages_of(base, length)),
      missing_(verified_.size()) {
  verify(base, length);
}

size_t PageMap::page_of(const std::byte* at) const noexcept {
  return page_number(at) - first_page_;
}

// Halves what is not mapped as a whole: few calls where most of it is in one state.
void PageMap::verify(const std::byte* from, uint64_t len) {
  if (len == 0) return;
  struct Pages {
    size_t first;
    size_t count;
  };
  std::vector<Pages> todo{{page_of(from), pages_of(from, len)}};
  while (!todo.empty()) {
    const Pages p = todo.back();
    todo.pop_back();
    assert(p.count != 0 && p.first + p.count <= verified_.size());
    const bool mapped = are_pages_mapped(first_page_ + p.first, p.count);
    if (!mapped && p.count > 1) {
      todo.push_back({p.first, p.count / 2});
      todo.push_back({p.first + p.count / 2, p.count - p.count / 2});
      continue;
    }
    for (size_t i = p.first; i < p.first + p.count; ++i) {
      if (verified_[i] == mapped) continue;
      verified_[i] = mapped;
      missing_ += mapped ? size_t(-1) : 1;
    }
  }
  assert(missing_ <= verified_.size());
}

bool PageMap::covers(uint64_t offset, uint64_t len) const noexcept {
  if (missing_ == 0 || len == 0) return true;
  const std::byte* const from = base_ + offset;
  const size_t end = page_of(from) + pages_of(from, len);
  for (size_t i = page_of(from); i < end; ++i) {
    if (!verified_[i]) return false;
  }
  return true;
}

Denial SideRecord::validate(EndpointId through, uint64_t offset, uint64_t len) const noexcept {
  if (needs_endpoint && (endpoint == 0 || endpoint != through)) return Denial::wrong_endpoint;
  for (const Segment& s : segments) {
    if (len == 0) break;
    if (offset >= s.length) {
      offset -= s.length;
      continue;
    }
    const uint64_t n = std::min(len, s.length - offset);
    if (s.pages && !s.pages->covers(offset, n)) return Denial::not_verified;
    offset = 0;
    len -= n;
  }
  return Denial::none;
}

}  // namespace aperture::protect
