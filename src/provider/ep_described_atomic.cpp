// Atomics whose local descriptors are looked at: see ep_described.hpp. man 3 fi_atomic. Data path.
//
// Operands and compare buffers are sources (FI_WRITE), results are landing places (FI_READ).
#include <rdma/fi_atomic.h>

#include "provider/atomic_rules.hpp"
#include "provider/ep_described.hpp"

namespace aperture::provider {

namespace {

using qp::AtomicKind;

// The elements of one argument, and their descriptors.
struct Elements {
  const fi_ioc* ioc = nullptr;
  void** desc = nullptr;
  size_t count = 0;
};

// What the arguments of one call have in common.
struct Scale {
  const Ep& ep;
  const char* call;
  size_t size = 0;  // of an element; 0: the call itself will refuse
  size_t most = 0;
  bool source = true;  // operands are read, and not copied at once

  Scale(const Ep& endpoint, const char* name, AtomicKind kind, fi_datatype type, fi_op op,
        bool inject) noexcept
      : ep(endpoint), call(name), source(!inject && op != FI_ATOMIC_READ) {
    if (!is_offered(ep.body->domain->api_version, kind, op, type)) return;
    size = qp::atomic_size(static_cast<qp::AtomicType>(type));
    most = most_elements(type);
  }

  ssize_t check(const Elements& e, protect::Rights need) const noexcept {
    if (size == 0 || e.ioc == nullptr || e.count > ep.tx_iov_limit) return 0;
    for (size_t i = 0; i < e.count; ++i) {
      if (e.ioc[i].count > most) return 0;  // so is refused by the call
      if (const ssize_t rc = check_buffer(ep, call, e.ioc[i].addr, e.ioc[i].count * size,
                                          e.desc != nullptr ? e.desc[i] : nullptr, need);
          rc != 0)
        return rc;
    }
    return 0;
  }
  ssize_t check_source(const Elements& e) const noexcept {
    return source ? check(e, kWriteSource) : 0;
  }
  ssize_t check_result(const Elements& e) const noexcept { return check(e, kReadResult); }
};

// ---- base ---------------------------------------------------------------------------------------

ssize_t write(fid_ep* fid, const void* buf, size_t count, void* desc, fi_addr_t peer, uint64_t addr,
              uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const Scale scale(ep, "fi_atomic", AtomicKind::base, type, op, ep.tx.inject);
  const fi_ioc operand{const_cast<void*>(buf), count};
  if (const ssize_t rc = scale.check_source({&operand, &desc, 1}); rc != 0) return rc;
  return live_atomic_ops().write(fid, buf, count, desc, peer, addr, key, type, op, context);
}

ssize_t writev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, fi_addr_t peer,
               uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const Scale scale(ep, "fi_atomicv", AtomicKind::base, type, op, ep.tx.inject);
  if (const ssize_t rc = scale.check_source({iov, desc, count}); rc != 0) return rc;
  return live_atomic_ops().writev(fid, iov, desc, count, peer, addr, key, type, op, context);
}

ssize_t writemsg(fid_ep* fid, const fi_msg_atomic* msg, uint64_t flags) noexcept {
  if (msg != nullptr) {
    const Scale scale(object_of<Ep>(fid), "fi_atomicmsg", AtomicKind::base, msg->datatype, msg->op,
                      (flags & FI_INJECT) != 0);
    if (const ssize_t rc = scale.check_source({msg->msg_iov, msg->desc, msg->iov_count}); rc != 0)
      return rc;
  }
  return live_atomic_ops().writemsg(fid, msg, flags);
}

// ---- fetch --------------------------------------------------------------------------------------

ssize_t readwrite(fid_ep* fid, const void* buf, size_t count, void* desc, void* result,
                  void* result_desc, fi_addr_t peer, uint64_t addr, uint64_t key, fi_datatype type,
                  fi_op op, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const Scale scale(ep, "fi_fetch_atomic", AtomicKind::fetch, type, op, ep.tx.inject);
  const fi_ioc operand{const_cast<void*>(buf), count};
  const fi_ioc to{result, count};
  if (const ssize_t rc = scale.check_source({&operand, &desc, 1}); rc != 0) return rc;
  if (const ssize_t rc = scale.check_result({&to, &result_desc, 1}); rc != 0) return rc;
  return live_atomic_ops().readwrite(fid, buf, count, desc, result, result_desc, peer, addr, key,
                                     type, op, context);
}

ssize_t readwritev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, fi_ioc* result,
                   void** result_desc, size_t result_count, fi_addr_t peer, uint64_t addr,
                   uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const Scale scale(ep, "fi_fetch_atomicv", AtomicKind::fetch, type, op, ep.tx.inject);
  if (const ssize_t rc = scale.check_source({iov, desc, count}); rc != 0) return rc;
  if (const ssize_t rc = scale.check_result({result, result_desc, result_count}); rc != 0)
    return rc;
  return live_atomic_ops().readwritev(fid, iov, desc, count, result, result_desc, result_count,
                                      peer, addr, key, type, op, context);
}

