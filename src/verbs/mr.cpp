// Registering and deregistering: see mr.hpp. IBTA vol. 1, 11.2.8 (memory management verbs).
#include "verbs/mr.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cinttypes>
#include <memory>

#include "base/clock.hpp"
#include "base/file_mappings.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/pages.hpp"
#include "ib/words.hpp"
#include "memory/dma_buf.hpp"
#include "verbs/errors.hpp"
#include "verbs/mr_keys.hpp"
#include "verbs/newer.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

using protect::Rights;

namespace {

constexpr unsigned kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                  IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
                                  IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB | kAccessFlushes;

// What an application asks for, whatever the call.
struct Wish {
  const char* call;
  uint64_t start;
  uint64_t length;
  uint64_t origin;
  unsigned access;
  std::shared_ptr<const memory::Registration> device = nullptr;  // null: memory of the host
};

int validate_access(const char* call, unsigned access) noexcept {
  if ((access & ~kKnownAccess) != 0)
    return refuse(EINVAL, "%s: access 0x%x has bits that this device does not know", call, access);
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0 &&
      (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return refuse(EINVAL, "%s: remote write or atomic needs IBV_ACCESS_LOCAL_WRITE too", call);
  }
  return 0;
}

// Memory that the CPU must not touch is registered with its driver, as a device with peer memory
// does it.
int find_device(Wish& wish) noexcept {
  void* const start = reinterpret_cast<void*>(wish.start);
  memory::Driver* const driver = wish.length != 0 ? memory::find(start) : nullptr;
  if (driver == nullptr) return 0;
  if ((wish.access & (IBV_ACCESS_MW_BIND | kAccessFlushPersistent)) != 0)
    return refuse(EOPNOTSUPP,
                  "%s: 0x%" PRIx64
                  " is memory of %s, where no memory window is bound and no flush reaches a file; "
                  "leave out IBV_ACCESS_MW_BIND and IBV_ACCESS_FLUSH_PERSISTENT",
                  wish.call, wish.start, memory::name_of(driver->kind()));
  const char* why = "";
  auto found = driver->add(start, wish.length, memory::Driver::kAnyDevice, why);
  if (!found)
    return refuse(errno_of(found.error()), "%s: the %" PRIu64 " bytes at 0x%" PRIx64 " of %s: %s",
                  wish.call, wish.length, wish.start, memory::name_of(driver->kind()), why);
  wish.device = std::move(*found);
  return 0;
}

int validate_range(Wish& wish) noexcept {
  const bool everything = wish.length == SIZE_MAX && wish.start == 0;
  if (everything) {
    if ((wish.access & kAccessFlushPersistent) != 0)
      return refuse(EINVAL, "%s: the whole address space is no file that could be flushed",
                    wish.call);
    if ((wish.access & IBV_ACCESS_ON_DEMAND) != 0) return 0;
    return refuse(EINVAL,
                  "%s: the whole address space is an implicit on-demand region; it needs "
                  "IBV_ACCESS_ON_DEMAND",
                  wish.call);
  }
  if (wish.start + wish.length < wish.start || wish.origin + wish.length < wish.origin)
    return refuse(EINVAL, "%s: %" PRIu64 " bytes at 0x%" PRIx64 " wrap around", wish.call,
                  wish.length, wish.start);
  if (wish.device != nullptr) return 0;
  if (const int error = find_device(wish); error != 0 || wish.device != nullptr) return error;
  const bool for_writing = (wish.access & IBV_ACCESS_LOCAL_WRITE) != 0;  // remote rights need it
  if ((wish.access & IBV_ACCESS_ON_DEMAND) == 0 &&
      !may_be_pinned(wish.start, wish.length, for_writing))
    return refuse(EFAULT,
                  "%s: not all of the %" PRIu64 " bytes at 0x%" PRIx64
                  " are mapped memory that can be %s; map them so first, %sor register on demand",
                  wish.call, wish.length, wish.start, for_writing ? "read and written" : "read",
                  for_writing ? "leave out IBV_ACCESS_LOCAL_WRITE, " : "");
  if ((wish.access & kAccessFlushPersistent) != 0 &&
      !is_mapped_from_files(reinterpret_cast<const void*>(wish.start), wish.length))
    return refuse(EINVAL,
                  "%s: IBV_ACCESS_FLUSH_PERSISTENT, but not all of the %" PRIu64
                  " bytes at 0x%" PRIx64
                  " is a shared mapping of a file that has a name; map such a file, or leave the "
                  "flag out",
                  wish.call, wish.length, wish.start);
  return 0;
}

}  // namespace

