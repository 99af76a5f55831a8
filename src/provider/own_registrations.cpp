// Registering for applications: see own_registrations.hpp.
#include "provider/own_registrations.hpp"

#include <cassert>
#include <cinttypes>
#include <new>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/pages.hpp"
#include "protect/descriptor.hpp"
#include "provider/ep_described.hpp"
#include "provider/errors.hpp"
#include "provider/mr.hpp"

namespace aperture::provider {

using protect::Rights;
using regcache::Access;

namespace {

constexpr Rights kWrittenInto = kRecvTarget | kReadResult;
constexpr Rights kReadFrom = kSendSource | kWriteSource;

protect::RegionHandle* region_handle_of(regcache::Registrar::Resource resource) noexcept {
  return reinterpret_cast<protect::RegionHandle*>(resource);
}

}  // namespace

OwnRegistrations::OwnRegistrations(nic::Engine& engine) noexcept
    : engine_(engine), pd_(protect::new_domain()) {}

Result<std::unique_ptr<OwnRegistrations>> OwnRegistrations::open(nic::Engine& engine) noexcept {
  std::unique_ptr<OwnRegistrations> made(new (std::nothrow) OwnRegistrations(engine));
  if (made == nullptr) return Errc::no_memory;
  auto kept = regcache::WatchedCache::open(*made, regcache::settings_of_environment());
  if (!kept) return kept.error();
  made->kept_ = *std::move(kept);
  return made;
}

OwnRegistrations::~OwnRegistrations() {
  if (kept_ == nullptr) return;
  const regcache::Counts n = kept_->cache().counts();
  APERTURE_INFO("registrations of local buffers, monitor %s: %" PRIu64 " uses met one, %" PRIu64
                " were made (%" PRIu64 " of them not kept), %" PRIu64
                " dropped since their memory had changed, %" PRIu64 " for want of room",
                kept_->monitor() != nullptr ? kept_->monitor() : "none", n.hits, n.misses,
                n.not_kept, n.stale, n.evicted);
  kept_.reset();
}

ssize_t OwnRegistrations::cover(const char* call, const void* buf, size_t len,
                                Rights need) noexcept {
  const bool is_written = (need & kWrittenInto) != Rights::none;
  auto use = kept_->cache().acquire(buf, len, is_written ? Access::write : Access::read);
  if (!use)
    return refuse(fi_code(use.error()),
                  use.error() == Errc::bad_buffer
                      ? "%s: not all of the %zu bytes at %p are mapped memory that can be %s, so "
                        "they cannot be registered for this call (APERTURE_MR_MODE=local_cache)"
                      : "%s: the %zu bytes at %p cannot be registered, to be %s, for this call "
                        "(APERTURE_MR_MODE=local_cache)",
                  call, len, buf, is_written ? "written" : "read");
  const void* const descriptor = protect::descriptor_of(*region_handle_of(use->resource()));
  const protect::LocalAsk ask{pd_, descriptor, reinterpret_cast<uint64_t>(buf), len, need, 0};
  const protect::LocalAnswer answer = protect::check_local(engine_.keys().own_file().layout(), ask);
  kept_->cache().release(*use);
  if (answer.denial == protect::Denial::none) [[likely]]
    return 0;
  assert(false);  // the cache would have handed out what does not cover it
  return refuse(-FI_EACCES, "%s: the registration of the %zu bytes at %p does not cover them", call,
                len, buf);
}

Result<regcache::Registrar::Resource> OwnRegistrations::add(const regcache::Range& range,
                                                            Access access) noexcept {
  const bool is_written = access != Access::read;
  if (!may_be_pinned(range.begin, range.size(), is_written)) return Errc::bad_buffer;
  protect::RegionSpec spec;
  spec.pd = pd_;
  spec.base = range.begin;
  spec.length = range.size();
  spec.rights = is_written ? kWrittenInto : kReadFrom;
  auto* const handle = new (std::nothrow) protect::RegionHandle;
  if (handle == nullptr) return Errc::no_memory;
  assert(!range.is_empty() && pd_ != 0);
  if (const Status s = engine_.keys().add(spec, nullptr, *handle); !s) {
    delete handle;
    return s.error();
  }
  return reinterpret_cast<Resource>(handle);
}

void OwnRegistrations::remove(Resource resource) noexcept {
  const std::unique_ptr<protect::RegionHandle> handle(region_handle_of(resource));
  protect::Revocation& revocation = engine_.keys().revocation();
  Status s;
  {
    nic::EngineGuard guard(engine_);
    s = revocation.revoke_now(*handle);
  }
  // a peer that tries keys which nobody has given it may be looking at this one
  if (s.error() != Errc::busy) return;
  if (revocation.wait_until_quiet(*handle, now_ns() + kRevokeNs)) {
    static_cast<void>(revocation.poll(*handle));
  }
}

}  // namespace aperture::provider
