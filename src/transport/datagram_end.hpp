// One end of a datagram link, as a queue pair of either kind has it: when the sockets are looked
// at, and how long what has come may wait for a receive.
//
// Datagrams that find no receive wait in their socket for kReceiveTimeoutNs: the application may be
// about to post one. Meanwhile the engine may sleep; the next receive that is posted finds what has
// not waited too long. Guarded by the engine's lock. The sink is the queue pair.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <utility>

#include "link/datagram.hpp"

namespace aperture::transport {

class DatagramEnd {
 public:
  static constexpr uint64_t kReceiveTimeoutNs = 100'000'000;

  DatagramEnd(std::unique_ptr<link::Datagrams> link, link::DatagramSink& sink) noexcept
      : link_(std::move(link)), sink_(sink) {}

  link::Datagrams& link() noexcept { return *link_; }

  // As link::Datagrams::send(); what is sent may be answered, so the sockets are looked at again.
  Status send(const Address& local, const Address& to, std::span<const iovec> pieces) noexcept {
    idle_looks_ = 0;
    return link_->send(local, to, pieces);
  }

  // Hands over what has come, for so many receives at most; returns how many that were.
  size_t receive(size_t receives) noexcept;
  // The same where nothing can be received, and the sink drops it.
  size_t receive_in_vain() noexcept;
  // What has come waits for a receive: whoever sleeps need not be woken for it.
  bool is_waiting_for_receive() const noexcept { return receive_deadline_ns_ != 0; }
  // What waited too long for this receive is handed over before it, to be dropped.
  void on_receive_posted() noexcept {
    if (is_waiting_for_receive()) [[unlikely]]
      end_waiting();
  }
  bool is_dropping() const noexcept { return dropping_; }
  // Nothing is received any more.
  void stop() noexcept;

  // Asked in each poll. False: a look at the sockets, a system call, is worth its time.
  bool is_idle() noexcept {
    if (++idle_looks_ < kIdleLooks) return false;
    idle_looks_ = kIdleLooks;
    return true;
  }

  void fall_asleep() noexcept;
  void wake_up() noexcept;
  bool anything_arrived() const noexcept {
    return !is_waiting_for_receive() && link_->anything_arrived();
  }

 private:
  // One that had nothing for so many looks costs a system call in every poll no more, only in those
  // that look at everything.
  static constexpr uint32_t kIdleLooks = 1024;

  size_t take(size_t at_most) noexcept;
  bool may_wait() noexcept;
  void end_waiting() noexcept;
  void drop_all() noexcept;

  std::unique_ptr<link::Datagrams> link_;
  link::DatagramSink& sink_;
  uint32_t idle_looks_ = 0;           // since something was sent or came
  uint64_t receive_deadline_ns_ = 0;  // 0: no message waits for a receive
  bool dropping_ = false;
  bool asleep_ = false;
};

}  // namespace aperture::transport
