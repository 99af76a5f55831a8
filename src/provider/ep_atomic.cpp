// Atomics: fi_ops_atomic, and fi_query_atomic of the domain. man 3 fi_atomic. Data path.
//
// Each call exists twice: plain, and with the descriptors looked at (see ep_described.hpp).
#include <rdma/fi_atomic.h>

#include <algorithm>
#include <array>

#include "provider/atomic_rules.hpp"
#include "provider/ep_described.hpp"
#include "provider/ep_device.hpp"
#include "provider/ep_triggered.hpp"
#include "provider/fork.hpp"
#include "provider/header_names.hpp"
#include "provider/post_message.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

namespace {

using transport::AtomicKind;
using transport::AtomicOp;
using transport::AtomicType;

constexpr uint64_t kAtomicFlags = FI_COMPLETION | FI_MORE | FI_INJECT | FI_INJECT_COMPLETE |
                                  FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_FENCE |
                                  kPriority;

// Elements in several pieces of memory, and the descriptors of these.
struct Pieces {
  const fi_ioc* ioc = nullptr;
  void** desc = nullptr;
  size_t count = 0;
};

// One call as the application described it. Without ranges: one of the whole length at addr.
struct Call {
  Pieces operand{};
  Pieces compare{};
  Pieces result{};
  fi_addr_t peer = FI_ADDR_UNSPEC;
  uint64_t addr = 0;
  uint64_t key = 0;
  fi_datatype type = FI_INT8;
  fi_op op = FI_MIN;
  void* context = nullptr;
  const fi_rma_ioc* ranges = nullptr;
  size_t range_count = 0;
};

// The same in bytes, as the core wants it.
struct InBytes {
  std::array<iovec, qp::kIovLimit> iov;
  uint64_t elements = 0;

  // Converts and adds up. False: too many pieces, a NULL one, or more elements than any atomic has.
  bool take(const Pieces& pieces, size_t limit, size_t size) noexcept {
    if (pieces.count > limit || (pieces.ioc == nullptr && pieces.count != 0)) return false;
    for (size_t i = 0; i < pieces.count; ++i) {
      const fi_ioc& piece = pieces.ioc[i];
      if (piece.addr == nullptr && piece.count != 0) return false;
      if (__builtin_add_overflow(elements, piece.count, &elements)) return false;
      // may wrap for counts that are refused as too many in a moment
      iov[i] = {piece.addr, piece.count * size};
    }
    return true;
  }
};

[[gnu::cold]] ssize_t refuse_operation(const Ep& ep, const char* call, int op, int type) noexcept {
  const uint32_t api = ep.body->domain->api_version;
  return refuse(-FI_EOPNOTSUPP,
                "%s: operation %d on datatype %d is not offered for this call with API %u.%u; "
                "fi_query_atomic tells which are",
                call, op, type, FI_MAJOR(api), FI_MINOR(api));
}

[[gnu::cold]] ssize_t refuse_elements(const char* call, uint64_t elements, size_t most) noexcept {
  if (elements == 0)
    return refuse(-FI_EINVAL, "%s: no elements; the count is 1 to %zu for this datatype", call,
                  most);
  return refuse(
      -FI_EMSGSIZE,
      "%s: %llu elements; at most %zu of this datatype go into one call (fi_query_atomic)", call,
      static_cast<unsigned long long>(elements), most);
}

[[gnu::cold]] ssize_t refuse_shape(const char* call, const char* what, uint64_t has,
                                   uint64_t target) noexcept {
  return refuse(
      -FI_EINVAL,
      "%s: the %s has %llu elements and the target %llu; each must have as many as the target",
      call, what, static_cast<unsigned long long>(has), static_cast<unsigned long long>(target));
}

// What the remote side of a call covers.
struct Target {
  std::array<qp::RemoteRange, qp::kRmaIovLimit> ranges;
  size_t count = 0;
  uint64_t elements = 0;

