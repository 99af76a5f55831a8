// Remote memory access: fi_ops_rma. man 3 fi_rma. Data path.
#include <cstddef>

#include "provider/ep_described.hpp"
#include "provider/ep_device.hpp"
#include "provider/ep_triggered.hpp"
#include "provider/fork.hpp"
#include "provider/post_message.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

namespace {

static_assert(sizeof(fi_rma_iov) == sizeof(qp::RemoteRange) &&
              offsetof(fi_rma_iov, addr) == offsetof(qp::RemoteRange, addr) &&
              offsetof(fi_rma_iov, len) == offsetof(qp::RemoteRange, len) &&
              offsetof(fi_rma_iov, key) == offsetof(qp::RemoteRange, key));

constexpr uint64_t kReadFlags = FI_COMPLETION | FI_MORE | FI_INJECT_COMPLETE |
                                FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_FENCE | kPriority;
constexpr uint64_t kWriteFlags = kReadFlags | FI_REMOTE_CQ_DATA | FI_INJECT;

// One access as the application described it. Without ranges: one of the whole length at addr.
struct Access {
  const iovec* iov = nullptr;
  size_t count = 0;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  uint64_t addr = 0;
  uint64_t key = 0;
  void* context = nullptr;
  uint64_t imm = 0;
  bool has_imm = false;
  const fi_rma_iov* ranges = nullptr;
  size_t range_count = 0;
};

[[gnu::cold]] ssize_t refuse_ranges(const char* call, size_t count, size_t limit) noexcept {
  return refuse(
      -FI_EINVAL,
      "%s: %zu remote ranges (1 to %zu are allowed: rma_iov_limit), or their lengths do not add up "
      "to that of the local buffers",
      call, count, limit);
}

bool measure_ranges(const Access& a, uint64_t& len) noexcept {
  len = 0;
  for (size_t i = 0; i < a.range_count; ++i) {
    if (__builtin_add_overflow(len, a.ranges[i].len, &len)) return false;
  }
  return true;
}

template <bool IsWrite, typename How = Now>
[[gnu::always_inline]] inline ssize_t access(Ep& ep, const char* call, const Access& a,
                                             const TxWish& wish, const How& how = {}) noexcept {
  if (!(IsWrite ? ep.may_write : ep.may_read)) [[unlikely]]
    return refuse_side(call, IsWrite ? "FI_WRITE" : "FI_READ");
  qp::RmaWr wr;
  if (!measure(a.iov, a.count, ep.tx_iov_limit, wr.len)) [[unlikely]]
    return refuse_pieces(call, a.count, ep.tx_iov_limit);
  const uint64_t limit = IsWrite && wish.inject ? ep.inject_size : qp::kMaxMessageBytes;
  if (wr.len > limit) [[unlikely]]
    return refuse_length(call, wr.len, limit);
  const qp::RemoteRange whole{a.addr, wr.len, a.key};
  wr.ranges = &whole;
  wr.range_count = 1;
  if (a.ranges != nullptr) {
    uint64_t remote_len = 0;
    if (a.range_count == 0 || a.range_count > ep.rma_iov_limit || !measure_ranges(a, remote_len) ||
        remote_len != wr.len) [[unlikely]] {
      return refuse_ranges(call, a.range_count, ep.rma_iov_limit);
    }
    wr.ranges = reinterpret_cast<const qp::RemoteRange*>(a.ranges);
    wr.range_count = a.range_count;
  }
  wr.iov = a.iov;
  wr.iov_count = a.count;
  wr.dest = a.peer;
  wr.imm = a.imm;
  wr.context = a.context;
  wr.flags = FI_RMA | (IsWrite ? FI_WRITE : FI_READ);
  wr.has_imm = a.has_imm;
  wr.inject = IsWrite && wish.inject;
  wr.completion = wish.completion;
  wr.fence = wish.fence;
  wr.commit = IsWrite && wish.commit;
  return how.template access<IsWrite>(ep, call, wr);
}

// With the engine's lock, or where there is none.
[[gnu::always_inline]] inline bool put_write_line(Ep& ep, const void* buf, fi_addr_t peer,
                                                  const qp::LineRmaWr& wr) noexcept {
  qp::Qp* qp = ep.core->qp_of(peer);
  if (qp == nullptr || !qp->line().write(wr, buf)) [[unlikely]]
    return false;
  ep.engine->on_posted();
  return true;
}
// By value: nothing is stored where no lock is needed.
[[gnu::noinline]] bool put_write_line_locked(Ep& ep, const void* buf, fi_addr_t peer,
                                             qp::LineRmaWr wr) noexcept {
  nic::EngineGuard guard(*ep.engine);
  return put_write_line(ep, buf, peer, wr);
}

// The hot path of those with one flat buffer: a small one to a known peer goes straight into its
// ring. False: nothing was done.
[[gnu::always_inline]] inline bool write_line(Ep& ep, const void* buf, fi_addr_t peer,
                                              const TxWish& wish,
                                              const qp::LineRmaWr& wr) noexcept {
  if (wr.len > wire::kLineWriteBytes || buf == nullptr || !ep.may_write || wish.fence ||
      wish.commit || (wish.inject && wr.len > ep.inject_size)) [[unlikely]] {
    return false;
  }
  return ep.engine->lock().threaded() ? put_write_line_locked(ep, buf, peer, wr)
                                      : put_write_line(ep, buf, peer, wr);
}

[[gnu::noinline]] ssize_t write_as_any(Ep& ep, const char* call, const void* buf, size_t len,
                                       fi_addr_t peer, uint64_t addr, uint64_t key, void* context,
                                       uint64_t imm, bool has_imm, const TxWish& wish) noexcept {
  const iovec iov{const_cast<void*>(buf), len};
  return access<true>(ep, call, {&iov, 1, peer, addr, key, context, imm, has_imm}, wish);
}

[[gnu::always_inline]] inline ssize_t write_flat(Ep& ep, const char* call, const void* buf,
                                                 size_t len, fi_addr_t peer, uint64_t addr,
                                                 uint64_t key, void* context, uint64_t imm,
                                                 bool has_imm, const TxWish& wish) noexcept {
  if (write_line(ep, buf, peer, wish,
                 {.addr = addr,
                  .len = len,
                  .key = key,
                  .imm = imm,
                  .context = context,
                  .flags = FI_RMA | FI_WRITE,
                  .has_imm = has_imm,
                  .completion = wish.completion})) [[likely]]
    return 0;
  return write_as_any(ep, call, buf, len, peer, addr, key, context, imm, has_imm, wish);
}

ssize_t read(fid_ep* fid, void* buf, size_t len, void*, fi_addr_t peer, uint64_t addr, uint64_t key,
             void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const iovec iov{buf, len};
  return access<false>(ep, "fi_read", {&iov, 1, peer, addr, key, context}, ep.tx);
}

ssize_t readv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t peer, uint64_t addr,
              uint64_t key, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  return access<false>(ep, "fi_readv", {iov, count, peer, addr, key, context}, ep.tx);
}

