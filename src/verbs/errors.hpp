// The one table from Errc to errno, as verbs hands errors back: positive from calls that return a
// number, in errno from those that return a pointer. Any thread.
#pragma once

#include <cerrno>

#include "base/errc.hpp"

namespace aperture::verbs {

constexpr int errno_of(Errc e) noexcept {
  switch (e) {
    case Errc::ok: return 0;
    case Errc::again: return EAGAIN;
    case Errc::invalid: return EINVAL;
    case Errc::bad_flags: return EINVAL;
    case Errc::no_memory: return ENOMEM;
    case Errc::no_space: return ENOMEM;  // what libibverbs' drivers say of a full queue
    case Errc::too_small: return EINVAL;
    case Errc::too_big: return EINVAL;
    case Errc::not_supported: return EOPNOTSUPP;
    case Errc::no_sys: return EOPNOTSUPP;
    case Errc::no_data: return ENODATA;
    case Errc::bad_state: return EINVAL;
    case Errc::busy: return EBUSY;
    case Errc::no_entry: return ENOENT;
    case Errc::no_message: return ENOMSG;
    case Errc::no_key: return EEXIST;
    case Errc::key_rejected: return EINVAL;
    case Errc::access_denied: return EACCES;
    case Errc::bad_buffer: return EFAULT;
    case Errc::truncated: return EMSGSIZE;
    case Errc::canceled: return ECANCELED;
    case Errc::refused: return ECONNREFUSED;
    case Errc::unreachable: return EHOSTUNREACH;
    case Errc::timed_out: return ETIMEDOUT;
    case Errc::peer_lost: return ECONNRESET;
    case Errc::shut_down: return ESHUTDOWN;
    case Errc::not_connected: return ENOTCONN;
    case Errc::addr_in_use: return EADDRINUSE;
    case Errc::addr_not_avail: return EADDRNOTAVAIL;
    case Errc::interrupted: return EINTR;
    case Errc::no_fds: return EMFILE;
    case Errc::protocol: return EREMOTEIO;
    case Errc::io: return EIO;
  }
  return EIO;
}
constexpr int errno_of(Status s) noexcept {
  return errno_of(s.error());
}

}  // namespace aperture::verbs
