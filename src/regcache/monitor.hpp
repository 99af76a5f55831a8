// Who notices that memory is not what it was when a resource was made for it.
//
// A monitor puts what it notices into the cache's Changes and then calls back, so that the cache
// takes it at once if nobody is at it. fi_mr(3), "Memory registration cache", names them: see
// userfault_monitor.hpp.
#pragma once

#include "base/callback.hpp"
#include "base/errc.hpp"
#include "regcache/changes.hpp"
#include "regcache/range.hpp"

namespace aperture::regcache {

class Monitor {
 public:
  virtual ~Monitor() = default;

  // As FI_MR_CACHE_MONITOR has it. Static storage.
  virtual const char* name() const noexcept = 0;
  // Changes of that range are noticed from now on, and of what is watched with it: that is
  // returned. Pages may be watched already, for others. Errors: not_supported (memory of a kind
  // whose changes it cannot notice), busy (somebody else watches it), no_memory, shut_down (it has
  // stopped). No lock of the cache held.
  virtual Result<Range> watch(const Range& range) noexcept = 0;
  // The first piece in that range, which begins as what was returned, of what is there now and is
  // watched as one: it may reach beyond the range. Empty: there is none. No lock of the cache held.
  virtual Range piece_of(const Range& range) noexcept { return range; }
  // Nothing is wanted any more of such a piece. No lock of the cache held.
  virtual void forget(const Range& piece) noexcept = 0;
  // False: a change may be over for the application, and not even begun in Changes. Asked before
  // Changes::any_begun(), with the cache's lock. Neither waits nor allocates.
  virtual bool is_settled() noexcept = 0;
  // It was not, for longer than a change takes: does what it needs in order to be so again, if
  // there is anything. No lock of the cache held.
  virtual void settle() noexcept {}
  // It notices nothing any more, so nothing may be kept. The cache's lock may be held.
  virtual bool has_stopped() const noexcept = 0;
};

}  // namespace aperture::regcache
