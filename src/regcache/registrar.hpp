// What the cache keeps: a resource for a range of memory, costly to make (pinned pages, a mapping
// of a device, a handle of a driver). The cache knows no more of it than this.
#pragma once

#include <cstdint>

#include "base/errc.hpp"
#include "regcache/range.hpp"

namespace aperture::regcache {

class Registrar {
 public:
  // Its own word for one.
  using Resource = uint64_t;

  virtual ~Registrar() = default;
  // Makes one for the pages of `range`. Errors: its own; they are the caller's to hear.
  virtual Result<Resource> add(const Range& range, Access access) noexcept = 0;
  // Gives one back, once. Its memory may be somebody else's by now, or nobody's.
  virtual void remove(Resource resource) noexcept = 0;
  // Whether a resource holds the pages that memory had when it was made, so that they stay where
  // they are. Else the kernel may give memory other pages, of the same contents, at any time: the
  // first store to a page of zeros, migration, swap. The same answer always.
  virtual bool holds_pages() const noexcept = 0;

  // Both are called by threads that are in a call of the cache's, with no lock of it held: they may
  // block, allocate, and map and unmap memory. Never by a monitor's thread and never in a hook.
};

}  // namespace aperture::regcache
