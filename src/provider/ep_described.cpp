// Messages, tagged messages and remote memory access whose local descriptors are looked at: see
// ep_described.hpp. man 3 fi_msg, fi_tagged, fi_rma. Data path.
#include "provider/ep_described.hpp"

#include <type_traits>

#include "provider/ep_buffered.hpp"
#include "provider/ep_multi_recv.hpp"
#include "provider/own_registrations.hpp"
#include "provider/stubs.hpp"
#include "provider/wording.hpp"

namespace aperture::provider {

ssize_t without_descriptor(const Ep& ep, const char* call, const void* buf, size_t len,
                           protect::Rights need) noexcept {
  if (OwnRegistrations* const own = ep.body->domain->own_registrations.get(); own != nullptr) {
    return own->cover(call, buf, len, need);
  }
  return refuse(
      -FI_EINVAL,
      "%s: no descriptor for the %zu bytes at %p, and the domain was opened with FI_MR_LOCAL (or "
      "FI_LOCAL_MR); register the buffer and pass its fi_mr_desc()",
      call, len, buf);
}

protect::LocalAnswer look_at_descriptor(const Ep& ep, protect::LocalAsk& ask) noexcept {
  const protect::KeyFile& file = ep.engine->keys().own_file().layout();
  protect::LocalAnswer answer = protect::check_local(file, ask);
  if (answer.denial != protect::Denial::wrong_domain) return answer;
  // authorization keys keep peers apart, not an endpoint from the memory of its own domain
  AuthKeys& own = ep.body->domain->auth_keys;
  const std::lock_guard guard(own.mutex);
  for (size_t i = 0; i < own.all.size() && answer.denial == protect::Denial::wrong_domain; ++i) {
    ask.pd = own.all[i].pd;
    answer = protect::check_local(file, ask);
  }
  return answer;
}

ssize_t validate_descriptor(const Ep& ep, const char* call, protect::LocalAsk ask,
                            protect::LocalAnswer answer) noexcept {
  if (ep.descriptors == DescriptorRule::own) {
    return without_descriptor(ep, call, reinterpret_cast<const void*>(ask.addr), ask.len, ask.need);
  }
  protect::KeyTable& keys = ep.engine->keys();
  if (answer.denial == protect::Denial::wrong_domain) answer = look_at_descriptor(ep, ask);
  protect::Denial denial = answer.denial;
  if (denial == protect::Denial::none) {
    if (answer.beside.generation == 0) return 0;
    nic::EngineGuard guard(*ep.engine);
    denial = protect::check_beside(keys, answer.beside, ask);
    if (denial == protect::Denial::none) return 0;
  }
  return guarded(call, [&]() -> int {
    return refuse(
        -FI_EACCES, "%s: %s", call,
        protect::explain_local(keys.own_file().layout(), ask, denial, kFabricWording).c_str());
  });
}

namespace {

// What a call does with its buffers.
struct Use {
  protect::Rights need;
  bool receives;     // so the endpoint's limits of receives hold
  uint64_t unasked;  // with one of these flags no descriptor is looked at
};
constexpr Use kReceives{kRecvTarget, true, FI_DISCARD};
constexpr Use kTaggedReceives{kRecvTarget, true, FI_PEEK | FI_DISCARD};  // these place nothing
constexpr Use kSends{kSendSource, false, FI_INJECT};
constexpr Use kReads{kReadResult, false, 0};
constexpr Use kWrites{kWriteSource, false, FI_INJECT};

// The plain calls that this endpoint would have.
template <Use use, typename Ops>
const Ops& plain([[maybe_unused]] const Ep& ep) noexcept {
  if constexpr (std::is_same_v<Ops, fi_ops_rma>) {
    return plain_rma_ops();
  } else if constexpr (std::is_same_v<Ops, fi_ops_tagged>) {
    if (ep.buffered) return buffered_tagged_ops();
    return use.receives && receives_many(ep, true) ? tagged_multi_recv_ops() : plain_tagged_ops();
  } else {
    if (ep.buffered) return buffered_msg_ops();
    return use.receives && receives_many(ep, false) ? multi_recv_ops() : plain_msg_ops();
  }
}

// What stands in the slot `Slot` of a table: looks at the descriptors, then makes the plain call.
template <Sentence Call, Use use, auto Slot>
struct Described;
template <Sentence Call, Use use, typename Ops, typename Plain, Plain Ops::*Slot>
struct Described<Call, use, Slot> {
  static bool is_asked(const Ep& ep) noexcept {
    if (use.receives && ep.buffered) return false;  // of a claim alone: its flag says so
    return (use.unasked & FI_INJECT) == 0 || !ep.tx.inject;
  }
  static size_t limit_of(const Ep& ep) noexcept {
    return use.receives ? ep.rx_iov_limit : ep.tx_iov_limit;
  }

