// Remote memory access whose local descriptors are looked at: see ep_described.hpp. man 3 fi_rma.
// Data path.
#include "provider/ep_described.hpp"

namespace aperture::provider {

namespace {

ssize_t read(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t peer, uint64_t addr,
             uint64_t key, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (const ssize_t rc = check_buffer(ep, "fi_read", buf, len, desc, kReadResult); rc != 0)
    return rc;
  return live_rma_ops().read(fid, buf, len, desc, peer, addr, key, context);
}

ssize_t readv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
              uint64_t addr, uint64_t key, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (const ssize_t rc =
          check_pieces(ep, "fi_readv", iov, desc, count, ep.tx_iov_limit, kReadResult);
      rc != 0)
    return rc;
  return live_rma_ops().readv(fid, iov, desc, count, peer, addr, key, context);
}

ssize_t readmsg(fid_ep* fid, const fi_msg_rma* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (msg != nullptr) {
    if (const ssize_t rc = check_pieces(ep, "fi_readmsg", msg->msg_iov, msg->desc, msg->iov_count,
                                        ep.tx_iov_limit, kReadResult);
        rc != 0)
      return rc;
  }
  return live_rma_ops().readmsg(fid, msg, flags);
}

ssize_t write(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t peer, uint64_t addr,
              uint64_t key, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.tx.inject) {
    if (const ssize_t rc = check_buffer(ep, "fi_write", buf, len, desc, kWriteSource); rc != 0)
      return rc;
  }
  return live_rma_ops().write(fid, buf, len, desc, peer, addr, key, context);
}

ssize_t writev(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
               uint64_t addr, uint64_t key, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.tx.inject) {
    if (const ssize_t rc =
            check_pieces(ep, "fi_writev", iov, desc, count, ep.tx_iov_limit, kWriteSource);
        rc != 0)
      return rc;
  }
  return live_rma_ops().writev(fid, iov, desc, count, peer, addr, key, context);
}

ssize_t writemsg(fid_ep* fid, const fi_msg_rma* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (msg != nullptr && (flags & FI_INJECT) == 0) {
    if (const ssize_t rc = check_pieces(ep, "fi_writemsg", msg->msg_iov, msg->desc, msg->iov_count,
                                        ep.tx_iov_limit, kWriteSource);
        rc != 0)
      return rc;
  }
  return live_rma_ops().writemsg(fid, msg, flags);
}

ssize_t writedata(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                  fi_addr_t peer, uint64_t addr, uint64_t key, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.tx.inject) {
    if (const ssize_t rc = check_buffer(ep, "fi_writedata", buf, len, desc, kWriteSource); rc != 0)
      return rc;
  }
  return live_rma_ops().writedata(fid, buf, len, desc, data, peer, addr, key, context);
}

}  // namespace

fi_ops_rma* described_rma_ops() noexcept {
  static fi_ops_rma ops = [] {
    fi_ops_rma made = live_rma_ops();
    made.read = read;
    made.readv = readv;
    made.readmsg = readmsg;
    made.write = write;
    made.writev = writev;
    made.writemsg = writemsg;
    made.writedata = writedata;
    return made;
  }();
  return &ops;
}

}  // namespace aperture::provider
