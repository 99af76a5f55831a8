// Closing regions: what is closed stays closed, whatever its peers are doing at that moment.
// docs/revocation.md has the protocol, its fences and its proof.
//
// A close makes the entry REVOKING (key_entries.hpp), from which moment everybody is refused, then
// waits until no peer is inside (accessors.hpp), then frees it. What is begun inside the engine
// lock of the region's domain finds none of our own threads inside, since checks run in that lock
// too.
//
// Threads: begin(), revoke_now(), revoke_bound() and invalidate() inside that engine lock; the
// others outside every lock (but by windows, which poll now and then: window.hpp). Invariants: an
// entry is FREE, or VALID in another life, only after nothing older can land; a close that has
// answered busy stays refused until it is finished.
#pragma once

#include <cstdint>

#include "base/errc.hpp"
#include "protect/access_check.hpp"
#include "protect/accessors.hpp"
#include "protect/key_entries.hpp"

namespace aperture::protect {

class Revocation {
 public:
  // All of one table; they outlive it.
  Revocation(KeyEntries& entries, Accessors& accessors, const AccessCheck& access) noexcept
      : entries_(entries), accessors_(accessors), access_(access) {}
  Revocation(const Revocation&) = delete;
  Revocation& operator=(const Revocation&) = delete;

  // Refused from now on. no_entry if it is closed already.
  Status begin(const RegionHandle& region);
  // True once nothing older can land any more: the entry is free then.
  bool poll(const RegionHandle& region);
  // begin() and one poll() in one step: ok when it is over, busy when it is to be polled on,
  // no_entry.
  Status revoke_now(const RegionHandle& region);
  // begin(), and poll() until `deadline_ns` (now_ns() time) has passed, then busy: the region stays
  // refused, and calling again finishes. For tests without an engine, whose lock it does not take.
  Status revoke(const RegionHandle& region, uint64_t deadline_ns);

  // Of a region that was added with bound_to: over when this returns. No peer ever pins such a
  // region, and our own threads are in it inside that lock only. Errors: no_entry.
  Status revoke_bound(const RegionHandle& region);
  // A peer's invalidation of a memory window by its key: the same for what was added with bound_to,
  // if AccessCheck::find_bound() finds it. none, or why not.
  Denial invalidate(const AccessAsk& ask);

  // To refresh a region: instead of poll(), until it is true; then revive() puts the region in
  // force again, key, rights and side record as they are, in a new life: what is under way in the
  // old one is refused. Its new handle; no_entry if it is not being closed.
  bool is_quiet(const RegionHandle& region);
  bool wait_until_quiet(const RegionHandle& region, uint64_t deadline_ns);  // as revoke() waits
  Result<RegionHandle> revive(const RegionHandle& region);

 private:
  void free_if_closing(const RegionHandle& region) noexcept;

  KeyEntries& entries_;
  Accessors& accessors_;
  const AccessCheck& access_;
};

}  // namespace aperture::protect
