// Where the buffers of a call lie: in the host's memory or in a device. man 3 fi_mr, "FI_MR_HMEM".
//
// Where descriptors are looked at the descriptor says it. Without one the drivers that the process
// has loaded are asked, and with FI_MR_HMEM device memory is refused then, rather than touched.
// Data path of endpoints with FI_HMEM; no state.
#pragma once

#include <sys/uio.h>

#include <array>
#include <initializer_list>
#include <utility>

#include "provider/ep_described.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

// 0, and `device` is null for the host's memory; or the refusal. What the call itself refuses (a
// descriptor that is not right among it) is left to it, and is the host's here.
ssize_t find_place(const Ep& ep, const char* call, const void* buf, size_t len, void* desc,
                   protect::Rights need, InDevice& device) noexcept;
// The sentence for a call that does not reach device memory; 0 if none of it is.
ssize_t refuse_device(const Ep& ep, const char* call, const void* buf, size_t len, void* desc,
                      protect::Rights need) noexcept;

// Likewise for the buffers of an atomic; ep_device_atomic.cpp.
ssize_t refuse_devices_of_atomic(const Ep& ep, const char* call, const fi_msg_atomic& msg,
                                 const AtomicBuffers& buffers) noexcept;

// Those of one argument of a call.
class Places {
 public:
  // 0 or the refusal. Arguments that the call itself refuses are left to it. Where any of them is
  // in a device, the descriptors of the others are looked at too.
  ssize_t find(const Ep& ep, const char* call, const iovec* iov, void** desc, size_t count,
               size_t limit, protect::Rights need) noexcept;
  bool any() const noexcept { return any_; }
  // Host memory stands in for them in the work request that was kept. By exception std::bad_alloc.
  void stand_in(Staging& staging, iovec* kept, size_t count, Staging::Way way);

 private:
  std::array<InDevice, qp::kIovLimit> devices_;
  bool any_ = false;
};

// Bytes of an inject call, which has no descriptor: those of device memory are copied out first.
class InjectedBytes {
 public:
  // 0 or the refusal.
  ssize_t take(const char* call, const void* buf, size_t len) noexcept;
  const void* bytes() const noexcept { return bytes_; }

 private:
  const void* bytes_ = nullptr;
  std::array<std::byte, qp::kInjectBytes> copy_;
};

// A place for one argument of a staged call: `which` of Work::iovs it is, and where it lies.
struct StagedArgument {
  Places* places;
  size_t which;
  Staging::Way way;
};
// Host memory stands in for the arguments of a kept work request; 0 or the refusal.
ssize_t stage(Work& work, const char* call, std::initializer_list<StagedArgument> args) noexcept;
// Posts an operation of which some buffers are in a device: `fill` is given the Later that its work
// request goes to. 0 or a negative fi_errno.
template <typename Fill>
ssize_t staged(Ep& ep, const char* call, uint64_t addr, std::initializer_list<StagedArgument> args,
               Fill&& fill) noexcept {
  Domain& domain = *ep.body->domain;
  Work* const work = new_work(domain, call);
  if (work == nullptr) return -FI_EAGAIN;
  work->is_staged = true;
  ssize_t rc = std::forward<Fill>(fill)(Later(*work));
  if (rc == 0) rc = stage(*work, call, args);
  if (rc == 0) {
    rc = post(ep, call, addr,
              [&](nic::Endpoint&) noexcept { return domain.work->start_staged(*work); });
  }
  if (rc != 0) forget_work(domain, *work);
  return rc;
}

}  // namespace aperture::provider