ssize_t readwritemsg(fid_ep* fid, const fi_msg_atomic* msg, fi_ioc* result, void** result_desc,
                     size_t result_count, uint64_t flags) noexcept {
  if (msg != nullptr) {
    const Scale scale(object_of<Ep>(fid), "fi_fetch_atomicmsg", AtomicKind::fetch, msg->datatype,
                      msg->op, (flags & FI_INJECT) != 0);
    if (const ssize_t rc = scale.check_source({msg->msg_iov, msg->desc, msg->iov_count}); rc != 0)
      return rc;
    if (const ssize_t rc = scale.check_result({result, result_desc, result_count}); rc != 0)
      return rc;
  }
  return live_atomic_ops().readwritemsg(fid, msg, result, result_desc, result_count, flags);
}

// ---- compare ------------------------------------------------------------------------------------

ssize_t compwrite(fid_ep* fid, const void* buf, size_t count, void* desc, const void* compare,
                  void* compare_desc, void* result, void* result_desc, fi_addr_t peer,
                  uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const Scale scale(ep, "fi_compare_atomic", AtomicKind::compare, type, op, ep.tx.inject);
  const fi_ioc operand{const_cast<void*>(buf), count};
  const fi_ioc against{const_cast<void*>(compare), count};
  const fi_ioc to{result, count};
  if (const ssize_t rc = scale.check_source({&operand, &desc, 1}); rc != 0) return rc;
  if (const ssize_t rc = scale.check_source({&against, &compare_desc, 1}); rc != 0) return rc;
  if (const ssize_t rc = scale.check_result({&to, &result_desc, 1}); rc != 0) return rc;
  return live_atomic_ops().compwrite(fid, buf, count, desc, compare, compare_desc, result,
                                     result_desc, peer, addr, key, type, op, context);
}

ssize_t compwritev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, const fi_ioc* compare,
                   void** compare_desc, size_t compare_count, fi_ioc* result, void** result_desc,
                   size_t result_count, fi_addr_t peer, uint64_t addr, uint64_t key,
                   fi_datatype type, fi_op op, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const Scale scale(ep, "fi_compare_atomicv", AtomicKind::compare, type, op, ep.tx.inject);
  if (const ssize_t rc = scale.check_source({iov, desc, count}); rc != 0) return rc;
  if (const ssize_t rc = scale.check_source({compare, compare_desc, compare_count}); rc != 0)
    return rc;
  if (const ssize_t rc = scale.check_result({result, result_desc, result_count}); rc != 0)
    return rc;
  return live_atomic_ops().compwritev(fid, iov, desc, count, compare, compare_desc, compare_count,
                                      result, result_desc, result_count, peer, addr, key, type, op,
                                      context);
}

ssize_t compwritemsg(fid_ep* fid, const fi_msg_atomic* msg, const fi_ioc* compare,
                     void** compare_desc, size_t compare_count, fi_ioc* result, void** result_desc,
                     size_t result_count, uint64_t flags) noexcept {
  if (msg != nullptr) {
    const Scale scale(object_of<Ep>(fid), "fi_compare_atomicmsg", AtomicKind::compare,
                      msg->datatype, msg->op, (flags & FI_INJECT) != 0);
    if (const ssize_t rc = scale.check_source({msg->msg_iov, msg->desc, msg->iov_count}); rc != 0)
      return rc;
    if (const ssize_t rc = scale.check_source({compare, compare_desc, compare_count}); rc != 0)
      return rc;
    if (const ssize_t rc = scale.check_result({result, result_desc, result_count}); rc != 0)
      return rc;
  }
  return live_atomic_ops().compwritemsg(fid, msg, compare, compare_desc, compare_count, result,
                                        result_desc, result_count, flags);
}

}  // namespace

fi_ops_atomic* described_atomic_ops() noexcept {
  static fi_ops_atomic ops = [] {
    fi_ops_atomic made = live_atomic_ops();
    made.write = write;
    made.writev = writev;
    made.writemsg = writemsg;
    made.readwrite = readwrite;
    made.readwritev = readwritev;
    made.readwritemsg = readwritemsg;
    made.compwrite = compwrite;
    made.compwritev = compwritev;
    made.compwritemsg = compwritemsg;
    return made;
  }();
  return &ops;
}

}  // namespace aperture::provider