[[gnu::always_inline]] inline Access access_of(const fi_msg_rma& msg, uint64_t flags) noexcept {
  return {.iov = msg.msg_iov,
          .count = msg.iov_count,
          .peer = msg.addr,
          .context = msg.context,
          .imm = msg.data,
          .has_imm = (flags & FI_REMOTE_CQ_DATA) != 0,
          .ranges = msg.rma_iov,
          .range_count = msg.rma_iov_count};
}

// The part that readmsg and writemsg share.
template <bool IsWrite>
ssize_t access_msg(fid_ep* fid, const char* call, const fi_msg_rma* msg, uint64_t flags,
                   uint64_t known) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (msg == nullptr || msg->rma_iov == nullptr) [[unlikely]] {
    return refuse(-FI_EINVAL, "%s: msg or msg->rma_iov is NULL", call);
  }
  if ((flags & ~known) != 0) [[unlikely]] {
    if ((flags & FI_TRIGGER) == 0) return refuse_flags(call, flags, known);
    return trigger(ep, call, msg->context, [&](const Later& later) noexcept {
      return access_later(ep, call, *msg, IsWrite, flags & ~FI_TRIGGER, later);
    });
  }
  return access<IsWrite>(ep, call, access_of(*msg, flags), ep.wish_of(flags));
}

uint64_t known_flags(const Ep& ep, bool is_write) noexcept {
  return !is_write ? kReadFlags : kWriteFlags | (ep.may_commit ? FI_COMMIT_COMPLETE : 0);
}

ssize_t readmsg(fid_ep* fid, const fi_msg_rma* msg, uint64_t flags) noexcept {
  return access_msg<false>(fid, "fi_readmsg", msg, flags, kReadFlags);
}