  bool take(const Call& c, size_t limit, size_t size, uint64_t local_elements) noexcept {
    if (c.ranges == nullptr) {
      ranges[0] = {c.addr, local_elements * size, c.key};
      count = 1;
      elements = local_elements;
      return true;
    }
    if (c.range_count == 0 || c.range_count > limit) return false;
    count = c.range_count;
    for (size_t i = 0; i < count; ++i) {
      const fi_rma_ioc& range = c.ranges[i];
      if (range.count == 0 || __builtin_add_overflow(elements, range.count, &elements))
        return false;
      ranges[i] = {range.addr, range.count * size, range.key};
    }
    return true;
  }
};

[[gnu::cold]] ssize_t refuse_ranges(const char* call, size_t count, size_t limit) noexcept {
  return refuse(
      -FI_EINVAL,
      "%s: %zu remote ranges (1 to %zu are allowed: rma_iov_limit), or one of them has no elements",
      call, count, limit);
}

template <AtomicKind kind>
bool may(const Ep& ep, AtomicOp op) noexcept {
  if (kind != AtomicKind::base && !ep.may_read) return false;
  return op == AtomicOp::read || ep.may_write;
}

template <AtomicKind kind, typename How = Now>
[[gnu::always_inline]] inline ssize_t start(Ep& ep, const char* call, const Call& c,
                                            const TxWish& wish, const How& how = {}) noexcept {
  if (!is_offered(ep.body->domain->api_version, kind, c.op, c.type)) [[unlikely]]
    return refuse_operation(ep, call, c.op, c.type);
  qp::AtomicWr wr;
  wr.kind = kind;
  wr.op = static_cast<AtomicOp>(c.op);
  wr.type = static_cast<AtomicType>(c.type);
  if (!may<kind>(ep, wr.op)) [[unlikely]]
    return refuse_side(call, kind == AtomicKind::base ? "FI_WRITE" : "FI_READ and FI_WRITE");
  const size_t size = transport::atomic_size(wr.type);
  // An FI_ATOMIC_READ ignores its operand: the result says how much is read.
  const bool reads = wr.op == AtomicOp::read;
  InBytes operand, compare, result;
  if ((!reads && !operand.take(c.operand, ep.tx_iov_limit, size)) ||
      (kind != AtomicKind::base && !result.take(c.result, ep.tx_iov_limit, size)) ||
      (kind == AtomicKind::compare && !compare.take(c.compare, ep.tx_iov_limit, size)))
      [[unlikely]] {
    return refuse_pieces(call, std::max({c.operand.count, c.compare.count, c.result.count}),
                         ep.tx_iov_limit);
  }
  Target target;
  if (!target.take(c, ep.rma_iov_limit, size, reads ? result.elements : operand.elements))
      [[unlikely]] {
    return refuse_ranges(call, c.range_count, ep.rma_iov_limit);
  }
  const size_t most = transport::kAtomicBytes / size;
  if (target.elements - 1 >= most) [[unlikely]]
    return refuse_elements(call, target.elements, most);
  if (!reads && operand.elements != target.elements) [[unlikely]]
    return refuse_shape(call, "operand", operand.elements, target.elements);
  if (kind != AtomicKind::base && result.elements != target.elements) [[unlikely]]
    return refuse_shape(call, "result", result.elements, target.elements);
  if (kind == AtomicKind::compare && compare.elements != target.elements) [[unlikely]]
    return refuse_shape(call, "compare buffer", compare.elements, target.elements);
  wr.len = target.elements * size;
  if (wish.inject && wr.len > ep.inject_size) [[unlikely]]
    return refuse_length(call, wr.len, ep.inject_size);
  wr.operand = operand.iov.data();
  wr.operand_count = reads ? 0 : c.operand.count;
  wr.compare = compare.iov.data();
  wr.compare_count = kind == AtomicKind::compare ? c.compare.count : 0;
  wr.result = result.iov.data();
  wr.result_count = kind == AtomicKind::base ? 0 : c.result.count;
  wr.ranges = target.ranges.data();
  wr.range_count = target.count;
  wr.dest = c.peer;
  wr.context = c.context;
  wr.flags = FI_ATOMIC | (kind == AtomicKind::base ? FI_WRITE : FI_READ);
  wr.inject = wish.inject;
  wr.completion = wish.completion;
  wr.fence = wish.fence;
  return how.atomic(ep, call, wr);
}

// The descriptors of one argument; 0 or the refusal. What the call itself refuses is left to it.
ssize_t check_elements(const Ep& ep, const char* call, const Pieces& pieces, fi_datatype type,
                       protect::Rights need) noexcept {
  if (pieces.ioc == nullptr || pieces.count > ep.tx_iov_limit) return 0;
  const size_t size = transport::atomic_size(static_cast<AtomicType>(type));
  for (size_t i = 0; i < pieces.count; ++i) {
    const fi_ioc& piece = pieces.ioc[i];
    if (piece.count > most_elements(type)) return 0;
    void* const desc = pieces.desc != nullptr ? pieces.desc[i] : nullptr;
    if (const ssize_t rc = check_buffer(ep, call, piece.addr, piece.count * size, desc, need);
        rc != 0)
      return rc;
  }
  return 0;
}

// Operands and compare buffers are sources (FI_WRITE), results are landing places (FI_READ).
template <AtomicKind kind>
ssize_t check_descriptors(const Ep& ep, const char* call, const Call& c, bool inject) noexcept {
  if (!is_offered(ep.body->domain->api_version, kind, c.op, c.type)) return 0;
  ssize_t rc = 0;
  if (!inject && c.op != FI_ATOMIC_READ) {
    rc = check_elements(ep, call, c.operand, c.type, kWriteSource);
    if (rc == 0) rc = check_elements(ep, call, c.compare, c.type, kWriteSource);
  }
  return rc != 0 ? rc : check_elements(ep, call, c.result, c.type, kReadResult);
}

// The part that the calls without flags share.
template <AtomicKind kind, bool kDescribed>
[[gnu::always_inline]] inline ssize_t start(fid_ep* fid, const char* call, const Call& c) noexcept {
  auto& ep = object_of<Ep>(fid);
  if constexpr (kDescribed) {
    if (const ssize_t rc = check_descriptors<kind>(ep, call, c, ep.tx.inject); rc != 0) return rc;
  }
  return start<kind>(ep, call, c, ep.tx);
}

// All but the buffers beside the operand.
[[gnu::always_inline]] inline void fill(Call& c, const fi_msg_atomic& msg) noexcept {
  c.operand = {msg.msg_iov, msg.desc, msg.iov_count};
  c.peer = msg.addr;
  c.type = msg.datatype;
  c.op = msg.op;
  c.context = msg.context;
  c.ranges = msg.rma_iov;
  c.range_count = msg.rma_iov_count;
}

// The part that the three calls with flags share.
template <AtomicKind kind, bool kDescribed>
ssize_t start_msg(fid_ep* fid, const char* call, const fi_msg_atomic* msg, const Pieces& compare,
                  const Pieces& result, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  Call c{.compare = compare, .result = result};
  if (msg != nullptr) [[likely]] {
    fill(c, *msg);
    if constexpr (kDescribed) {
      const bool inject = (flags & FI_INJECT) != 0;
      if (const ssize_t rc = check_descriptors<kind>(ep, call, c, inject); rc != 0) return rc;
    }
  }
  if (c.ranges == nullptr) [[unlikely]] {
    return refuse(-FI_EINVAL, "%s: msg or msg->rma_iov is NULL", call);
  }
  if ((flags & FI_TAGGED) != 0) [[unlikely]] {
    return refuse(-FI_EOPNOTSUPP,
                  "%s: atomics on tagged receive buffers (FI_TAGGED) are not offered", call);
  }
  if ((flags & ~kAtomicFlags) != 0) [[unlikely]] {
    if ((flags & ~(kAtomicFlags | FI_TRIGGER)) != 0) return refuse_flags(call, flags, kAtomicFlags);
    return trigger(ep, call, c.context, [&](const Later& later) noexcept {
      return start<kind>(ep, call, c, ep.wish_of(flags), later);
    });
  }
  return start<kind>(ep, call, c, ep.wish_of(flags));
}

template <AtomicKind kind>
ssize_t keep(Ep& ep, const char* call, Call& c, const fi_msg_atomic& msg, uint64_t flags,
             const Later& later) noexcept {
  fill(c, msg);
  if (c.ranges == nullptr) return refuse(-FI_EINVAL, "%s: msg->rma_iov is NULL", call);
  if ((flags & ~kAtomicFlags) != 0) return refuse_flags(call, flags, kAtomicFlags);
  if (ep.descriptors != DescriptorRule::ignored) {
    const bool inject = (flags & FI_INJECT) != 0;
    if (const ssize_t rc = check_descriptors<kind>(ep, call, c, inject); rc != 0) return rc;
  }
  return start<kind>(ep, call, c, ep.wish_of(flags), later);
}

// ---- base ---------------------------------------------------------------------------------------

// As in ep_rma.cpp.
[[gnu::always_inline]] inline bool put_atomic_line(Ep& ep, const fi_ioc& operand, fi_addr_t peer,
                                                   const qp::LineRmaWr& wr,
                                                   wire::AtomicCode code) noexcept {
  qp::Qp* qp = ep.core->qp_of(peer);
  if (qp == nullptr ||
      !qp->line().atomic(wr, code, static_cast<uint32_t>(operand.count), operand.addr)) {
    return false;
  }
  ep.engine->on_posted();
  return true;
}
[[gnu::noinline]] bool put_atomic_line_locked(Ep& ep, fi_ioc operand, fi_addr_t peer,
                                              qp::LineRmaWr wr, wire::AtomicCode code) noexcept {
  nic::EngineGuard guard(*ep.engine);
  return put_atomic_line(ep, operand, peer, wr, code);
}

// The hot path of those with one flat operand: a small one to a known peer goes straight into its
// ring. False: nothing was done.
[[gnu::always_inline]] inline bool start_line(Ep& ep, const fi_ioc& operand, fi_addr_t peer,
                                              uint64_t addr, uint64_t key, fi_datatype type,
                                              fi_op op, void* context,
                                              const TxWish& wish) noexcept {
  if (operand.count - 1 >= wire::kLineAtomicBytes || operand.addr == nullptr || !ep.may_write ||
      wish.fence || !is_offered(ep.body->domain->api_version, AtomicKind::base, op, type))
      [[unlikely]] {
    return false;
  }
  const size_t len = operand.count * transport::atomic_size(static_cast<AtomicType>(type));
  if (wish.inject && len > ep.inject_size) [[unlikely]]
    return false;
  const qp::LineRmaWr wr{.addr = addr,
                         .len = len,
                         .key = key,
                         .imm = 0,
                         .context = context,
                         .flags = FI_ATOMIC | FI_WRITE,
                         .has_imm = false,
                         .completion = wish.completion};
  const wire::AtomicCode code{.op = static_cast<uint8_t>(op),
                              .type = static_cast<uint8_t>(type),
                              .kind = static_cast<uint8_t>(AtomicKind::base),
                              .ranges = 1};
  return ep.engine->lock().threaded() ? put_atomic_line_locked(ep, operand, peer, wr, code)
                                      : put_atomic_line(ep, operand, peer, wr, code);
}

template <bool kDescribed>
ssize_t write(fid_ep* fid, const void* buf, size_t count, void* desc, fi_addr_t peer, uint64_t addr,
              uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const fi_ioc operand{const_cast<void*>(buf), count};
  if (!kDescribed && start_line(ep, operand, peer, addr, key, type, op, context, ep.tx)) return 0;
  return start<AtomicKind::base, kDescribed>(
      fid, "fi_atomic", {{&operand, &desc, 1}, {}, {}, peer, addr, key, type, op, context});
}

template <bool kDescribed>
ssize_t writev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, fi_addr_t peer,
               uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  return start<AtomicKind::base, kDescribed>(
      fid, "fi_atomicv", {{iov, desc, count}, {}, {}, peer, addr, key, type, op, context});
}

