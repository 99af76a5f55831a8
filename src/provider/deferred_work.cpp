// Deferred work: FI_QUEUE_WORK, FI_CANCEL_WORK and FI_FLUSH_WORK of a domain. man 3 fi_trigger,
// "DEFERRED WORK QUEUES".
//
// All of a request but the payload is copied, and what can be checked is, when it is queued. It
// leaves no entry in a completion queue, and the endpoint's counters do not count it, unless it
// asks for that with FI_COMPLETION; the completion counter always does. A failure always has its
// entry.
#include <cassert>
#include <cstring>
#include <type_traits>

#include "provider/device_places.hpp"
#include "provider/ep_described.hpp"
#include "provider/ep_device.hpp"
#include "provider/ep_sources.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

namespace {

constexpr const char* kCall = "fi_control(FI_QUEUE_WORK)";

// The operation's endpoint, usable for it. 0 or the refusal.
int check_ep(const Domain& domain, fid_ep* fid, Ep*& ep) noexcept {
  if (fid == nullptr || (!is_endpoint(fid->fid.fclass) && fid->fid.fclass != FI_CLASS_SRX_CTX))
    return refuse(-FI_EINVAL, "%s: the operation's ep is NULL or no endpoint", kCall);
  ep = &object_of<Ep>(fid);
  if (ep->body->domain != &domain)
    return refuse(-FI_EDOMAIN, "%s: the operation's endpoint belongs to another domain", kCall);
  if (!ep->may_trigger)
    return refuse(-FI_EOPNOTSUPP,
                  "%s: the operation's endpoint was opened without FI_TRIGGER; ask for it in "
                  "hints->caps",
                  kCall);
  if (ep->core == nullptr)
    return refuse(-FI_EOPBADSTATE,
                  "%s: the operation's endpoint is not enabled; call fi_enable first", kCall);
  return 0;
}

int check_cap(const Ep& ep, uint64_t cap, const char* name) noexcept {
  if (((ep.body->tx_caps | ep.body->rx_caps) & cap) != 0) return 0;
  return refuse(-FI_EOPNOTSUPP,
                "%s: the operation's endpoint was opened without %s; ask for it in hints->caps",
                kCall, name);
}

int as_int(ssize_t rc) noexcept {
  return static_cast<int>(rc);
}

// It would be read or written when nobody of the application's is in a call any more.
int refuse_devices(const Ep& ep, const iovec* iov, void** desc, size_t count, size_t limit,
                   protect::Rights need) noexcept {
  if (iov == nullptr || count > limit) return 0;
  for (size_t i = 0; i < count; ++i) {
    void* const one = desc != nullptr ? desc[i] : nullptr;
    const ssize_t rc = refuse_device(ep, kCall, iov[i].iov_base, iov[i].iov_len, one, need);
    if (rc != 0) return as_int(rc);
  }
  return 0;
}

template <typename Op>
int keep_message(const Domain& domain, const Op* op, bool is_send, uint64_t cap, const char* name,
                 Work& work) noexcept {
  if (op == nullptr) return refuse(-FI_EINVAL, "%s: the operation (work->op) is NULL", kCall);
  Ep* ep = nullptr;
  if (const int rc = check_ep(domain, op->ep, ep); rc != 0) return rc;
  assert(ep != nullptr);
  if (const int rc = check_cap(*ep, cap, name); rc != 0) return rc;
  if (!is_send && ep->buffered)
    return refuse(-FI_EOPNOTSUPP,
                  "%s: the operation's endpoint was opened with FI_BUFFERED_RECV or "
                  "FI_VARIABLE_MSG, where no receive is posted that could wait",
                  kCall);
  work.wants_entry = (op->flags & FI_COMPLETION) != 0;
  const Later later(work);
  const size_t limit = is_send ? ep->tx_iov_limit : ep->rx_iov_limit;
  const protect::Rights need = is_send ? kSendSource : kRecvTarget;
  const auto& m = op->msg;
  if (const int rc = refuse_devices(*ep, m.msg_iov, m.desc, m.iov_count, limit, need); rc != 0)
    return rc;
  if (ep->descriptors != DescriptorRule::ignored && (op->flags & FI_INJECT) == 0) {
    const ssize_t rc = check_pieces(*ep, kCall, m.msg_iov, m.desc, m.iov_count, limit, need);
    if (rc != 0) return as_int(rc);
  }
  if (is_send) return as_int(send_later(*ep, kCall, op->msg, op->flags, later));
  auto msg = op->msg;
  constexpr bool tagged = std::is_same_v<decltype(msg), fi_msg_tagged>;
  const ssize_t rc = read_source(*ep->body, kCall, tagged, msg.addr);
  return as_int(rc != 0 ? rc : recv_later(*ep, kCall, msg, op->flags, later));
}

int keep_access(const Domain& domain, const fi_op_rma* op, bool is_write, Work& work) noexcept {
  if (op == nullptr) return refuse(-FI_EINVAL, "%s: the operation (work->op) is NULL", kCall);
  Ep* ep = nullptr;
  if (const int rc = check_ep(domain, op->ep, ep); rc != 0) return rc;
  assert(ep != nullptr);
  if (const int rc = check_cap(*ep, FI_RMA, "FI_RMA"); rc != 0) return rc;
  work.wants_entry = (op->flags & FI_COMPLETION) != 0;
  const auto& m = op->msg;
  const protect::Rights need = is_write ? kWriteSource : kReadResult;
  const size_t limit = ep->tx_iov_limit;
  if (const int rc = refuse_devices(*ep, m.msg_iov, m.desc, m.iov_count, limit, need); rc != 0)
    return rc;
  if (ep->descriptors != DescriptorRule::ignored && (op->flags & FI_INJECT) == 0) {
    const ssize_t rc = check_pieces(*ep, kCall, m.msg_iov, m.desc, m.iov_count, limit, need);
    if (rc != 0) return as_int(rc);
  }
  return as_int(access_later(*ep, kCall, op->msg, is_write, op->flags, Later(work)));
}

template <typename Op>
int keep_atomic(const Domain& domain, const Op* op, Work& work) noexcept {
  if (op == nullptr) return refuse(-FI_EINVAL, "%s: the operation (work->op) is NULL", kCall);
  Ep* ep = nullptr;
  if (const int rc = check_ep(domain, op->ep, ep); rc != 0) return rc;
  assert(ep != nullptr);
  if (const int rc = check_cap(*ep, FI_ATOMIC, "FI_ATOMIC"); rc != 0) return rc;
  work.wants_entry = (op->flags & FI_COMPLETION) != 0;
  AtomicBuffers buffers;
  if constexpr (requires { op->fetch; }) buffers.fetch = &op->fetch;
  if constexpr (requires { op->compare; }) buffers.compare = &op->compare;
  if (reaches_devices(*ep)) {
    const int rc = static_cast<int>(refuse_devices_of_atomic(*ep, kCall, op->msg, buffers));
    if (rc != 0) return rc;
  }
  return as_int(atomic_later(*ep, kCall, op->msg, buffers, op->flags, Later(work)));
}

int keep_counter(const Domain& domain, const fi_op_cntr* op, Work::Kind kind, Work& work) noexcept {
  if (op == nullptr) return refuse(-FI_EINVAL, "%s: the operation (work->op) is NULL", kCall);
  if (work.completes != nullptr)
    return refuse(
        -FI_EINVAL,
        "%s: completion_cntr must be NULL for an operation on a counter: the counter that "
        "it names is all that it changes",
        kCall);
  const int rc = check_counter(kCall, "counter of the operation", op->cntr, domain);
  if (rc != 0) return rc;
  work.kind = kind;
  work.target = &object_of<Cntr>(op->cntr);
  work.value = op->value;
  return 0;
}

int keep_operation(const Domain& domain, const fi_deferred_work& asked, Work& work) noexcept {
  int type = 0;  // any number may stand there
  std::memcpy(&type, &asked.op_type, sizeof type);
  const auto& op = asked.op;
  switch (type) {
    case FI_OP_RECV: return keep_message(domain, op.msg, false, FI_MSG, "FI_MSG", work);
    case FI_OP_SEND: return keep_message(domain, op.msg, true, FI_MSG, "FI_MSG", work);
    case FI_OP_TRECV: return keep_message(domain, op.tagged, false, FI_TAGGED, "FI_TAGGED", work);
    case FI_OP_TSEND: return keep_message(domain, op.tagged, true, FI_TAGGED, "FI_TAGGED", work);
    case FI_OP_READ: return keep_access(domain, op.rma, false, work);
    case FI_OP_WRITE: return keep_access(domain, op.rma, true, work);
    case FI_OP_ATOMIC: return keep_atomic(domain, op.atomic, work);
    case FI_OP_FETCH_ATOMIC: return keep_atomic(domain, op.fetch_atomic, work);
    case FI_OP_COMPARE_ATOMIC: return keep_atomic(domain, op.compare_atomic, work);
    case FI_OP_CNTR_SET: return keep_counter(domain, op.cntr, Work::Kind::cntr_set, work);
    case FI_OP_CNTR_ADD: return keep_counter(domain, op.cntr, Work::Kind::cntr_add, work);
    default:
      return refuse(-FI_ENOSYS, "%s: op_type %d is none that fi_trigger(3) knows", kCall, type);
  }
}

}  // namespace

