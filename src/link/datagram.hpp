// The contract of whatever carries datagrams: the counterpart of a lane (lane.hpp) for queue pairs
// without a connection.
//
// Datagrams come whole or not at all, in any order, perhaps never; it is known which of our
// addresses or groups one came to, and within this host who sent it. Of another host's it is known
// what the sender's address is said to be. One port belongs to one queue pair. Guarded by the
// engine's lock.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/address.hpp"
#include "base/errc.hpp"

namespace aperture::link {

struct Datagram {
  Address from;
  Address to;  // our address, or the group
  bool to_group = false;
  // A stranger's; valid during the call. Empty if it was longer than any of ours.
  std::span<const std::byte> bytes;
};

class DatagramSink {
 public:
  virtual ~DatagramSink() = default;
  virtual void on_datagram(const Datagram& datagram) noexcept = 0;
};

class Datagrams {
 public:
  Datagrams() = default;
  Datagrams(const Datagrams&) = delete;
  Datagrams& operator=(const Datagrams&) = delete;
  virtual ~Datagrams() = default;

  virtual uint16_t port() const noexcept = 0;
  // It is one of our own addresses, with our port.
  virtual bool is_own(const Address& address) const noexcept = 0;

  // local: the address to send from (port ignored; any: whichever fits). to: an address and port,
  // or a group. The datagram is those pieces, at most kMostPieces. What gets lost on the way is ok.
  // Errors: again (no room now, nothing was sent), bad_buffer (a piece is not mapped; likewise).
  static constexpr size_t kMostPieces = 16;
  virtual Status send(const Address& local, const Address& to,
                      std::span<const iovec> pieces) noexcept = 0;
  // Hands over what has arrived, at most `at_most`; returns how many.
  virtual size_t receive(DatagramSink& sink, size_t at_most) noexcept = 0;
  virtual bool anything_arrived() const noexcept = 0;
  // How many came from other hosts where those are not served, and were dropped unread.
  virtual uint64_t strangers() const noexcept { return 0; }

  // While it is wanted, wake_fd() is readable if something is there. A sleeping engine waits for
  // it.
  virtual void ask_wake(bool wanted) noexcept = 0;
  virtual int wake_fd() const noexcept = 0;

  // A group, at the interface of that local address; any: at all of ours. Once however often it is
  // joined. Errors: invalid (no group; not joined), addr_not_avail (no such interface),
  // addr_in_use, no_fds, no_memory.
  virtual Status join(const Address& group, const Address& interface_ip) noexcept = 0;
  virtual Status leave(const Address& group) noexcept = 0;
};

}  // namespace aperture::link
