// Messages and tagged messages whose descriptors are looked at: see ep_described.hpp. man 3 fi_msg,
// fi_tagged. Data path.
#include "provider/ep_described.hpp"
#include "provider/ep_multi_recv.hpp"
#include "provider/wording.hpp"

namespace aperture::provider {

ssize_t refuse_no_descriptor(const char* call, const void* buf, size_t len) noexcept {
  APERTURE_WARN(
      "%s: no descriptor for the %zu bytes at %p, and the domain was opened with FI_MR_LOCAL (or "
      "FI_LOCAL_MR); register the buffer and pass its fi_mr_desc()",
      call, len, buf);
  return -FI_EINVAL;
}

ssize_t judge_descriptor(const Ep& ep, const char* call, protect::LocalAsk ask,
                         protect::LocalAnswer answer) noexcept {
  protect::KeyTable& keys = ep.engine->keys();
  if (answer.denial == protect::Denial::wrong_domain) {
    // authorization keys keep peers apart, not an endpoint from the memory of its own domain
    AuthKeys& own = ep.body->domain->auth_keys;
    const std::lock_guard guard(own.mutex);
    for (size_t i = 0; i < own.all.size() && answer.denial == protect::Denial::wrong_domain; ++i) {
      ask.pd = own.all[i].pd;
      answer = protect::check_local(keys.file(), ask);
    }
  }
  protect::Denial denial = answer.denial;
  if (denial == protect::Denial::none) {
    if (answer.beside.generation == 0) return 0;
    nic::EngineGuard guard(*ep.engine);
    denial = protect::check_beside(keys, answer.beside, ask);
    if (denial == protect::Denial::none) return 0;
  }
  return guarded(call, [&]() -> int {
    APERTURE_WARN("%s: %s", call,
                  protect::explain_local(keys.file(), ask, denial, kFabricWording).c_str());
    return -FI_EACCES;
  });
}

namespace {

// The plain calls that this endpoint would have.
const fi_ops_msg& plain(const Ep& ep) noexcept {
  return (ep.rx_flags & FI_MULTI_RECV) != 0 ? *multi_recv_ops() : live_msg_ops();
}

// ---- fi_msg -------------------------------------------------------------------------------------

ssize_t recv(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t source,
             void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (const ssize_t rc = check_buffer(ep, "fi_recv", buf, len, desc, kRecvTarget); rc != 0)
    return rc;
  return plain(ep).recv(fid, buf, len, desc, source, context);
}

ssize_t recvv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t source,
              void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (const ssize_t rc =
          check_pieces(ep, "fi_recvv", iov, desc, count, ep.rx_iov_limit, kRecvTarget);
      rc != 0)
    return rc;
  return plain(ep).recvv(fid, iov, desc, count, source, context);
}

ssize_t recvmsg(fid_ep* fid, const fi_msg* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (msg != nullptr) {
    if (const ssize_t rc = check_pieces(ep, "fi_recvmsg", msg->msg_iov, msg->desc, msg->iov_count,
                                        ep.rx_iov_limit, kRecvTarget);
        rc != 0)
      return rc;
  }
  return plain(ep).recvmsg(fid, msg, flags);
}

ssize_t send(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t dest,
             void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.tx.inject) {
    if (const ssize_t rc = check_buffer(ep, "fi_send", buf, len, desc, kSendSource); rc != 0)
      return rc;
  }
  return live_msg_ops().send(fid, buf, len, desc, dest, context);
}

ssize_t sendv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t dest,
              void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.tx.inject) {
    if (const ssize_t rc =
            check_pieces(ep, "fi_sendv", iov, desc, count, ep.tx_iov_limit, kSendSource);
        rc != 0)
      return rc;
  }
  return live_msg_ops().sendv(fid, iov, desc, count, dest, context);
}

ssize_t sendmsg(fid_ep* fid, const fi_msg* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (msg != nullptr && (flags & FI_INJECT) == 0) {
    if (const ssize_t rc = check_pieces(ep, "fi_sendmsg", msg->msg_iov, msg->desc, msg->iov_count,
                                        ep.tx_iov_limit, kSendSource);
        rc != 0)
      return rc;
  }
  return live_msg_ops().sendmsg(fid, msg, flags);
}