  template <typename Byte, typename... Rest>
  static ssize_t call(fid_ep* fid, Byte* buf, size_t len, void* desc, Rest... rest) noexcept {
    auto& ep = object_of<Ep>(fid);
    if (is_asked(ep)) {
      if (const ssize_t rc = check_buffer(ep, Call.text, buf, len, desc, use.need); rc != 0)
        return rc;
    }
    return (plain<use, Ops>(ep).*Slot)(fid, buf, len, desc, rest...);
  }

  template <typename... Rest>
  static ssize_t call(fid_ep* fid, const iovec* iov, void** desc, size_t count,
                      Rest... rest) noexcept {
    auto& ep = object_of<Ep>(fid);
    if (is_asked(ep)) {
      if (const ssize_t rc = check_pieces(ep, Call.text, iov, desc, count, limit_of(ep), use.need);
          rc != 0)
        return rc;
    }
    return (plain<use, Ops>(ep).*Slot)(fid, iov, desc, count, rest...);
  }

  template <typename Msg>
  static ssize_t call(fid_ep* fid, const Msg* msg, uint64_t flags) noexcept {
    auto& ep = object_of<Ep>(fid);
    const bool places = !use.receives || !ep.buffered || (flags & FI_CLAIM) != 0;
    if (msg != nullptr && places && (flags & use.unasked) == 0) {
      if (const ssize_t rc = check_pieces(ep, Call.text, msg->msg_iov, msg->desc, msg->iov_count,
                                          limit_of(ep), use.need);
          rc != 0)
        return rc;
    }
    return (plain<use, Ops>(ep).*Slot)(fid, msg, flags);
  }
};

}  // namespace

fi_ops_msg described_msg_ops() noexcept {
  using Ops = fi_ops_msg;
  Ops made = plain_msg_ops();
  made.recv = Described<"fi_recv", kReceives, &Ops::recv>::call;
  made.recvv = Described<"fi_recvv", kReceives, &Ops::recvv>::call;
  made.recvmsg = Described<"fi_recvmsg", kReceives, &Ops::recvmsg>::call;
  made.send = Described<"fi_send", kSends, &Ops::send>::call;
  made.sendv = Described<"fi_sendv", kSends, &Ops::sendv>::call;
  made.sendmsg = Described<"fi_sendmsg", kSends, &Ops::sendmsg>::call;
  made.senddata = Described<"fi_senddata", kSends, &Ops::senddata>::call;
  return made;
}

fi_ops_tagged described_tagged_ops() noexcept {
  using Ops = fi_ops_tagged;
  Ops made = plain_tagged_ops();
  made.recv = Described<"fi_trecv", kTaggedReceives, &Ops::recv>::call;
  made.recvv = Described<"fi_trecvv", kTaggedReceives, &Ops::recvv>::call;
  made.recvmsg = Described<"fi_trecvmsg", kTaggedReceives, &Ops::recvmsg>::call;
  made.send = Described<"fi_tsend", kSends, &Ops::send>::call;
  made.sendv = Described<"fi_tsendv", kSends, &Ops::sendv>::call;
  made.sendmsg = Described<"fi_tsendmsg", kSends, &Ops::sendmsg>::call;
  made.senddata = Described<"fi_tsenddata", kSends, &Ops::senddata>::call;
  return made;
}

fi_ops_rma described_rma_ops() noexcept {
  using Ops = fi_ops_rma;
  Ops made = plain_rma_ops();
  made.read = Described<"fi_read", kReads, &Ops::read>::call;
  made.readv = Described<"fi_readv", kReads, &Ops::readv>::call;
  made.readmsg = Described<"fi_readmsg", kReads, &Ops::readmsg>::call;
  made.write = Described<"fi_write", kWrites, &Ops::write>::call;
  made.writev = Described<"fi_writev", kWrites, &Ops::writev>::call;
  made.writemsg = Described<"fi_writemsg", kWrites, &Ops::writemsg>::call;
  made.writedata = Described<"fi_writedata", kWrites, &Ops::writedata>::call;
  return made;
}

}  // namespace aperture::provider
