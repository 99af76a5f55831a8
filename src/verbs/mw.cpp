// Allocating, binding and freeing memory windows: see mw.hpp.
#include "verbs/mw.hpp"

#include <cassert>

#include "base/clock.hpp"
#include "verbs/errors.hpp"
#include "verbs/mr.hpp"
#include "verbs/mr_keys.hpp"
#include "verbs/newer.hpp"
#include "verbs/post_fault.hpp"
#include "verbs/qp.hpp"

namespace aperture::verbs {

namespace {

using protect::WindowAnswer;

constexpr long kPauseNs = 20'000;

protect::WindowType type_of(const Context& context, ibv_mw_type type) noexcept {
  if (type == IBV_MW_TYPE_1) return protect::WindowType::type_1;
  return context.windows == WindowType2::a ? protect::WindowType::type_2a
                                           : protect::WindowType::type_2b;
}

int allocate(ibv_pd* pd, ibv_mw_type type, Mw*& made) {
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)
    return refuse(EINVAL, "ibv_alloc_mw: there is no window of type %d", static_cast<int>(type));
  Pd& ours = pd_of(pd);
  Context& context = *ours.context;
  protect::KeyNumbers* numbers = key_numbers();
  if (numbers == nullptr) return refuse(ENOMEM, "ibv_alloc_mw: out of memory");
  auto mw = std::make_unique<Mw>();
  nic::EngineGuard guard(context.engine());
  auto window =
      protect::Window::create(context.nic->keys(), *numbers, ours.id, type_of(context, type));
  if (!window.ok())
    return refuse(errno_of(window.error()), "ibv_alloc_mw: %s", describe(window.error()));
  mw->window = std::move(window).value();
  context.nic->windows().windows.add(*mw->window);
  mw->base.context = pd->context;
  mw->base.pd = pd;
  assert(!mw->window->is_bound());
  mw->base.rkey = mw->window->key();
  mw->base.handle = context.next_handle();
  mw->base.type = type;
  mw->pd = &ours;
  mw->use_pd = Use(ours.uses);
  made = mw.release();
  return 0;
}

// Ends whatever is bound; nothing older lands afterwards.
int close(Mw& mw) {
  Context& context = *mw.pd->context;
  WindowAnswer answer;
  {
    nic::EngineGuard guard(context.engine());
    answer = mw.window->close();
  }
  const uint64_t deadline_ns = now_ns() + kQuietTimeoutNs;
  while (answer == WindowAnswer::waits) {
    if (now_ns() > deadline_ns) return EBUSY;
    const timespec pause{0, kPauseNs};
    ::nanosleep(&pause, nullptr);
    nic::EngineGuard guard(context.engine());
    answer = mw.window->poll();
  }
  nic::EngineGuard guard(context.engine());
  assert(!mw.window->is_bound());
  context.nic->windows().windows.remove(*mw.window);
  mw.window.reset();
  return 0;
}

}  // namespace

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) noexcept {
  return guarded_new_base<Mw>("ibv_alloc_mw", life_of(pd),
                              [&](Mw*& out) { return allocate(pd, type, out); });
}

int dealloc_mw(ibv_mw* mw) noexcept {
  return guarded_release("ibv_dealloc_mw", life_of(mw), [&] {
    auto& ours = object_of<Mw>(mw);
    if (close(ours) != 0)
      return refuse(EBUSY,
                    "ibv_dealloc_mw: a peer is still inside the window with rkey 0x%x and cannot "
                    "be fenced; everybody is refused from now on, call again",
                    mw->rkey);
    delete &ours;
    return 0;
  });
}

void fill_bind(ib::BindWr& bind, const ibv_mw* mw, const ibv_mw_bind_info& info, uint32_t rkey,
               const void* caller) noexcept {
  bind.window_key = mw->rkey;
  bind.region_key = info.mr != nullptr ? info.mr->lkey : 0;
  bind.addr = info.addr;
  bind.len = info.length;
  bind.rights = remote_rights_of(info.mw_access_flags);
  bind.zero_based = (info.mw_access_flags & IBV_ACCESS_ZERO_BASED) != 0;
  bind.rkey = rkey;
  bind.bound_at = caller;
}

// The inline ibv_bind_mw has seen to it that the window is of type 1, and of the MR's PD.
int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* asked) noexcept {
  constexpr const char* kCall = "ibv_bind_mw";
  return guarded(kCall, life_of(qp), [&]() -> int {
    const void* caller = __builtin_return_address(0);
    const ibv_mw_bind_info& info = asked->bind_info;
    if (mw->pd->context != qp->context || qp->pd == nullptr ||
        pd_of(mw->pd).id != pd_of(qp->pd).id) {
      return refuse(EPERM, "%s: the window and the queue pair are of two PDs", kCall);
    }
    if (const int error = validate_bind(kCall, BindBy::call, mw, qp->context, info); error != 0)
      return error;
    DeviceQp& ours = qp_of(qp);
    nic::EngineGuard guard(ours.engine());
    ib::BindWr bind;
    fill_bind(bind, mw, info, 0, caller);
    bind.by_work_request = false;
    ib::SendWr wr;
    wr.id = asked->wr_id;
    wr.op = ib::SendOp::bind_mw;
    wr.flags = asked->send_flags;
    wr.bind = &bind;
    if (const ib::PostFault fault = ours.core().fault_of(wr, 0); fault != ib::PostFault::none)
      return refuse_post(kCall, ours, wr, fault);
    bind.rkey = object_of<Mw>(mw).window->next_key();
    const Status s = ours.core().post_send(wr);
    ours.engine().on_posted();
    if (!s.ok()) return refuse(errno_of(s), "%s: %s", kCall, describe(s.error()));
    mw->rkey = bind.rkey;
    return 0;
  });
}

int validate_bind(const char* call, BindBy by, const ibv_mw* mw, const ibv_context* context,
                  const ibv_mw_bind_info& info) noexcept {
  if (mw == nullptr || mw->context != context)
    return refuse(EINVAL, "%s: a bind needs a window of the same context", call);
  // What else there is of regions' flags is taken, as devices do, and gives nothing: a window has
  // no lkey, and the memory is the region's matter.
  constexpr unsigned kGivable = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED |
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_ON_DEMAND |
                                IBV_ACCESS_HUGETLB | kAccessFlushes | IBV_ACCESS_OPTIONAL_RANGE;
  if ((by == BindBy::work_request) == (mw->type == IBV_MW_TYPE_1))
    return refuse(EINVAL,
                  "%s: windows of type 1 are bound by ibv_bind_mw(), those of type 2 by "
                  "IBV_WR_BIND_MW or ibv_wr_bind_mw()",
                  call);
  if ((info.mw_access_flags & ~kGivable) != 0)
    return refuse(EINVAL, "%s: mw_access_flags 0x%x; a window gives remote rights alone", call,
                  info.mw_access_flags);
  if (mw->type == IBV_MW_TYPE_1 && (info.mw_access_flags & IBV_ACCESS_ZERO_BASED) != 0)
    return refuse(EINVAL, "%s: a window of type 1 is not zero-based", call);
  if (info.mr == nullptr && info.length != 0)
    return refuse(EINVAL, "%s: a range without an MR", call);
  if (info.mr != nullptr && info.mr->context != mw->context)
    return refuse(EINVAL, "%s: the window and the MR are of two contexts", call);
  return 0;
}

}  // namespace aperture::verbs