ssize_t senddata(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                 fi_addr_t dest, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.tx.inject) {
    if (const ssize_t rc = check_buffer(ep, "fi_senddata", buf, len, desc, kSendSource); rc != 0)
      return rc;
  }
  return live_msg_ops().senddata(fid, buf, len, desc, data, dest, context);
}

// ---- fi_tagged ----------------------------------------------------------------------------------

ssize_t trecv(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t source, uint64_t tag,
              uint64_t ignore, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (const ssize_t rc = check_buffer(ep, "fi_trecv", buf, len, desc, kRecvTarget); rc != 0)
    return rc;
  return live_tagged_ops().recv(fid, buf, len, desc, source, tag, ignore, context);
}

ssize_t trecvv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t source,
               uint64_t tag, uint64_t ignore, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (const ssize_t rc =
          check_pieces(ep, "fi_trecvv", iov, desc, count, ep.rx_iov_limit, kRecvTarget);
      rc != 0)
    return rc;
  return live_tagged_ops().recvv(fid, iov, desc, count, source, tag, ignore, context);
}

ssize_t trecvmsg(fid_ep* fid, const fi_msg_tagged* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  // a peek or a discard places nothing
  if (msg != nullptr && (flags & (FI_PEEK | FI_DISCARD)) == 0) {
    if (const ssize_t rc = check_pieces(ep, "fi_trecvmsg", msg->msg_iov, msg->desc, msg->iov_count,
                                        ep.rx_iov_limit, kRecvTarget);
        rc != 0)
      return rc;
  }
  return live_tagged_ops().recvmsg(fid, msg, flags);
}

ssize_t tsend(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t dest, uint64_t tag,
              void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.tx.inject) {
    if (const ssize_t rc = check_buffer(ep, "fi_tsend", buf, len, desc, kSendSource); rc != 0)
      return rc;
  }
  return live_tagged_ops().send(fid, buf, len, desc, dest, tag, context);
}

ssize_t tsendv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t dest,
               uint64_t tag, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.tx.inject) {
    if (const ssize_t rc =
            check_pieces(ep, "fi_tsendv", iov, desc, count, ep.tx_iov_limit, kSendSource);
        rc != 0)
      return rc;
  }
  return live_tagged_ops().sendv(fid, iov, desc, count, dest, tag, context);
}

ssize_t tsendmsg(fid_ep* fid, const fi_msg_tagged* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (msg != nullptr && (flags & FI_INJECT) == 0) {
    if (const ssize_t rc = check_pieces(ep, "fi_tsendmsg", msg->msg_iov, msg->desc, msg->iov_count,
                                        ep.tx_iov_limit, kSendSource);
        rc != 0)
      return rc;
  }
  return live_tagged_ops().sendmsg(fid, msg, flags);
}

ssize_t tsenddata(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                  fi_addr_t dest, uint64_t tag, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.tx.inject) {
    if (const ssize_t rc = check_buffer(ep, "fi_tsenddata", buf, len, desc, kSendSource); rc != 0)
      return rc;
  }
  return live_tagged_ops().senddata(fid, buf, len, desc, data, dest, tag, context);
}

}  // namespace

fi_ops_msg* described_msg_ops() noexcept {
  static fi_ops_msg ops = [] {
    fi_ops_msg made = live_msg_ops();
    made.recv = recv;
    made.recvv = recvv;
    made.recvmsg = recvmsg;
    made.send = send;
    made.sendv = sendv;
    made.sendmsg = sendmsg;
    made.senddata = senddata;
    return made;
  }();
  return &ops;
}

fi_ops_tagged* described_tagged_ops() noexcept {
  static fi_ops_tagged ops = [] {
    fi_ops_tagged made = live_tagged_ops();
    made.recv = trecv;
    made.recvv = trecvv;
    made.recvmsg = trecvmsg;
    made.send = tsend;
    made.sendv = tsendv;
    made.sendmsg = tsendmsg;
    made.senddata = tsenddata;
    return made;
  }();
  return &ops;
}

}  // namespace aperture::provider
