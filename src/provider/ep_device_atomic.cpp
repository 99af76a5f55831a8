// Atomics of endpoints with FI_HMEM, of which operands and results may lie in a device: as in
// ep_device.cpp. (Targets in a device are their owner's: qp/atomic_responder.hpp.) man 3 fi_atomic,
// fi_mr ("FI_MR_HMEM"). No state.
#include "provider/device_places.hpp"
#include "provider/ep_device.hpp"
#include "provider/fork.hpp"
#include "provider/with_flags.hpp"

namespace aperture::provider {

namespace {

// One array of elements.
struct Elements {
  const fi_ioc* ioc = nullptr;
  void** desc = nullptr;
  size_t count = 0;
};

// Where the three of a call lie.
struct Found {
  Places operand, compare, result;

  ssize_t find(const Ep& ep, const char* call, fi_datatype type, const Elements& o,
               const Elements& c, const Elements& r) noexcept {
    ssize_t rc = find_one(operand, ep, call, type, o, kWriteSource);
    if (rc == 0) rc = find_one(compare, ep, call, type, c, kWriteSource);
    return rc != 0 ? rc : find_one(result, ep, call, type, r, kReadResult);
  }
  bool any() const noexcept { return operand.any() || compare.any() || result.any(); }

 private:
  // What the call itself refuses is left to it.
  static ssize_t find_one(Places& places, const Ep& ep, const char* call, fi_datatype type,
                          const Elements& e, protect::Rights need) noexcept {
    const size_t size = transport::atomic_size(static_cast<transport::AtomicType>(type));
    std::array<iovec, qp::kIovLimit> iov;
    if (e.ioc == nullptr || e.count > iov.size() || size == 0) return 0;
    for (size_t i = 0; i < e.count; ++i) {
      if (e.ioc[i].count > transport::kAtomicBytes / size) return 0;
      iov[i] = {e.ioc[i].addr, e.ioc[i].count * size};
    }
    return places.find(ep, call, iov.data(), e.desc, e.count, ep.tx_iov_limit, need);
  }
};

ssize_t stage_atomic(Ep& ep, const char* call, const fi_msg_atomic& m, const Elements& c,
                     const Elements& r, uint64_t flags, Found& found) noexcept {
  if ((flags & FI_TRIGGER) != 0)
    return refuse(-FI_EOPNOTSUPP,
                  "%s: FI_TRIGGER is not offered for device memory; use host memory", call);
  const fi_msg_fetch fetch{const_cast<fi_ioc*>(r.ioc), r.desc, r.count};
  const fi_msg_compare compare{c.ioc, c.desc, c.count};
  const AtomicBuffers buffers{r.ioc != nullptr ? &fetch : nullptr,
                              c.ioc != nullptr ? &compare : nullptr};
  return staged(
      ep, call, m.addr,
      {{&found.operand, 0, Staging::Way::out},
       {&found.compare, 1, Staging::Way::out},
       {&found.result, 2, Staging::Way::back}},
      [&](const Later& later) { return atomic_later(ep, call, m, buffers, flags, later); });
}

// The operand of FI_ATOMIC_READ is ignored.
Elements looked_at(const Elements& operand, fi_op op) noexcept {
  return op == FI_ATOMIC_READ ? Elements{} : operand;
}

// What the calls without flags name beside their buffers.
struct There {
  fi_addr_t peer;
  uint64_t addr;
  uint64_t key;
  fi_datatype type;
  fi_op op;
  void* context;
};

// One without flags; `args`: as the call in the slot has them, behind its endpoint.
template <auto Slot, typename... Args>
ssize_t start(fid_ep* fid, const char* call, const Elements& operand, const Elements& compare,
              const Elements& result, const There& there, Args... args) noexcept {
  constexpr uint64_t known = (kReadKnown | FI_INJECT) & ~FI_TRIGGER;
  auto& ep = object_of<Ep>(fid);
  Found found;
  const ssize_t rc =
      found.find(ep, call, there.type, looked_at(operand, there.op), compare, result);
  if (rc != 0) return rc;
  if (!found.any()) return (atomic_ops_of_host(ep).*Slot)(fid, args...);
  // a fetch may have no operand
  const bool fetches = result.ioc != nullptr && compare.ioc == nullptr;
  const Elements& target = fetches ? result : operand;
  const BuiltAtomic b(operand.ioc, operand.desc, operand.count, there.peer, there.addr, there.key,
                      there.type, there.op, there.context,
                      BuiltAtomic::elements_of(target.ioc, target.count));
  return stage_atomic(ep, call, b.msg, compare, result, ep.tx_flags & known, found);
}

// One with flags; `args`: as that call has them, behind the message.
template <auto Slot, typename... Args>
ssize_t start_msg(fid_ep* fid, const char* call, const fi_msg_atomic* msg, const Elements& compare,
                  const Elements& result, uint64_t flags, Args... args) noexcept {
  auto& ep = object_of<Ep>(fid);
  Found found;
  if (msg != nullptr) {
    const Elements operand = looked_at({msg->msg_iov, msg->desc, msg->iov_count}, msg->op);
    const ssize_t rc = found.find(ep, call, msg->datatype, operand, compare, result);
    if (rc != 0) return rc;
  }
  if (msg == nullptr || !found.any()) return (atomic_ops_of_host(ep).*Slot)(fid, msg, args...);
  return stage_atomic(ep, call, *msg, compare, result, flags, found);
}

using Ops = fi_ops_atomic;

ssize_t write(fid_ep* fid, const void* buf, size_t count, void* desc, fi_addr_t peer, uint64_t addr,
              uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  const fi_ioc one{const_cast<void*>(buf), count};
  return start<&Ops::write>(fid, "fi_atomic", {&one, &desc, 1}, {}, {},
                            {peer, addr, key, type, op, context}, buf, count, desc, peer, addr, key,
                            type, op, context);
}

ssize_t writev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, fi_addr_t peer,
               uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  return start<&Ops::writev>(fid, "fi_atomicv", {iov, desc, count}, {}, {},
                             {peer, addr, key, type, op, context}, iov, desc, count, peer, addr,
                             key, type, op, context);
}

ssize_t writemsg(fid_ep* fid, const fi_msg_atomic* msg, uint64_t flags) noexcept {
  return start_msg<&Ops::writemsg>(fid, "fi_atomicmsg", msg, {}, {}, flags, flags);
}

ssize_t inject(fid_ep* fid, const void* buf, size_t count, fi_addr_t peer, uint64_t addr,
               uint64_t key, fi_datatype type, fi_op op) noexcept {
  auto& ep = object_of<Ep>(fid);
  const size_t size = transport::atomic_size(static_cast<transport::AtomicType>(type));
  InjectedBytes in;
  // more than can be injected is refused by the call
  const bool fits = size != 0 && count <= qp::kInjectBytes / size;
  if (const ssize_t rc = in.take("fi_inject_atomic", buf, fits ? count * size : 0); rc != 0)
    return rc;
  return atomic_ops_of_host(ep).inject(fid, in.bytes(), count, peer, addr, key, type, op);
}

ssize_t readwrite(fid_ep* fid, const void* buf, size_t count, void* desc, void* result,
                  void* result_desc, fi_addr_t peer, uint64_t addr, uint64_t key, fi_datatype type,
                  fi_op op, void* context) noexcept {
  const fi_ioc one{const_cast<void*>(buf), count};
  const fi_ioc to{result, count};
  return start<&Ops::readwrite>(fid, "fi_fetch_atomic", {&one, &desc, 1}, {},
                                {&to, &result_desc, 1}, {peer, addr, key, type, op, context}, buf,
                                count, desc, result, result_desc, peer, addr, key, type, op,
                                context);
}

ssize_t readwritev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, fi_ioc* result,
                   void** result_desc, size_t result_count, fi_addr_t peer, uint64_t addr,
                   uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  return start<&Ops::readwritev>(fid, "fi_fetch_atomicv", {iov, desc, count}, {},
                                 {result, result_desc, result_count},
                                 {peer, addr, key, type, op, context}, iov, desc, count, result,
                                 result_desc, result_count, peer, addr, key, type, op, context);
}

