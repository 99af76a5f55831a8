// Pages that lie apart: ranges for a cache, none of which is joined with another.
//
// They are put where nobody else's memory is, always at the same places: a cache that has not
// noticed what became of a page finds it again when it is mapped anew. One owner.
#pragma once

#include <sys/mman.h>

#include <cassert>
#include <cstddef>

namespace aperture::bench {

class PagesApart {
 public:
  // How the kernel sees them: each a mapping of its own, or all in one, as blocks on a heap are.
  enum class Layout { own_mappings, one_mapping };
  static constexpr size_t kPage = 4096;

  // All written to. `area`: a number below 1,000; each is somewhere else. Throws Failure.
  PagesApart(unsigned area, size_t count, Layout layout = Layout::own_mappings);
  // Unmaps what is still there.
  ~PagesApart();
  PagesApart(const PagesApart&) = delete;
  PagesApart& operator=(const PagesApart&) = delete;

  size_t count() const noexcept { return count_; }
  std::byte* at(size_t i) const noexcept { return base_ + 2 * i * kPage; }
  // One after the other, those that are mappings of their own; what munmap(2) returns.
  int unmap_next() noexcept {
    assert(layout_ == Layout::own_mappings && unmapped_ < count_);
    return ::munmap(at(unmapped_++), kPage);
  }

 private:
  std::byte* const base_;
  const size_t count_;
  const Layout layout_;
  size_t unmapped_ = 0;
};

}  // namespace aperture::bench
