// The one table from Errc to fi_errno (man 3 fi_errno), and the two shapes in which libfabric hands
// errors back: negative from calls, positive in completion and event entries. Any thread.
#pragma once

#include <rdma/fi_errno.h>

#include "base/errc.hpp"

namespace aperture::provider {

constexpr int fi_error(Errc e) noexcept {
  switch (e) {
    case Errc::ok: return FI_SUCCESS;
    case Errc::again: return FI_EAGAIN;
    case Errc::invalid: return FI_EINVAL;
    case Errc::bad_flags: return FI_EBADFLAGS;
    case Errc::no_memory: return FI_ENOMEM;
    case Errc::no_space: return FI_ENOSPC;
    case Errc::too_small: return FI_ETOOSMALL;
    case Errc::too_big: return FI_EMSGSIZE;
    case Errc::not_supported: return FI_EOPNOTSUPP;
    case Errc::no_sys: return FI_ENOSYS;
    case Errc::no_data: return FI_ENODATA;
    case Errc::bad_state: return FI_EOPBADSTATE;
    case Errc::busy: return FI_EBUSY;
    case Errc::no_entry: return FI_ENOENT;
    case Errc::no_message: return FI_ENOMSG;
    case Errc::no_key: return FI_ENOKEY;
    case Errc::key_rejected: return FI_EKEYREJECTED;
    case Errc::access_denied: return FI_EACCES;
    case Errc::bad_buffer: return FI_EFAULT;
    case Errc::truncated: return FI_ETRUNC;
    case Errc::canceled: return FI_ECANCELED;
    case Errc::refused: return FI_ECONNREFUSED;
    case Errc::unreachable: return FI_EHOSTUNREACH;
    case Errc::timed_out: return FI_ETIMEDOUT;
    case Errc::peer_lost: return FI_ECONNRESET;
    case Errc::shut_down: return FI_ESHUTDOWN;
    case Errc::not_connected: return FI_ENOTCONN;
    case Errc::addr_in_use: return FI_EADDRINUSE;
    case Errc::addr_not_avail: return FI_EADDRNOTAVAIL;
    case Errc::interrupted: return FI_EINTR;
    case Errc::no_fds: return FI_EMFILE;
    case Errc::protocol: return FI_EREMOTEIO;
    case Errc::io: return FI_EIO;
  }
  return FI_EOTHER;
}

constexpr int fi_code(Errc e) noexcept {
  return -fi_error(e);
}
constexpr int fi_code(Status s) noexcept {
  return -fi_error(s.error());
}

}  // namespace aperture::provider