ssize_t readwritemsg(fid_ep* fid, const fi_msg_atomic* msg, fi_ioc* result, void** result_desc,
                     size_t result_count, uint64_t flags) noexcept {
  return start_msg<&Ops::readwritemsg>(fid, "fi_fetch_atomicmsg", msg, {},
                                       {result, result_desc, result_count}, flags, result,
                                       result_desc, result_count, flags);
}

ssize_t compwrite(fid_ep* fid, const void* buf, size_t count, void* desc, const void* compare,
                  void* compare_desc, void* result, void* result_desc, fi_addr_t peer,
                  uint64_t addr, uint64_t key, fi_datatype type, fi_op op, void* context) noexcept {
  const fi_ioc one{const_cast<void*>(buf), count};
  const fi_ioc against{const_cast<void*>(compare), count};
  const fi_ioc to{result, count};
  return start<&Ops::compwrite>(
      fid, "fi_compare_atomic", {&one, &desc, 1}, {&against, &compare_desc, 1},
      {&to, &result_desc, 1}, {peer, addr, key, type, op, context}, buf, count, desc, compare,
      compare_desc, result, result_desc, peer, addr, key, type, op, context);
}

ssize_t compwritev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, const fi_ioc* compare,
                   void** compare_desc, size_t compare_count, fi_ioc* result, void** result_desc,
                   size_t result_count, fi_addr_t peer, uint64_t addr, uint64_t key,
                   fi_datatype type, fi_op op, void* context) noexcept {
  return start<&Ops::compwritev>(
      fid, "fi_compare_atomicv", {iov, desc, count}, {compare, compare_desc, compare_count},
      {result, result_desc, result_count}, {peer, addr, key, type, op, context}, iov, desc, count,
      compare, compare_desc, compare_count, result, result_desc, result_count, peer, addr, key,
      type, op, context);
}

