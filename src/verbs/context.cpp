// Opening and closing the device: see context.hpp.
#include "verbs/context.hpp"

#include <fcntl.h>
#include <sched.h>

#include <cassert>

#include "base/settings.hpp"
#include "nic/host_identity.hpp"
#include "verbs/errors.hpp"
#include "verbs/mr.hpp"
#include "verbs/qp.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

namespace {

// Which type 2 windows the device has.
WindowType2 wanted_windows() noexcept {
  return setting_is("APERTURE_MW_TYPE", "2A") ? WindowType2::a : WindowType2::b;
}

int processors() noexcept {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  return ::sched_getaffinity(0, sizeof mine, &mine) == 0 ? std::max(1, CPU_COUNT(&mine)) : 1;
}

int open_device(Context*& made) {
  check_settings();
  nic::host_addresses();  // from here on asking for them cannot fail
  auto nic = nic::VerbsNic::create();
  if (!nic.ok())
    return refuse(errno_of(nic.error()), "ibv_open_device: the software NIC: %s",
                  describe(nic.error()));
  auto context = std::make_unique<Context>(std::move(nic).value());
  const Status opened = context->async.open();
  if (!opened.ok())
    return refuse(errno_of(opened), "ibv_open_device: the descriptor of its events: %s",
                  describe(opened.error()));
  context->command_fd = move_high(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  context->base()->async_fd = context->async.fd();
  context->base()->cmd_fd = context->command_fd.get();
  made = context.release();
  return 0;
}

// What is left in a context that its application has closed must not be reached any more.
void stop_members(Context& context) {
  std::lock_guard guard(context.members_mutex);
  for (DeviceQp* qp : context.qps) stop(*qp);
  for (Mr* mr : context.mrs) stop(*mr);
}

int close_device(Context& context) {
  // SYNC POINT: verbs-context: what other threads did to objects that have gone is seen
  const uint32_t left = context.holders.load(std::memory_order_acquire) - 1;
  assert(left != UINT32_MAX);
  if (left != 0) {
    APERTURE_WARN(
        "ibv_close_device: %u objects of the context are still there; nobody reaches them any "
        "more, and the context stays until the last of them has been destroyed",
        left);
    stop_members(context);
  }
  ContextUse::drop(context);
  return 0;
}

}  // namespace

uint32_t ContextUse::drop(Context& context) noexcept {
  // SYNC POINT: verbs-context: whoever frees it sees what all others did to it before
  const uint32_t left = context.holders.fetch_sub(1, std::memory_order_acq_rel) - 1;
  assert(left != UINT32_MAX);
  if (left == 0) delete &context;
  return left;
}

Context::Context(std::unique_ptr<nic::VerbsNic> its_nic)
    : nic(std::move(its_nic)), its_engine(nic->engine()), windows(wanted_windows()) {
  extended.sz = sizeof extended;
  ibv_context& context = extended.context;
  context.device = our_device();
  context.num_comp_vectors = processors();
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  ::pthread_mutex_init(&context.mutex, nullptr);
  fill_operations(extended);
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB ibv_context* ibv_open_device(ibv_device* device) {
  APERTURE_FORWARD(is_ours(device), nullptr, ibv_open_device, "IBVERBS_1.1", device);
  return guarded_new_base<Context>("ibv_open_device", aperture::Life(), open_device);
}

APERTURE_VERB int ibv_close_device(ibv_context* context) {
  APERTURE_FORWARD(is_ours(context), -1, ibv_close_device, "IBVERBS_1.1", context);
  return guarded_release("ibv_close_device", life_of(context),
                         [&] { return close_device(context_of(context)); });
}
