// Reaching an id on another host: by TCP to the porter there (porter.hpp), who is told which port
// is wanted and passes the connection on to whoever listens at it.
//
// The control thread's own. It ends once, at most: with a connection over which the id there has
// said that it takes it, or with why not. Destroying it calls nothing any more. Who waits for it
// sees to how long. What comes from the porter is a stranger's word, of fixed length.
#pragma once

#include <functional>
#include <memory>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "cm/port_name.hpp"
#include "nic/control_thread.hpp"
#include "wire/porter.hpp"

namespace aperture::cm {

class Dial {
 public:
  // May destroy it. Errors: refused (no porter, or nobody listens at that port), again (too many
  // wait there), unreachable, protocol.
  using OnEnd = std::function<void(Result<ParentOnlyFd>)>;

  // Errors: refused, unreachable, no_fds, no_memory.
  static Result<std::unique_ptr<Dial>> begin(nic::ControlThread& control, PortSpace space,
                                             const Address& from, const Address& to,
                                             OnEnd on_end) noexcept;
  ~Dial();
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;

 private:
  Dial(nic::ControlThread& control, ParentOnlyFd socket, const wire::PorterHello& hello,
       OnEnd on_end) noexcept
      : control_(control), socket_(std::move(socket)), hello_(hello), on_end_(std::move(on_end)) {}
  void on_connected() noexcept;
  void on_readable() noexcept;
  void on_answer() noexcept;
  void end(Status status) noexcept;

  nic::ControlThread& control_;
  ParentOnlyFd socket_;
  nic::ControlThread::WatchId watch_ = 0;
  const wire::PorterHello hello_;
  bool is_connected_ = false;  // and the hello is said
  wire::PorterBytes answer_{};
  size_t got_ = 0;
  OnEnd on_end_;
};

}  // namespace aperture::cm
