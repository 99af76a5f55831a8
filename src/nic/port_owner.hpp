// Which user listens at an address of this host, or holds the other end of a connection within it.
//
// A hello only says whose endpoint it speaks for. A process of our own user may say what it likes
// (it may do anything to us anyway); of another user it is believed only if the port that it names
// is that user's. And who may be half-open here is shared out by user, before anybody has said who
// he is. No state; the control thread asks.
#pragma once

#include <sys/types.h>

#include "base/address.hpp"
#include "base/errc.hpp"

namespace aperture::nic {

// Errors: no_entry (nobody listens there), io (the kernel does not tell).
Result<uid_t> owner_of_port(const Address& at) noexcept;
// Of the socket at `there`, whose TCP connection ends at `here`. Errors: no_entry (of another host,
// or closed by now), io.
Result<uid_t> owner_of_connection(const Address& there, const Address& here) noexcept;

}  // namespace aperture::nic
