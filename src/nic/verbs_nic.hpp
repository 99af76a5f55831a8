// The software NIC as the verbs door sees it: one per device context, with an engine of its own,
// the key table of the process, and queue pairs that have numbers, lanes and progress.
//
// Any thread; without the engine lock but where a call says that it is to be held. Whatever is made
// here has to be gone before its VerbsNic.
#pragma once

#include <memory>

#include "ib/queue_pair.hpp"
#include "ib/window_book.hpp"
#include "nic/engine.hpp"

namespace aperture::nic {

class VerbsQp;

class VerbsNic {
 public:
  // Errors: no_fds, no_memory.
  static Result<std::unique_ptr<VerbsNic>> create() noexcept;
  virtual ~VerbsNic() = default;

  virtual Engine& engine() noexcept = 0;
  protect::KeyTable& keys() noexcept { return engine().keys(); }
  virtual ib::WindowBook& windows() noexcept = 0;

  // Gives it a queue pair number; spec.qpn, keys and windows are filled in here. Errors: no_memory,
  // no_fds, addr_in_use (no port is free), not_supported (the type).
  virtual Result<std::unique_ptr<VerbsQp>> make_qp(ib::QpSpec spec) noexcept = 0;
};

class VerbsQp {
 public:
  // Destruction: ends it, gives its lane and number back; its completions leave their queues.
  virtual ~VerbsQp() = default;
  // Posting and looking at it: engine lock held.
  virtual ib::QueuePair& qp() noexcept = 0;
  // validate_modify() has found nothing wrong with it. Errors: invalid (a route or number that
  // cannot be), addr_not_avail, no_fds, no_memory. Lock not held.
  virtual Status modify(const ib::QpAttributes& attr, uint32_t mask) noexcept = 0;
  // Multicast, of datagram queue pairs: messages to that MGID come in from now on, until it is
  // detached; once however often it is attached. interface_ip: at the interface of that address of
  // this host; any (Address{}): at all of them. Errors: not_supported (the type), invalid (no
  // MGID; not attached), addr_not_avail (no such interface), addr_in_use, no_fds, no_memory. Lock
  // not held.
  virtual Status attach_group(const Address& /*group*/, const Address& /*interface_ip*/) noexcept {
    return Errc::not_supported;
  }
  virtual Status detach_group(const Address& /*group*/) noexcept { return Errc::not_supported; }
};

}  // namespace aperture::nic