template <bool kDescribed>
ssize_t writemsg(fid_ep* fid, const fi_msg_atomic* msg, uint64_t flags) noexcept {
  return start_msg<AtomicKind::base, kDescribed>(fid, "fi_atomicmsg", msg, {}, {}, flags);
}

ssize_t inject(fid_ep* fid, const void* buf, size_t count, fi_addr_t peer, uint64_t addr,
               uint64_t key, fi_datatype type, fi_op op) noexcept {
  auto& ep = object_of<Ep>(fid);
  const fi_ioc operand{const_cast<void*>(buf), count};
  void* const context = ep.fid.fid.context;
  if (start_line(ep, operand, peer, addr, key, type, op, context, kInjectWish)) return 0;
  return start<AtomicKind::base>(
      ep, "fi_inject_atomic", {{&operand, nullptr, 1}, {}, {}, peer, addr, key, type, op, context},
      kInjectWish);
}

// ---- fetch --------------------------------------------------------------------------------------

template <bool kDescribed>
ssize_t readwrite(fid_ep* fid, const void* buf, size_t count, void* desc, void* result,
                  void* result_desc, fi_addr_t peer, uint64_t addr, uint64_t key, fi_datatype type,
                  fi_op op, void* context) noexcept {
  const fi_ioc operand{const_cast<void*>(buf), count};
  const fi_ioc to{result, count};
  return start<AtomicKind::fetch, kDescribed>(
      fid, "fi_fetch_atomic",
      {{&operand, &desc, 1}, {}, {&to, &result_desc, 1}, peer, addr, key, type, op, context});
}