ssize_t compwritemsg(fid_ep* fid, const fi_msg_atomic* msg, const fi_ioc* compare,
                     void** compare_desc, size_t compare_count, fi_ioc* result, void** result_desc,
                     size_t result_count, uint64_t flags) noexcept {
  return start_msg<&Ops::compwritemsg>(
      fid, "fi_compare_atomicmsg", msg, {compare, compare_desc, compare_count},
      {result, result_desc, result_count}, flags, compare, compare_desc, compare_count, result,
      result_desc, result_count, flags);
}

}  // namespace

ssize_t refuse_devices_of_atomic(const Ep& ep, const char* call, const fi_msg_atomic& msg,
                                 const AtomicBuffers& buffers) noexcept {
  const auto elements = [](const auto* side) {
    return side != nullptr ? Elements{side->msg_iov, side->desc, side->iov_count} : Elements{};
  };
  Found found;
  const ssize_t rc = found.find(ep, call, msg.datatype, looked_at(elements(&msg), msg.op),
                                elements(buffers.compare), elements(buffers.fetch));
  if (rc != 0 || !found.any()) return rc;
  return refuse(-FI_EOPNOTSUPP,
                "%s: an atomic that waits cannot use device memory; copy it to the host's first",
                call);
}

// valid() and its like are the host's.
void put_device_atomics(fi_ops_atomic& ops) noexcept {
  ops.write = write;
  ops.writev = writev;
  ops.writemsg = writemsg;
  ops.inject = inject;
  ops.readwrite = readwrite;
  ops.readwritev = readwritev;
  ops.readwritemsg = readwritemsg;
  ops.compwrite = compwrite;
  ops.compwritev = compwritev;
  ops.compwritemsg = compwritemsg;
}

}  // namespace aperture::provider
