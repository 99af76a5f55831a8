// A listening id: TCP connections that have not said REQ yet, and the requests that came of them;
// in the UDP port space, SIDR REQs.
//
// The control thread's own. Half-open connections are bounded in number and in time: beyond the
// number the oldest is dropped, so that 100,000 of them cost an honest peer nothing but a moment.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>

#include "base/address.hpp"
#include "cm/connection.hpp"
#include "cm/event.hpp"
#include "cm/id.hpp"
#include "cm/sidr.hpp"

namespace aperture::cm {

class Listener {
 public:
  using OnRequest = std::function<void(Event&&)>;
  static constexpr size_t kMaxHalfOpen = 256;

  // Errors by exception std::bad_alloc.
  Listener(nic::ControlThread& control, const Timeouts& timeouts, size_t backlog,
           OnRequest on_request);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Takes the socket unless it fails. Errors: addr_in_use, no_memory, no_fds.
  Status start(nic::ParentOnlyFd& socket) noexcept;
  Status start(std::shared_ptr<UdpPort> port) noexcept;

 private:
  struct HalfOpen {
    std::shared_ptr<Connection> connection;
    uint64_t deadline_ns = 0;
  };
  using HalfOpens = std::list<HalfOpen>;

  void on_arrivals() noexcept;
  void admit(nic::ParentOnlyFd socket) noexcept;
  void on_first_message(HalfOpens::iterator at, wire::CmKind kind,
                        Connection::Bytes bytes) noexcept;
  void on_deadline() noexcept;
  void set_timer() noexcept;
  void on_sidr_req(const Datagram& datagram) noexcept;
  // Nothing: as many requests wait as may, or there is no memory.
  std::shared_ptr<void> take_place() noexcept;

  nic::ControlThread& control_;
  const Timeouts timeouts_;
  const size_t backlog_;
  const OnRequest on_request_;
  // requests whose events nobody has taken yet; given back by any thread
  std::shared_ptr<std::atomic<size_t>> waiting_ = std::make_shared<std::atomic<size_t>>(0);
  nic::ParentOnlyFd socket_;
  nic::ControlThread::WatchId watch_ = 0;
  nic::ControlThread::TimerId deadline_timer_ = 0;
  nic::ControlThread::TimerId resume_timer_ = 0;
  HalfOpens half_open_;  // oldest first
  std::shared_ptr<UdpPort> udp_;
};

}  // namespace aperture::cm
