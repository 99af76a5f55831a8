// Datagrams with faults: what this side sends is lost, sent twice, sent behind the next one, or
// sent later, as the user asks for (APERTURE_FAULT). What comes is handed over as it is.
//
// What is held back is copied, and goes out when its time has come: at the next call here, and a
// timer makes wake_fd() readable for it. kMostHeld at most are; the next one goes at once.
// Guarded by the engine's lock, as every datagram link.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/fault_plan.hpp"
#include "base/fd.hpp"
#include "base/fork_guard.hpp"
#include "link/datagram.hpp"
#include "link/faulty/timer.hpp"

namespace aperture::link::faulty {

class FaultyDatagrams final : public Datagrams {
 public:
  static constexpr size_t kMostHeld = 64;

  // plan outlives it. Errors: no_memory, no_fds.
  static Result<std::unique_ptr<FaultyDatagrams>> make(std::unique_ptr<Datagrams> inner,
                                                       const FaultPlan& plan,
                                                       uint64_t number) noexcept;
  ~FaultyDatagrams() override;

  uint16_t port() const noexcept override { return inner_->port(); }
  bool is_own(const Address& address) const noexcept override { return inner_->is_own(address); }
  Status send(const Address& local, const Address& to,
              std::span<const iovec> pieces) noexcept override;
  size_t receive(DatagramSink& sink, size_t at_most) noexcept override;
  bool anything_arrived() const noexcept override;
  uint64_t strangers() const noexcept override { return inner_->strangers(); }
  void ask_wake(bool wanted) noexcept override { inner_->ask_wake(wanted); }
  int wake_fd() const noexcept override { return wake_.get(); }
  Status join(const Address& group, const Address& interface_ip) noexcept override {
    return inner_->join(group, interface_ip);
  }
  Status leave(const Address& group) noexcept override { return inner_->leave(group); }

 private:
  struct Held {
    Address local;
    Address to;
    std::vector<std::byte> bytes;
    uint64_t due_ns = 0;
    uint64_t after = 0;  // or behind this one, counted as drawn; 0: behind none
  };

  FaultyDatagrams(std::unique_ptr<Datagrams> inner, const FaultPlan& plan, uint64_t number,
                  ParentOnlyFd wake, Timer timer) noexcept;
  bool strikes(FaultKind kind) const noexcept;
  Status hold(const Address& local, const Address& to, std::span<const iovec> pieces,
              uint64_t due_ns, uint64_t after) noexcept;
  void send_held() noexcept;
  void set_timer() noexcept;

  const Life life_;
  const std::unique_ptr<Datagrams> inner_;
  const FaultPlan& plan_;
  const FaultDice dice_;
  ParentOnlyFd wake_;  // epoll over the one beneath and the timer
  Timer timer_;
  uint64_t sent_ = 0;  // datagrams that were drawn for
  std::vector<Held> held_;
};

}  // namespace aperture::link::faulty