template <bool kDescribed>
ssize_t readwritev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, fi_ioc* result,
                   void** result_desc, size_t result_count, fi_addr_t peer, uint64_t addr,
                   uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  const Pieces to{result, result_desc, result_count};
  return start<AtomicKind::fetch, kDescribed>(
      fid, "fi_fetch_atomicv", {{iov, desc, count}, {}, to, peer, addr, key, type, op, context});
}

template <bool kDescribed>
ssize_t readwritemsg(fid_ep* fid, const fi_msg_atomic* msg, fi_ioc* result, void** result_desc,
                     size_t result_count, uint64_t flags) noexcept {
  return start_msg<AtomicKind::fetch, kDescribed>(fid, "fi_fetch_atomicmsg", msg, {},
                                                  {result, result_desc, result_count}, flags);
}

// ---- compare ------------------------------------------------------------------------------------

template <bool kDescribed>
ssize_t compwrite(fid_ep* fid, const void* buf, size_t count, void* desc, const void* compare,
                  void* compare_desc, void* result, void* result_desc, fi_addr_t peer,
                  uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  const fi_ioc operand{const_cast<void*>(buf), count};
  const fi_ioc against{const_cast<void*>(compare), count};
  const fi_ioc to{result, count};
  return start<AtomicKind::compare, kDescribed>(fid, "fi_compare_atomic",
                                                {{&operand, &desc, 1},
                                                 {&against, &compare_desc, 1},
                                                 {&to, &result_desc, 1},
                                                 peer,
                                                 addr,
                                                 key,
                                                 type,
                                                 op,
                                                 context});
}

