// Triggered operations: what the calls with FI_TRIGGER make of their arguments. man 3 fi_trigger.
//
// A work request is kept with copies of the arrays that it points to, and of the payload where it
// is injected. Deferred work is told of its end instead of leaving an entry (work.cpp).
#include <algorithm>
#include <cstring>

#include "base/iov.hpp"
#include "provider/fork.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

int check_counter(const char* call, const char* what, const fid_cntr* fid,
                  const Domain& domain) noexcept {
  if (fid == nullptr || fid->fid.fclass != FI_CLASS_CNTR)
    return refuse(-FI_EINVAL, "%s: the %s is NULL or no counter; open one with fi_cntr_open", call,
                  what);
  if (object_of<const Cntr>(fid).domain != &domain)
    return refuse(-FI_EDOMAIN, "%s: the %s belongs to another domain", call, what);
  return 0;
}

int check_trigger(const Ep& ep, const char* call, const void* context, Cntr*& cntr,
                  uint64_t& threshold) noexcept {
  if (!ep.may_trigger)
    return refuse(
        -FI_EOPNOTSUPP,
        "%s: FI_TRIGGER on an endpoint that was opened without it; ask for it in hints->caps",
        call);
  if (context == nullptr)
    return refuse(-FI_EINVAL,
                  "%s: FI_TRIGGER needs a struct fi_triggered_context as the operation's context",
                  call);
  const auto* const asked = static_cast<const fi_triggered_context*>(context);
  int type = 0;  // any number may stand there
  static_assert(sizeof type == sizeof asked->event_type);
  std::memcpy(&type, &asked->event_type, sizeof type);
  if (type == FI_TRIGGER_XPU)
    return refuse(-FI_ENOSYS,
                  "%s: FI_TRIGGER_XPU: no device triggers operations here; use "
                  "FI_TRIGGER_THRESHOLD",
                  call);
  if (type != FI_TRIGGER_THRESHOLD)
    return refuse(-FI_EINVAL, "%s: event_type %d of the context is none that fi_trigger(3) knows",
                  call, type);
  const fi_trigger_threshold& t = asked->trigger.threshold;
  if (const int rc = check_counter(call, "counter of the context", t.cntr, *ep.body->domain);
      rc != 0)
    return rc;
  cntr = &object_of<Cntr>(t.cntr);
  threshold = t.threshold;
  return 0;
}

Work* new_work(Domain& domain, const char* call) noexcept {
  nic::EngineGuard guard(*domain.engine);
  Work* const work = domain.work->take();
  if (work == nullptr)
    APERTURE_WARN("%s: %zu operations wait for counters already, or there is no memory", call,
                  WorkQueue::kMostWork);
  return work;
}

void forget_work(Domain& domain, Work& work) noexcept {
  nic::EngineGuard guard(*domain.engine);
  domain.work->give(&work);
}

int begin_work(Domain& domain) {
  auto made = std::make_unique<WorkQueue>(*domain.engine);
  nic::EngineGuard guard(*domain.engine);
  if (domain.work != nullptr) return 0;
  if (const Status s = made->begin(); !s) return -FI_ENOMEM;
  domain.work = std::move(made);
  return 0;
}

// ---- keeping work requests ----------------------------------------------------------------------

template <typename Wr>
void Later::belong(Ep& ep, Wr& wr) const noexcept {
  work_.body = ep.body;
  work_.context = wr.context;
  if (!work_.is_told()) return;
  if (work_.is_staged) work_.wants_entry = wr.completion == qp::kEntry;
  wr.context = static_cast<qp::Told*>(&work_);
  wr.completion = qp::kTold;
}

// `which`: 0 and 1 may be injected.
void Later::keep_iov(size_t which, const iovec*& iov, size_t& count, bool inject) const noexcept {
  auto& kept = work_.iovs[which];
  if (inject) {
    const uint64_t len = iov_bytes(iov, count);
    gather(work_.injected[which].data(), iov, count, 0, len);
    kept[0] = {work_.injected[which].data(), len};
    count = 1;
  } else {
    std::copy_n(iov, count, kept.begin());
  }
  iov = kept.data();
}

void Later::keep_ranges(const qp::RemoteRange*& ranges, size_t count) const noexcept {
  std::copy_n(ranges, count, work_.ranges.begin());
  ranges = work_.ranges.data();
}

// Deferred work leaves its buffers alone until it starts.
ssize_t Later::send(Ep& ep, const char*, const qp::SendWr& wr) const noexcept {
  work_.kind = Work::Kind::send;
  work_.send = wr;
  belong(ep, work_.send);
  keep_iov(0, work_.send.iov, work_.send.iov_count, wr.inject && !work_.is_told());
  return 0;
}

ssize_t Later::recv(Ep& ep, const char*, const qp::RecvWr& wr) const noexcept {
  work_.kind = Work::Kind::recv;
  work_.recv = wr;
  belong(ep, work_.recv);
  keep_iov(0, work_.recv.iov, work_.recv.iov_count, false);
  return 0;
}

ssize_t Later::recv_multi(Ep& ep, const char* call, const qp::RecvWr& wr) const noexcept {
  if (work_.is_deferred)
    return refuse(-FI_ENOSYS,
                  "%s: FI_MULTI_RECV: a buffer for many messages has no single end that a "
                  "completion counter could count",
                  call);
  const ssize_t rc = recv(ep, call, wr);
  work_.kind = Work::Kind::recv_multi;
  work_.least_room = ep.body->min_multi_recv;
  return rc;
}

ssize_t Later::access(Ep& ep, Work::Kind kind, const qp::RmaWr& wr) const noexcept {
  work_.kind = kind;
  work_.rma = wr;
  belong(ep, work_.rma);
  keep_iov(0, work_.rma.iov, work_.rma.iov_count, wr.inject && !work_.is_told());
  keep_ranges(work_.rma.ranges, wr.range_count);
  return 0;
}

ssize_t Later::atomic(Ep& ep, const char*, const qp::AtomicWr& wr) const noexcept {
  work_.kind = Work::Kind::atomic;
  work_.atomic = wr;
  belong(ep, work_.atomic);
  const bool inject = wr.inject && !work_.is_told();
  keep_iov(0, work_.atomic.operand, work_.atomic.operand_count, inject && wr.operand_count != 0);
  keep_iov(1, work_.atomic.compare, work_.atomic.compare_count, inject && wr.compare_count != 0);
  keep_iov(2, work_.atomic.result, work_.atomic.result_count, false);
  keep_ranges(work_.atomic.ranges, wr.range_count);
  return 0;
}

}  // namespace aperture::provider
