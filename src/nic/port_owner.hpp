// Which user listens at an address of this host, or holds the other end of a connection within it.
//
// A hello only says whose endpoint it speaks for. A process of our own user may say what it likes
// (it may do anything to us anyway); of another user it is believed only if the port that it names
// is that user's. And who may be half-open here is shared out by user, before anybody has said who
// he is. Of the control thread.
#pragma once

#include <sys/types.h>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "base/fork_guard.hpp"

struct inet_diag_msg;

namespace aperture::nic {

// Keeps the socket that asks: each connection that comes is asked about.
class PortOwners {
 public:
  // Errors: no_entry (nobody listens there), io (the kernel does not tell).
  Result<uid_t> of_port(const Address& at) noexcept;
  // Of the socket at `there`, whose TCP connection ends at `here`. Errors: no_entry (of another
  // host, or closed by now), io.
  Result<uid_t> of_connection(const Address& there, const Address& here) noexcept;

 private:
  struct Question;
  static Question question_about(const Address& at, const Address* to) noexcept;
  Result<inet_diag_msg> ask(const Question& question) noexcept;

  ParentOnlyFd socket_;  // to sock_diag(7); none: not asked so far, or the last answer is missing
};

}  // namespace aperture::nic