template <bool kDescribed>
ssize_t compwritev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, const fi_ioc* compare,
                   void** compare_desc, size_t compare_count, fi_ioc* result, void** result_desc,
                   size_t result_count, fi_addr_t peer, uint64_t addr, uint64_t key,
                   fi_datatype type, fi_op op, void* context) noexcept {
  const Pieces against{compare, compare_desc, compare_count};
  const Pieces to{result, result_desc, result_count};
  return start<AtomicKind::compare, kDescribed>(
      fid, "fi_compare_atomicv",
      {{iov, desc, count}, against, to, peer, addr, key, type, op, context});
}

template <bool kDescribed>
ssize_t compwritemsg(fid_ep* fid, const fi_msg_atomic* msg, const fi_ioc* compare,
                     void** compare_desc, size_t compare_count, fi_ioc* result, void** result_desc,
                     size_t result_count, uint64_t flags) noexcept {
  return start_msg<AtomicKind::compare, kDescribed>(fid, "fi_compare_atomicmsg", msg,
                                                    {compare, compare_desc, compare_count},
                                                    {result, result_desc, result_count}, flags);
}

// ---- what is offered ----------------------------------------------------------------------------

template <AtomicKind kind>
int valid(fid_ep* fid, fi_datatype type, fi_op op, size_t* count) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (count == nullptr) return refuse(-FI_EINVAL, "fi_atomicvalid: count is NULL");
  if (!is_offered(ep.body->domain->api_version, kind, op, type)) {
    APERTURE_INFO("fi_atomicvalid: operation %d on datatype %d is not offered for such calls",
                  static_cast<int>(op), static_cast<int>(type));
    return -FI_EOPNOTSUPP;
  }
  *count = most_elements(type);
  return 0;
}

constexpr fi_ops_atomic with_valid(fi_ops_atomic ops) noexcept {
  ops.writevalid = valid<AtomicKind::base>;
  ops.readwritevalid = valid<AtomicKind::fetch>;
  ops.compwritevalid = valid<AtomicKind::compare>;
  return ops;
}

fi_ops_atomic g_atomic_not_asked = refusing<fi_ops_atomic>(
    NotOffered<"fi_atomic: the endpoint was opened without FI_ATOMIC; ask for it in hints->caps",
               -FI_EOPNOTSUPP>{});
// What can be done is answered before the endpoint is enabled too.
fi_ops_atomic g_atomic_not_enabled = with_valid(refusing<fi_ops_atomic>(
    NotOffered<"fi_atomic: the endpoint is not enabled; call fi_enable first", -FI_EOPBADSTATE>{}));

