// Which user listens at an address of this host.
//
// A hello only says whose endpoint it speaks for. A process of our own user may say what it likes
// (it may do anything to us anyway); of another user it is believed only if the port that it names
// is that user's. No state; the control thread asks, on the rare lane between two users.
#pragma once

#include <sys/types.h>

#include "base/address.hpp"
#include "base/errc.hpp"

namespace aperture::nic {

// Errors: no_entry (nobody listens there), io (the kernel does not tell).
Result<uid_t> owner_of_port(const Address& at) noexcept;

}  // namespace aperture::nic