ssize_t writemsg(fid_ep* fid, const fi_msg_rma* msg, uint64_t flags) noexcept {
  return access_msg<true>(fid, "fi_writemsg", msg, flags, known_flags(object_of<Ep>(fid), true));
}

ssize_t write(fid_ep* fid, const void* buf, size_t len, void*, fi_addr_t peer, uint64_t addr,
              uint64_t key, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  return write_flat(ep, "fi_write", buf, len, peer, addr, key, context, 0, false, ep.tx);
}

ssize_t writev(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t peer, uint64_t addr,
               uint64_t key, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  return access<true>(ep, "fi_writev", {iov, count, peer, addr, key, context}, ep.tx);
}

ssize_t inject(fid_ep* fid, const void* buf, size_t len, fi_addr_t peer, uint64_t addr,
               uint64_t key) noexcept {
  auto& ep = object_of<Ep>(fid);
  return write_flat(ep, "fi_inject_write", buf, len, peer, addr, key, ep.fid.fid.context, 0, false,
                    kInjectWish);
}

ssize_t writedata(fid_ep* fid, const void* buf, size_t len, void*, uint64_t data, fi_addr_t peer,
                  uint64_t addr, uint64_t key, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  return write_flat(ep, "fi_writedata", buf, len, peer, addr, key, context, data, true, ep.tx);
}

ssize_t injectdata(fid_ep* fid, const void* buf, size_t len, uint64_t data, fi_addr_t peer,
                   uint64_t addr, uint64_t key) noexcept {
  auto& ep = object_of<Ep>(fid);
  return write_flat(ep, "fi_inject_writedata", buf, len, peer, addr, key, ep.fid.fid.context, data,
                    true, kInjectWish);
}

fi_ops_rma g_rma_not_enabled = refusing<fi_ops_rma>(
    NotOffered<"fi_rma: the endpoint is not enabled; call fi_enable first", -FI_EOPBADSTATE>{});
fi_ops_rma g_rma_not_asked = refusing<fi_ops_rma>(
    NotOffered<"fi_rma: the endpoint was opened without FI_RMA; ask for it in hints->caps",
               -FI_EOPNOTSUPP>{});

const fi_ops_rma g_rma_plain = {
    .size = sizeof(fi_ops_rma),
    .read = read,
    .readv = readv,
    .readmsg = readmsg,
    .write = write,
    .writev = writev,
    .writemsg = writemsg,
    .inject = inject,
    .writedata = writedata,
    .injectdata = injectdata,
};

}  // namespace

ssize_t access_later(Ep& ep, const char* call, const fi_msg_rma& msg, bool is_write, uint64_t flags,
                     const Later& later) noexcept {
  if (msg.rma_iov == nullptr) return refuse(-FI_EINVAL, "%s: msg->rma_iov is NULL", call);
  const uint64_t known = known_flags(ep, is_write);
  if ((flags & ~known) != 0) return refuse_flags(call, flags, known);
  const Access a = access_of(msg, flags);
  const TxWish wish = ep.wish_of(flags);
  return is_write ? access<true>(ep, call, a, wish, later)
                  : access<false>(ep, call, a, wish, later);
}

void fill_rma(CallTables& tables) noexcept {
  tables.rma = g_rma_plain;
  tables.rma_described = described_rma_ops();
  tables.rma_device = device_rma_ops();
}

const fi_ops_rma& plain_rma_ops() noexcept {
  return g_rma_plain;
}

fi_ops_rma& rma_ops_at_once(const Ep& ep) noexcept {
  return reaches_devices(ep) ? ep.body->domain->calls->rma_device : rma_ops_of_host(ep);
}

fi_ops_rma& rma_ops_of_host(const Ep& ep) noexcept {
  CallTables& calls = *ep.body->domain->calls;
  return ep.descriptors == DescriptorRule::ignored ? calls.rma : calls.rma_described;
}

fi_ops_rma* rma_ops(const Ep& ep) noexcept {
  const EpBody& body = *ep.body;
  if (((body.tx_caps | body.rx_caps) & FI_RMA) == 0) return &g_rma_not_asked;
  if (!body.core) return &g_rma_not_enabled;
  return triggers_by_default(ep) ? &body.domain->calls->rma_triggered : &rma_ops_at_once(ep);
}

}  // namespace aperture::provider
