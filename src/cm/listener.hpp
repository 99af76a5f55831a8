// A listening id: connections that have not said REQ yet (of a datagram id: SIDR REQ), and the
// requests that came of them. Where other hosts are served, a porter hands their connections over.
//
// The control thread's own. Half-open connections are bounded in number and in time: beyond the
// number the oldest is dropped, so that 100,000 of them cost an honest peer nothing but a moment.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "base/address.hpp"
#include "cm/connection.hpp"
#include "cm/event.hpp"
#include "cm/handover.hpp"
#include "cm/id.hpp"
#include "cm/porter.hpp"
#include "cm/ports.hpp"

namespace aperture::cm {

class Listener {
 public:
  using OnRequest = std::function<void(Event&&)>;
  static constexpr size_t kMaxHalfOpen = 256;

  // Its children are ids as that one is. Errors by exception std::bad_alloc.
  Listener(nic::ControlThread& control, const Service& service, const Timeouts& timeouts,
           size_t backlog, OnRequest on_request);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Errors: no_memory, no_fds.
  Status start(std::vector<NamedSocket> sockets) noexcept;

 private:
  struct HalfOpen {
    std::shared_ptr<Connection> connection;
    std::unique_ptr<Handover> handover;  // in its place, until the porter has said whose it is
    Address local;
    Address remote;
    uint64_t deadline_ns = 0;
  };
  using HalfOpens = std::list<HalfOpen>;

  // One that is watched, or (a wildcard itself) only held.
  struct Watched {
    NamedSocket named;
    nic::ControlThread::WatchId watch = 0;
  };

  void on_arrivals(const NamedSocket& named) noexcept;
  void pause() noexcept;
  void admit(ParentOnlyFd socket, const Address& local) noexcept;
  // A place among the half-open, in which nothing is yet; the end of the list: no memory.
  HalfOpens::iterator make_half_open(const Address& local) noexcept;
  void admit_porter(ParentOnlyFd socket, const Address& local) noexcept;
  void on_handed_over(HalfOpens::iterator at, Result<Handover::Passed> passed) noexcept;
  // Waits for its first message there; else the place is gone.
  void begin(HalfOpens::iterator at, ParentOnlyFd socket, const Address& remote) noexcept;
  void on_first_message(HalfOpens::iterator at, wire::CmKind kind,
                        Connection::Bytes bytes) noexcept;
  void on_deadline() noexcept;
  void set_timer() noexcept;
  void on_req(const HalfOpen& from, Connection::Bytes bytes) noexcept;
  void on_sidr_req(const HalfOpen& from, Connection::Bytes bytes) noexcept;
  // A request with a place and an id of its own; no child: there is no room for it.
  Event make_request(const HalfOpen& from) noexcept;
  // Nothing: as many requests wait as may, or there is no memory.
  std::shared_ptr<void> take_place() noexcept;

  nic::ControlThread& control_;
  const Service service_;
  const Timeouts timeouts_;
  const size_t backlog_;
  const OnRequest on_request_;
  // requests whose events nobody has taken yet; given back by any thread
  std::shared_ptr<std::atomic<size_t>> waiting_ = std::make_shared<std::atomic<size_t>>(0);
  std::vector<Watched> sockets_;      // fixed from start() on
  std::shared_ptr<Porters> porters_;  // where other hosts are served
  bool told_of_porter_ = false;
  nic::ControlThread::TimerId deadline_timer_ = 0;
  nic::ControlThread::TimerId resume_timer_ = 0;
  HalfOpens half_open_;  // oldest first
};

}  // namespace aperture::cm