template <bool kDescribed>
const fi_ops_atomic g_atomic_plain = with_valid({
    .size = sizeof(fi_ops_atomic),
    .write = write<kDescribed>,
    .writev = writev<kDescribed>,
    .writemsg = writemsg<kDescribed>,
    .inject = inject,
    .readwrite = readwrite<kDescribed>,
    .readwritev = readwritev<kDescribed>,
    .readwritemsg = readwritemsg<kDescribed>,
    .compwrite = compwrite<kDescribed>,
    .compwritev = compwritev<kDescribed>,
    .compwritemsg = compwritemsg<kDescribed>,
});

}  // namespace

ssize_t atomic_later(Ep& ep, const char* call, const fi_msg_atomic& msg,
                     const AtomicBuffers& buffers, uint64_t flags, const Later& later) noexcept {
  const auto pieces = [](const auto* side) {
    return side != nullptr ? Pieces{side->msg_iov, side->desc, side->iov_count} : Pieces{};
  };
  Call c{.compare = pieces(buffers.compare), .result = pieces(buffers.fetch)};
  if (buffers.compare != nullptr) return keep<AtomicKind::compare>(ep, call, c, msg, flags, later);
  if (buffers.fetch != nullptr) return keep<AtomicKind::fetch>(ep, call, c, msg, flags, later);
  return keep<AtomicKind::base>(ep, call, c, msg, flags, later);
}

void fill_atomics(CallTables& tables) noexcept {
  tables.atomic = g_atomic_plain<false>;
  tables.atomic_described = g_atomic_plain<true>;
  tables.atomic_device = tables.atomic;
  put_device_atomics(tables.atomic_device);
}

void turn_away_atomics(CallTables& tables) noexcept {
  tables.atomic = tables.atomic_described = tables.atomic_device = tables.atomic_triggered =
      with_valid(refusing<fi_ops_atomic>(InForkedChild{}));
}

fi_ops_atomic& atomic_ops_at_once(const Ep& ep) noexcept {
  return reaches_devices(ep) ? ep.body->domain->calls->atomic_device : atomic_ops_of_host(ep);
}

fi_ops_atomic& atomic_ops_of_host(const Ep& ep) noexcept {
  CallTables& calls = *ep.body->domain->calls;
  return ep.descriptors == DescriptorRule::ignored ? calls.atomic : calls.atomic_described;
}

fi_ops_atomic* atomic_ops(const Ep& ep) noexcept {
  const EpBody& body = *ep.body;
  if (((body.tx_caps | body.rx_caps) & FI_ATOMIC) == 0) return &g_atomic_not_asked;
  if (!body.core) return &g_atomic_not_enabled;
  return triggers_by_default(ep) ? &body.domain->calls->atomic_triggered : &atomic_ops_at_once(ep);
}

int query_atomic(fid_domain* fid, fi_datatype type, fi_op op, fi_atomic_attr* attr,
                 uint64_t flags) noexcept {
  constexpr uint64_t kinds = FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC;
  if (attr == nullptr || (flags & kinds) == kinds)
    return refuse(
        -FI_EINVAL,
        "fi_query_atomic: attr is NULL, or FI_FETCH_ATOMIC and FI_COMPARE_ATOMIC are both set");
  if ((flags & ~(kinds | FI_TAGGED)) != 0)
    return refuse(-FI_EBADFLAGS,
                  "fi_query_atomic: flags 0x%llx are none that fi_atomic(3) knows for it",
                  static_cast<unsigned long long>(flags & ~(kinds | FI_TAGGED)));
  const AtomicKind kind = (flags & FI_FETCH_ATOMIC) != 0     ? AtomicKind::fetch
                          : (flags & FI_COMPARE_ATOMIC) != 0 ? AtomicKind::compare
                                                             : AtomicKind::base;
  if ((flags & FI_TAGGED) != 0 || !is_offered(object_of<Domain>(fid).api_version, kind, op, type)) {
    APERTURE_INFO("fi_query_atomic: operation %d on datatype %d with flags 0x%llx is not offered",
                  static_cast<int>(op), static_cast<int>(type),
                  static_cast<unsigned long long>(flags));
    return -FI_EOPNOTSUPP;
  }
  attr->count = most_elements(type);
  attr->size = transport::atomic_size(static_cast<AtomicType>(type));
  return 0;
}

}  // namespace aperture::provider