Rights remote_rights_of(unsigned access) noexcept {
  Rights rights = Rights::none;
  if ((access & IBV_ACCESS_REMOTE_READ) != 0) rights |= Rights::remote_read;
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0) rights |= Rights::remote_write;
  if ((access & IBV_ACCESS_REMOTE_ATOMIC) != 0) rights |= Rights::remote_atomic;
  if ((access & kAccessFlushGlobal) != 0) rights |= Rights::flush_global;
  if ((access & kAccessFlushPersistent) != 0) rights |= Rights::flush_persistent;
  return rights;
}

namespace {

Rights rights_of(unsigned access) noexcept {
  Rights rights = Rights::local_read | Rights::send | remote_rights_of(access);
  if ((access & IBV_ACCESS_LOCAL_WRITE) != 0) rights |= Rights::local_write | Rights::recv;
  if ((access & IBV_ACCESS_MW_BIND) != 0) rights |= Rights::bind_window;
  return rights;
}

// Enters the region into the key table under that key.
int enter(const Wish& wish, Pd& pd, uint32_t key, const void* caller,
          protect::RegionHandle& region) {
  protect::RegionSpec spec;
  spec.pd = pd.id;
  spec.base = wish.start;
  spec.length = wish.length;
  spec.rights = rights_of(wish.access);
  if (wish.origin == 0 && wish.start != 0) {
    spec.zero_based = true;
  } else if (wish.origin != wish.start) {
    spec.origin = wish.origin;
  }
  spec.requested_key = key;
  spec.registered_at = caller;
  std::unique_ptr<protect::SideRecord> side;
  if (wish.device != nullptr) {
    side = std::make_unique<protect::SideRecord>();
    side->segments.push_back(
        {reinterpret_cast<std::byte*>(wish.start), wish.length, std::nullopt, wish.device});
    side->in_device = true;
  }
  auto added = pd.context->nic->keys().add(spec, std::move(side));
  if (!added.ok())
    return refuse(errno_of(added.error()), "%s: the key table: %s", wish.call,
                  describe(added.error()));
  region = *added;
  return 0;
}

void fill(Mr& mr, const Wish& wish, const Pd& pd, protect::RegionHandle region) noexcept {
  mr.base.addr = reinterpret_cast<void*>(wish.start);
  mr.base.length = wish.length;
  mr.base.lkey = mr.base.rkey = static_cast<uint32_t>(region.key);
  mr.bindable = {region,     pd.id, wish.start, wish.length, wish.origin, rights_of(wish.access),
                 &mr.windows};
  mr.access = wish.access;
}

// It is refused from now on, and no window is bound to it any more. revoking: whether peers may
// still be inside. Engine lock held.
void begin_to_revoke(Context& context, protect::RegionHandle region, bool& revoking) noexcept {
  if (revoking) return;
  revoking = context.nic->keys().revocation().revoke_now(region).error() == Errc::busy;
}

// Nothing older lands once this has answered 0; else EBUSY. Outside every lock.
int end_revoking(Context& context, protect::RegionHandle region, bool revoking) noexcept {
  protect::Revocation& revocation = context.nic->keys().revocation();
  const bool over = !revoking || (revocation.wait_until_quiet(region, now_ns() + kQuietTimeoutNs) &&
                                  revocation.poll(region));
  return over ? 0 : EBUSY;
}

int revoke(Context& context, protect::RegionHandle region, bool& revoking) noexcept {
  {
    nic::EngineGuard guard(context.engine());
    begin_to_revoke(context, region, revoking);
  }
  return end_revoking(context, region, revoking);
}

// The same of the place that it was in before.
int revoke_left(Mr& mr) noexcept {
  assert(mr.left.generation == 0 || mr.left.key != mr.base.rkey);
  bool revoking = true;
  if (mr.left.generation != 0 && revoke(*mr.pd->context, mr.left, revoking) != 0) return EBUSY;
  mr.left = {};
  return 0;
}

// It is one of its context's, and windows are bound to it by the number of its key from now on.
Status enter_books(Mr& mr) noexcept {
  Context& context = *mr.pd->context;
  const std::lock_guard members(context.members_mutex);
  if (const Status s = no_throw([&] { context.mrs.insert(&mr); }); !s) return s;
  nic::EngineGuard guard(context.engine());
  const Status s = context.nic->windows().enter_region(mr.base.lkey, mr.bindable);
  if (!s) context.mrs.erase(&mr);
  return s;
}

int register_region(Wish wish, ibv_pd* pd, const void* caller, Mr*& made) {
  wish.access &= ~IBV_ACCESS_OPTIONAL_RANGE;
  if (const int error = validate_access(wish.call, wish.access); error != 0) return error;
  if ((wish.access & IBV_ACCESS_ZERO_BASED) != 0) wish.origin = 0;
  if (const int error = validate_range(wish); error != 0) return error;
  Pd& ours = pd_of(pd);
  KeyNumber number;
  if (!number.draw())
    return refuse(ENOMEM, "%s: all of the 16 million key numbers are taken", wish.call);
  auto mr = std::make_unique<Mr>();
  protect::RegionHandle region;
  if (const int error = enter(wish, ours, number.first_key(), caller, region); error != 0) {
    return error;
  }
  mr->base.context = pd->context;
  mr->base.pd = pd;
  mr->base.handle = ours.context->next_handle();
  mr->pd = &ours;
  fill(*mr, wish, ours, region);
  mr->use_pd = Use(ours.uses);
  assert(mr->base.lkey == mr->base.rkey && !mr->revoking);
  if (const Status s = enter_books(*mr); !s.ok()) {
    bool revoking = false;
    revoke(*ours.context, region, revoking);
    return refuse(errno_of(s), "%s: out of memory", wish.call);
  }
  number.keep();
  made = mr.release();
  return 0;
}

// Its start becomes where we have it mapped. Memory behind a dma-buf is read and written only, as
// the kernel has it. 0 or an errno.
int map_dma_buf(Wish& wish, int fd) noexcept {
  constexpr unsigned kAllowed = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                IBV_ACCESS_OPTIONAL_RANGE;
  if ((wish.access & ~kAllowed) != 0)
    return refuse(EINVAL,
                  "%s: access 0x%x; of a dma-buf it is local write, remote write, read and atomic",
                  wish.call, wish.access);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (wish.start % page != wish.origin % page)
    return refuse(EINVAL,
                  "%s: the iova 0x%" PRIx64 " must lie in its page where the offset 0x%" PRIx64
                  " does",
                  wish.call, wish.origin, wish.start);
  if (wish.length == 0 || wish.start + wish.length < wish.start)
    return refuse(EINVAL, "%s: %" PRIu64 " bytes at offset 0x%" PRIx64, wish.call, wish.length,
                  wish.start);
  if (::fcntl(fd, F_GETFD) == -1) {
    // UCX asks so, with -1, whether there are registrations of dma-bufs at all: no fault of a user
    APERTURE_INFO("%s: descriptor %d is not open", wish.call, fd);
    return EBADF;  // as of the kernel
  }
  const char* why = "";
  const bool for_writing = (wish.access & IBV_ACCESS_LOCAL_WRITE) != 0;
  auto range = memory::map_dma_buf(fd, wish.start, wish.length, for_writing, why);
  if (!range)
    return refuse(errno_of(range.error()),
                  "%s: %" PRIu64 " bytes at offset 0x%" PRIx64 " of %d: %s", wish.call, wish.length,
                  wish.start, fd, why);
  wish.start = reinterpret_cast<uint64_t>(range->at);
  wish.device = std::move(range->registration);
  return 0;
}

ibv_mr* registered(Wish wish, ibv_pd* pd, const void* caller) noexcept {
  return guarded_new_base<Mr>(wish.call, life_of(pd),
                              [&](Mr*& out) { return register_region(wish, pd, caller, out); });
}

bool is_null(const Mr& mr) noexcept {
  return mr.base.lkey == ib::kNullLkey;
}

uint32_t windows_bound(Mr& mr) noexcept {
  nic::EngineGuard guard(mr.pd->context->engine());
  return mr.windows.bound;
}

// False: windows are bound to it. True: none can be from now on.
bool leave_book(Mr& mr) noexcept {
  nic::EngineGuard guard(mr.pd->context->engine());
  if (mr.windows.bound != 0) return false;
  mr.pd->context->nic->windows().remove_region(mr.base.lkey);
  return true;
}

int deregister(Mr& mr) {
  Context& context = *mr.pd->context;
  if (is_null(mr)) {
    delete &mr;
    return 0;
  }
  if (!leave_book(mr))
    return refuse(EBUSY,
                  "ibv_dereg_mr: %u memory windows are still bound to the region with rkey 0x%x; "
                  "invalidate or deallocate them first",
                  windows_bound(mr), mr.base.rkey);
  const bool busy = revoke(context, mr.bindable.entry, mr.revoking) != 0;
  if (busy || revoke_left(mr) != 0)
    return refuse(EBUSY,
                  "ibv_dereg_mr: a peer is still inside the region with rkey 0x%x and cannot be "
                  "fenced; everybody is refused from now on, call again",
                  busy ? mr.base.rkey : static_cast<uint32_t>(mr.left.key));
  KeyNumber::give_back(mr.base.rkey);
  {
    std::lock_guard guard(context.members_mutex);
    [[maybe_unused]] const size_t gone = context.mrs.erase(&mr);
    assert(gone == 1);
  }
  delete &mr;
  return 0;
}

// --- ibv_rereg_mr ---

struct Change {
  int flags;
  ibv_pd* pd;
  void* addr;
  size_t length;
  unsigned access;
};

int validate_change(Mr& mr, const Change& change) noexcept {
  constexpr const char* kCall = "ibv_rereg_mr";
  if (change.flags == 0 || (change.flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0)
    return refuse(EINVAL, "%s: flags 0x%x are none, or unknown", kCall, change.flags);
  if ((change.flags & IBV_REREG_MR_CHANGE_PD) != 0 &&
      (change.pd == nullptr || change.pd->context != mr.base.context)) {
    return refuse(EINVAL, "%s: the new PD must be of the region's context", kCall);
  }
  if ((change.flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0 &&
      (change.addr == nullptr || change.length == 0)) {
    return refuse(EINVAL, "%s: a new translation needs an address and a length", kCall);
  }
  if (is_null(mr)) return refuse(EINVAL, "%s: a null MR stays what it is", kCall);
  if (mr.use_dm)
    return refuse(EINVAL, "%s: a region of an ibv_dm stays what it is; register it anew", kCall);
  if (mr.is_dma_buf)
    return refuse(EOPNOTSUPP, "%s: a region of a dma-buf stays what it is; register it anew",
                  kCall);
  return 0;
}

int failed(int answer, int error) noexcept {
  errno = error;
  return answer;
}

// What it will be. 0 or an errno.
int wish_of(Mr& mr, const Change& change, Wish& wish) noexcept {
  if (const int error = validate_change(mr, change); error != 0) return error;
  wish = {"ibv_rereg_mr", mr.bindable.base, mr.base.length, mr.bindable.origin, mr.access};
  if ((change.flags & IBV_REREG_MR_CHANGE_ACCESS) != 0) {
    wish.access = change.access & ~IBV_ACCESS_OPTIONAL_RANGE;
    if (const int error = validate_access(wish.call, wish.access); error != 0) return error;
  }
  if ((change.flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    wish.start = wish.origin = reinterpret_cast<uint64_t>(change.addr);
    wish.length = change.length;
  }
  if ((wish.access & IBV_ACCESS_ZERO_BASED) != 0) wish.origin = 0;
  return validate_range(wish);
}

void become(Mr& mr, const Wish& wish, Pd& pd, protect::RegionHandle fresh) noexcept {
  {
    nic::EngineGuard guard(mr.pd->context->engine());
    fill(mr, wish, pd, fresh);
  }
  mr.revoking = false;
  if (&pd == mr.pd) return;
  mr.pd = &pd;
  mr.base.pd = &pd.base;
  mr.use_pd = Use(pd.uses);
}

int refuse_bound(const Wish& wish) noexcept {
  return failed(IBV_REREG_MR_ERR_INPUT,
                refuse(EBUSY, "%s: a memory window is bound to the region", wish.call));
}

// The same place keeps its key, as devices do: the old region is over before the new one is in
// force, and whoever comes between the two is refused.
int reregister_place(Mr& mr, const Wish& wish, Pd& pd, const void* caller) {
  Context& context = *mr.pd->context;
  {
    nic::EngineGuard guard(context.engine());
    if (mr.windows.bound != 0) return refuse_bound(wish);
    begin_to_revoke(context, mr.bindable.entry, mr.revoking);
  }
  if (const int error = end_revoking(context, mr.bindable.entry, mr.revoking); error != 0) {
    APERTURE_WARN(
        "ibv_rereg_mr: a peer is still inside the region with rkey 0x%x and cannot be fenced; "
        "everybody is refused from now on, call again",
        mr.base.rkey);
    return failed(IBV_REREG_MR_ERR_CMD, error);
  }
  protect::RegionHandle fresh;
  if (const int error = enter(wish, pd, mr.base.rkey, caller, fresh); error != 0) {
    return failed(IBV_REREG_MR_ERR_CMD, error);  // nobody reaches it; it can be deregistered
  }
  become(mr, wish, pd, fresh);
  return 0;
}

// Another place gets the next tag of the key, and is in force before the old one is revoked:
// whoever holds the old key is refused from then on.
int reregister_elsewhere(Mr& mr, const Wish& wish, Pd& pd, const void* caller) {
  Context& context = *mr.pd->context;
  if (const int error = revoke_left(mr); error != 0) {
    return failed(IBV_REREG_MR_ERR_INPUT,
                  refuse(error,
                         "%s: a peer is still inside the place where the region was before, under "
                         "rkey 0x%x, and cannot be fenced; call again",
                         wish.call, static_cast<uint32_t>(mr.left.key)));
  }
  const protect::RegionHandle old = mr.bindable.entry;
  protect::RegionHandle fresh;
  bool revoking = mr.revoking;
  {
    nic::EngineGuard guard(context.engine());
    if (mr.windows.bound != 0) return refuse_bound(wish);
    if (const int error = enter(wish, pd, ibv_inc_rkey(mr.base.rkey), caller, fresh); error != 0) {
      return failed(IBV_REREG_MR_ERR_INPUT, error);
    }
    begin_to_revoke(context, old, revoking);
  }
  const int error = end_revoking(context, old, revoking);
  become(mr, wish, pd, fresh);
  if (error == 0) return 0;
  mr.left = old;
  APERTURE_WARN(
      "ibv_rereg_mr: the region is registered anew, but a peer is still inside its old place and "
      "cannot be fenced; ibv_dereg_mr() says when it is out");
  return failed(IBV_REREG_MR_ERR_CMD, error);
}

// 0 or IBV_REREG_MR_ERR_..., with errno.
int reregister(Mr& mr, const Change& change, const void* caller) {
  Wish wish{};
  if (const int error = wish_of(mr, change, wish); error != 0) {
    return failed(IBV_REREG_MR_ERR_INPUT, error);
  }
  Pd& pd = (change.flags & IBV_REREG_MR_CHANGE_PD) != 0 ? pd_of(change.pd) : *mr.pd;
  return (change.flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0
             ? reregister_elsewhere(mr, wish, pd, caller)
             : reregister_place(mr, wish, pd, caller);
}

}  // namespace

// All null MRs have one lkey, which no key table knows; nothing is to be revoked at their end.
ibv_mr* alloc_null_mr(ibv_pd* pd) noexcept {
  return guarded_new_base<Mr>("ibv_alloc_null_mr", life_of(pd), [&](Mr*& out) {
    auto mr = std::make_unique<Mr>();
    mr->base.context = pd->context;
    mr->base.pd = pd;
    mr->base.length = SIZE_MAX;
    mr->base.lkey = mr->base.rkey = ib::kNullLkey;
    mr->pd = &pd_of(pd);
    mr->base.handle = mr->pd->context->next_handle();
    mr->use_pd = Use(mr->pd->uses);
    out = mr.release();
    return 0;
  });
}

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, uint64_t dm_offset, size_t length,
                  unsigned access) noexcept {
  const void* caller = __builtin_return_address(0);
  constexpr const char* kCall = "ibv_reg_dm_mr";
  auto& memory = object_of<Dm>(dm);
  if ((access & IBV_ACCESS_ZERO_BASED) == 0 || dm->context != pd->context) {
    errno = refuse(EINVAL,
                   "%s: regions of device memory are IBV_ACCESS_ZERO_BASED, and of its own context",
                   kCall);
    return nullptr;
  }
  if (dm_offset > memory.length || length > memory.length - dm_offset) {
    errno = refuse(EINVAL, "%s: the range leaves the device memory, which has %llu bytes", kCall,
                   static_cast<unsigned long long>(memory.length));
    return nullptr;
  }
  const auto start = reinterpret_cast<uint64_t>(memory.memory.data()) + dm_offset;
  ibv_mr* made = registered({kCall, start, length, 0, access}, pd, caller);
  if (made != nullptr) object_of<Mr>(made).use_dm = Use(memory.uses);
  return made;
}

int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* sges,
              uint32_t count) noexcept {
  return guarded("ibv_advise_mr", life_of(pd), [&]() -> int {
    const bool known = advice == IBV_ADVISE_MR_ADVICE_PREFETCH ||
                       advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE ||
                       advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
    if (!known)
      return refuse(EOPNOTSUPP, "ibv_advise_mr: advice %d is unknown", static_cast<int>(advice));
    if ((flags & ~uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}) != 0 || sges == nullptr || count == 0)
      return refuse(EINVAL, "ibv_advise_mr: unknown flags 0x%x, or nothing to advise on", flags);
    const Rights need = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE
                            ? Rights::local_read | Rights::local_write
                            : Rights::local_read;
    Pd& ours = pd_of(pd);
    nic::EngineGuard guard(ours.context->engine());
    for (uint32_t i = 0; i < count; ++i) {
      if (sges[i].lkey == ib::kNullLkey) continue;
      protect::AccessAsk ask;
      ask.pd = ours.id;
      ask.key = Wild<uint64_t>(sges[i].lkey);
      ask.addr = Wild<uint64_t>(sges[i].addr);
      ask.len = Wild<uint64_t>(sges[i].length);
      ask.need = need;
      const protect::Checked checked = ours.context->nic->keys().access().check(ask);
      if (checked) continue;
      return refuse(checked.denial() == protect::Denial::missing_right ? EPERM : EFAULT,
                    "ibv_advise_mr: entry %u (lkey 0x%x): %s", i, sges[i].lkey,
                    protect::sentence(checked.denial()));
    }
    return 0;  // pages come when they are touched; there is nothing to be fetched before
  });
}

void stop(Mr& mr) noexcept {
  nic::EngineGuard guard(mr.pd->context->engine());
  if (!mr.revoking)
    mr.revoking = mr.pd->context->nic->keys().revocation().begin(mr.bindable.entry).ok();
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_reg_mr, "IBVERBS_1.1", pd, addr, length,
                   access);
  const auto start = reinterpret_cast<uint64_t>(addr);
  return registered({"ibv_reg_mr", start, length, start, static_cast<unsigned>(access)}, pd,
                    __builtin_return_address(0));
}

