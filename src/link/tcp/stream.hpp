// A connected byte stream, as lanes over TCP see one: a socket, or what stands in for it in a
// simulation.
//
// Nothing here waits. One owner at a time: the engine that moves the lane, with its lock, or the
// control thread while no queue pair has the lane.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

#include "base/errc.hpp"
#include "base/fork_guard.hpp"

namespace aperture::link::tcp {

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  // How many of these bytes were taken, 1 or more. Errors: again (none now), bad_buffer (the first
  // is not mapped), peer_lost (reset, or silent for too long).
  virtual Result<size_t> send(std::span<const iovec> pieces) noexcept = 0;
  // How many came, 1 or more. Errors: again, bad_buffer, peer_lost; shut_down: the other side sends
  // no more.
  virtual Result<size_t> receive(std::span<const iovec> places) noexcept = 0;
  // So many more have come, as far as is known: they can be had at once.
  virtual size_t waiting() const noexcept { return 0; }
  // Nothing more is sent; what was taken still arrives.
  virtual void finish() noexcept = 0;
  // To be waited on; -1: nothing to wait on.
  virtual int fd() const noexcept = 0;
};

// Over a connected TCP socket, which is made non-blocking, without delay (TCP_NODELAY), and found
// dead when nothing is heard of it for `silence_ms` while nothing is under way (keepalive); while
// something is, silence.hpp tells. Errors: no_memory, io.
Result<std::unique_ptr<Stream>> make_stream(ParentOnlyFd socket, unsigned silence_ms) noexcept;

}  // namespace aperture::link::tcp