int queue_work(Domain& domain, const fi_deferred_work* asked) {
  if (asked == nullptr)
    return refuse(-FI_EINVAL, "%s: arg is NULL; pass a struct fi_deferred_work", kCall);
  if (const int rc = check_counter(kCall, "triggering_cntr", asked->triggering_cntr, domain);
      rc != 0)
    return rc;
  if (asked->completion_cntr != nullptr) {
    const int rc = check_counter(kCall, "completion_cntr", asked->completion_cntr, domain);
    if (rc != 0) return rc;
  }
  if (const int rc = begin_work(domain); rc != 0) return rc;
  Work* const work = new_work(domain, kCall);
  if (work == nullptr) return -FI_EAGAIN;
  work->is_deferred = true;
  work->request = asked;
  work->threshold = asked->threshold;
  work->trigger = &object_of<Cntr>(asked->triggering_cntr);
  if (asked->completion_cntr != nullptr) work->completes = &object_of<Cntr>(asked->completion_cntr);
  if (const int rc = keep_operation(domain, *asked, *work); rc != 0) {
    forget_work(domain, *work);
    return rc;
  }
  nic::EngineGuard guard(*domain.engine);
  domain.work->add(*work);
  return 0;
}

int cancel_work(Domain& domain, const fi_deferred_work* work) noexcept {
  if (work == nullptr)
    return refuse(-FI_EINVAL, "fi_control(FI_CANCEL_WORK): arg is NULL; pass what was queued");
  {
    nic::EngineGuard guard(*domain.engine);
    if (domain.work != nullptr && domain.work->cancel(work).ok()) return 0;
  }
  return refuse(-FI_ENOENT,
                "fi_control(FI_CANCEL_WORK): that request is not queued: it was started, cancelled "
                "or never queued");
}

// The page speaks of the requests of one triggering_cntr, the header of NULL for all: where there
// is an argument, its triggering_cntr says which.
int flush_work(Domain& domain, const fi_deferred_work* of) noexcept {
  const Cntr* trigger = nullptr;
  if (of != nullptr && of->triggering_cntr != nullptr) {
    const int rc =
        check_counter("fi_control(FI_FLUSH_WORK)", "triggering_cntr", of->triggering_cntr, domain);
    if (rc != 0) return rc;
    trigger = &object_of<const Cntr>(of->triggering_cntr);
  }
  nic::EngineGuard guard(*domain.engine);
  if (domain.work != nullptr) domain.work->flush(trigger);
  return 0;
}

}  // namespace aperture::provider
