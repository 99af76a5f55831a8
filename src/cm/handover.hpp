// How a listening id is handed a connection from another host: the porter connects to its name from
// no name of his own, and passes the descriptor with a note (wire/porter.hpp).
//
// The control thread's own. A porter is believed if he runs as the same user, or as root: the port
// of the other side, which is told and not proved, is all that he could lie about anyway, for the
// addresses are the kernel's. It ends once, at most; destroying it calls nothing any more.
#pragma once

#include <functional>
#include <memory>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "nic/control_thread.hpp"

namespace aperture::cm {

class Handover {
 public:
  struct Passed {
    ParentOnlyFd socket;
    Address remote;
  };
  // May destroy it. Errors: peer_lost, protocol (nothing that is to be had).
  using OnEnd = std::function<void(Result<Passed>)>;

  // Of a connection that `local`, an address of ours, has accepted. Errors: access_denied (that
  // porter is not believed), no_fds, no_memory.
  static Result<std::unique_ptr<Handover>> begin(nic::ControlThread& control, ParentOnlyFd porter,
                                                 const Address& local, OnEnd on_end) noexcept;
  ~Handover();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

 private:
  Handover(nic::ControlThread& control, ParentOnlyFd porter, const Address& local,
           OnEnd on_end) noexcept
      : control_(control), porter_(std::move(porter)), local_(local), on_end_(std::move(on_end)) {}
  void on_readable() noexcept;
  Result<Passed> receive() noexcept;
  void end(Result<Passed> passed) noexcept;

  nic::ControlThread& control_;
  ParentOnlyFd porter_;
  const Address local_;
  nic::ControlThread::WatchId watch_ = 0;
  OnEnd on_end_;
};

}  // namespace aperture::cm
