// Words and errno neighbours of each Errc.
#include "base/errc.hpp"

#include <cerrno>

namespace aperture {

const char* describe(Errc e) noexcept {
  switch (e) {
    case Errc::ok: return "success";
    case Errc::again: return "try again";
    case Errc::invalid: return "invalid argument";
    case Errc::bad_flags: return "unknown flag";
    case Errc::no_memory: return "out of memory";
    case Errc::no_space: return "table full";
    case Errc::too_small: return "buffer too small";
    case Errc::too_big: return "message above the limit";
    case Errc::not_supported: return "operation not supported by this object";
    case Errc::no_sys: return "not offered here";
    case Errc::no_data: return "nothing matches the hints";
    case Errc::bad_state: return "object in the wrong state";
    case Errc::busy: return "object still in use";
    case Errc::no_entry: return "no such entry";
    case Errc::no_message: return "no matching message";
    case Errc::no_key: return "requested key in use";
    case Errc::key_rejected: return "requested key cannot be honoured";
    case Errc::access_denied: return "access denied";
    case Errc::bad_buffer: return "local buffer not mapped";
    case Errc::truncated: return "message truncated";
    case Errc::canceled: return "canceled";
    case Errc::refused: return "connection refused";
    case Errc::unreachable: return "peer unreachable";
    case Errc::timed_out: return "timed out";
    case Errc::peer_lost: return "peer lost";
    case Errc::shut_down: return "endpoint closed";
    case Errc::not_connected: return "not connected";
    case Errc::addr_in_use: return "address in use";
    case Errc::addr_not_avail: return "address not available";
    case Errc::interrupted: return "interrupted";
    case Errc::no_fds: return "out of file descriptors";
    case Errc::protocol: return "protocol broken by the peer";
    case Errc::io: return "input/output error";
  }
  return "unknown error";
}

Errc errc_from_errno(int err) noexcept {
  switch (err) {
    case 0: return Errc::ok;
    case EAGAIN: return Errc::again;
    case EINVAL: return Errc::invalid;
    case ENOMEM: return Errc::no_memory;
    case ENOSPC: return Errc::no_space;
    case EMFILE:
    case ENFILE: return Errc::no_fds;
    case EADDRINUSE: return Errc::addr_in_use;
    case EADDRNOTAVAIL: return Errc::addr_not_avail;
    case ECONNREFUSED: return Errc::refused;
    case EHOSTUNREACH:
    case ENETUNREACH: return Errc::unreachable;
    case ETIMEDOUT: return Errc::timed_out;
    case ECONNRESET:
    case EPIPE: return Errc::peer_lost;
    case EINTR: return Errc::interrupted;
    case EPERM:
    case EACCES: return Errc::access_denied;
    default: return Errc::io;
  }
}

}  // namespace aperture
