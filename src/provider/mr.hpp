// fid_mr: memory regions. man 3 fi_mr.
//
// A region lives in the process's key table from the end of its registration to the return of
// fi_close: when that returns, no earlier remote access can land any more. Registered at once, or,
// in a domain whose event queue was bound with FI_REG_MR, by the control thread. What is bound to a
// region is guarded by the engine's lock; calls on one region are otherwise the application's to
// serialise.
#pragma once

#include <rdma/fi_domain.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "memory/driver.hpp"
#include "protect/key_table.hpp"
#include "provider/domain.hpp"

namespace aperture::provider {

struct Cntr;
struct EpBody;
struct Window;

// For a region or window to become quiet; then -FI_EBUSY, and the call may be made again.
inline constexpr uint64_t kRevokeNs = 5'000'000'000;

// The buffers of a region. Most have one, which needs no memory of its own.
class Buffers {
 public:
  void assign(const iovec* from, size_t count) {
    count_ = count;
    if (count == 1) {
      one_ = *from;
    } else {
      many_.assign(from, from + count);
    }
  }
  const iovec* data() const noexcept { return count_ == 1 ? &one_ : many_.data(); }
  size_t size() const noexcept { return count_; }
  const iovec* begin() const noexcept { return data(); }
  const iovec* end() const noexcept { return data() + count_; }
  const iovec& front() const noexcept { return *data(); }

 private:
  size_t count_ = 0;
  iovec one_{};
  std::vector<iovec> many_;
};

// What a registering call asks for, whichever of the three it was; owns what it has to keep.
struct RegionWish {
  Buffers buffers;
  uint64_t access = 0;
  uint64_t requested_key = 0;
  uint64_t flags = 0;
  void* context = nullptr;
  const void* caller = nullptr;  // for the explanation of refused accesses
  protect::DomainId pd = 0;
  // One for each buffer, where these are in a device; else none.
  std::unique_ptr<std::shared_ptr<const memory::Registration>[]> devices;
  // With FI_AV_AUTH_KEY: those of its keys, beside `pd`, which no peer's request meets there.
  std::vector<protect::DomainId> key_domains;
};

enum class RegionState : uint8_t {
  pending,   // the control thread will register it
  ready,     // in the key table
  revoking,  // fi_mr_refresh or fi_close ran into its deadline: refused to everybody
  failed,    // the control thread could not; an error event has said so
};

struct Region {
  fid_mr fid{};
  Domain* domain = nullptr;
  RegionWish wish;
  protect::RegionHandle handle;
  std::vector<protect::RegionHandle> of_keys;  // the same in wish.key_domains
  uint64_t base = 0;                           // what peers call its first byte
  uint64_t secret = 0;                         // second half of its raw key; 0: it has none
  bool enabled = false;
  // An endpoint was bound to it, and may be closed by now: then nobody reaches it, and no other can
  // be bound. Guarded by the engine's lock.
  bool had_endpoint = false;
  uint64_t timer = 0;  // of a registration that is held back; the control thread's
  // SYNC POINT: region-state (the control thread publishes what it has registered)
  std::atomic<RegionState> state{RegionState::pending};
  // SYNC POINT: region-reported (the control thread is done with it: its event is in the queue)
  std::atomic<bool> reported{false};
  std::vector<Cntr*> counters;  // bound to it
  EpBody* endpoint = nullptr;   // likewise
  // Bound to it, or invalidated by a peer since; guarded by the engine's lock.
  std::vector<Window*> windows;

  // What is done to it is done to all of these.
  size_t entries() const noexcept { return 1 + of_keys.size(); }
  protect::RegionHandle& entry(size_t i) noexcept { return i == 0 ? handle : of_keys[i - 1]; }
};

static_assert(sizeof(Region) <= kRegionBytes &&
              alignof(Region) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

// mr_register.cpp: the work itself; 0 or a negative fi_errno with its sentence in the log.
int check_wish(const Domain& domain, const RegionWish& wish);
int register_region(Region& region);
// FI_MR_ALLOCATED: every page of the buffer is there, or is now; else -FI_EFAULT.
int populate(const iovec& buffer, uint64_t access);

// mr_bind.cpp: fi_mr_bind, fi_mr_enable, fi_mr_refresh.
int bind_region(fid* fid, struct fid* what, uint64_t flags) noexcept;
int enable_region(Region& region);
int refresh_region(Region& region, const struct fi_mr_modify& what);
// Waits until no peer is inside any more, after Revocation::begin(). False: past the deadline.
bool wait_until_quiet(Region& region);
// The region lets go of all that is bound to it. Engine lock held.
void unbind_region(Region& region) noexcept;
// What is closed while something is bound to it is -FI_EBUSY, not merely worth a sentence: by the
// setting APERTURE_MR_CLOSE, or else where the rules of a verbs NIC are demanded.
bool closes_strictly() noexcept;
// Whether a region that is bound to an endpoint is to be closed before that, as from API 2.5 on.
bool closes_regions_first(const Domain& domain) noexcept;
// "counter (context 0x...) and endpoint (context 0x...)"; empty if nothing is bound.
std::string what_is_bound(const Region& region);

}  // namespace aperture::provider