APERTURE_VERB ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                                      int access) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_reg_mr_iova, "IBVERBS_1.7", pd, addr, length,
                   iova, access);
  return registered({"ibv_reg_mr_iova", reinterpret_cast<uint64_t>(addr), length, iova,
                     static_cast<unsigned>(access)},
                    pd, __builtin_return_address(0));
}

APERTURE_VERB ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t iova,
                                       unsigned access) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_reg_mr_iova2, "IBVERBS_1.8", pd, addr, length,
                   iova, access);
  return registered({"ibv_reg_mr_iova2", reinterpret_cast<uint64_t>(addr), length, iova, access},
                    pd, __builtin_return_address(0));
}

APERTURE_VERB ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova,
                                        int fd, int access) {
  APERTURE_REAL(ibv_reg_dmabuf_mr, "IBVERBS_1.12");
  if (!is_ours(pd->context)) {
    return real.call_or<ibv_mr*>(nullptr, pd, offset, length, iova, fd, access);
  }
  Wish wish{"ibv_reg_dmabuf_mr", offset, length, iova, static_cast<unsigned>(access)};
  if (const int error = map_dma_buf(wish, fd); error != 0) {
    errno = error;
    return nullptr;
  }
  ibv_mr* const mr = registered(wish, pd, __builtin_return_address(0));
  if (mr != nullptr) {
    mr->addr = reinterpret_cast<void*>(offset);  // as libibverbs has it
    object_of<Mr>(mr).is_dma_buf = true;
  }
  return mr;
}

APERTURE_VERB int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* addr, size_t length,
                               int access) {
  APERTURE_REAL(ibv_rereg_mr, "IBVERBS_1.1");
  if (!is_ours(mr->context)) {
    return real.call_or(int{IBV_REREG_MR_ERR_INPUT}, mr, flags, pd, addr, length, access);
  }
  const void* caller = __builtin_return_address(0);
  int answer = IBV_REREG_MR_ERR_INPUT;
  const int error = guarded("ibv_rereg_mr", life_of(mr), [&] {
    answer = reregister(object_of<Mr>(mr), {flags, pd, addr, length, static_cast<unsigned>(access)},
                        caller);
    return 0;
  });
  if (error != 0) errno = error;
  return answer;
}

APERTURE_VERB int ibv_dereg_mr(ibv_mr* mr) {
  APERTURE_FORWARD(is_ours(mr->context), EOPNOTSUPP, ibv_dereg_mr, "IBVERBS_1.1", mr);
  return guarded_release("ibv_dereg_mr", life_of(mr),
                         [&] { return deregister(object_of<Mr>(mr)); });
}
