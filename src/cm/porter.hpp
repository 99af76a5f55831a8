// The porter of one address of this host: who hears connections from other hosts at a known TCP
// port there, reads which port of rdma_cm each is for, and passes it on to whoever listens at that
// (handover.hpp). docs/adr/0008, "Between hosts".
//
// Every process that listens at such an address wants the post. Who has it holds an abstract name,
// "aperture/rdma_cm/porter/10.0.0.1:4791", and listens; the others hold a connection to that name,
// whose end tells them that the post is free. So nothing is asked again and again.
//
// He keeps no table and believes nothing: a connection is worth a hello of 16 bytes within five
// seconds, and of those that have not said it yet the oldest makes room for the 257th. He answers
// for nobody but those who are not there. The control thread's own.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "nic/control_thread.hpp"
#include "wire/porter.hpp"

namespace aperture::cm {

inline constexpr uint16_t kPorterPort = 4791;  // the number that RoCE version 2 has of UDP

// Ours, and what we take that of other hosts to be: APERTURE_CM_PORT.
uint16_t porter_port() noexcept;

class Porter {
 public:
  static constexpr size_t kMostArrivals = 256;

  // At that address, whose port is the porter's.
  Porter(nic::ControlThread& control, const Address& at) noexcept : control_(control), at_(at) {}
  ~Porter();
  Porter(const Porter&) = delete;
  Porter& operator=(const Porter&) = delete;

  // Wants the post from now on; once more where that had failed.
  void apply() noexcept;

 private:
  using Descriptor = ParentOnlyFd;
  struct Arrival {
    Descriptor socket;
    uint64_t deadline_ns = 0;
    nic::ControlThread::WatchId watch = 0;
    wire::PorterBytes hello{};
    size_t got = 0;
  };
  using Arrivals = std::list<Arrival>;

  // the post
  Status take_post() noexcept;
  Status wait_for_post() noexcept;
  void serve() noexcept;
  void apply_again(uint64_t in_ns) noexcept;
  void on_line_ended() noexcept;
  void leave() noexcept;

  // the door
  void on_arrivals() noexcept;
  void pause() noexcept;
  void admit(Descriptor socket) noexcept;
  void on_readable(Arrivals::iterator at) noexcept;
  void deliver(const Arrival& arrival, const wire::PorterHello& hello) noexcept;
  void drop(Arrivals::iterator at) noexcept;
  void on_deadline() noexcept;
  void set_timer() noexcept;

  nic::ControlThread& control_;
  const Address at_;
  Descriptor post_;  // its name: we are the porter, or about to be
  Descriptor door_;  // TCP
  nic::ControlThread::WatchId door_watch_ = 0;
  Descriptor line_;  // to who is porter in our place
  nic::ControlThread::WatchId line_watch_ = 0;
  uint64_t line_since_ns_ = 0;
  nic::ControlThread::TimerId again_timer_ = 0;
  nic::ControlThread::TimerId resume_timer_ = 0;
  nic::ControlThread::TimerId deadline_timer_ = 0;
  int vain_ = 0;   // tries in a row to have the post or a line
  int tries_ = 0;  // to have the TCP port, since we have the post
  bool told_ = false;
  Arrivals arrivals_;  // oldest first
};

// Those of this process: one for each address at which it serves other hosts, for as long as an id
// of its listens at one of them.
class Porters {
 public:
  // Errors: no_memory.
  static Result<std::shared_ptr<Porters>> open(nic::ControlThread& control) noexcept;

 private:
  explicit Porters(nic::ControlThread& control) noexcept : control_(control) {}
  nic::ControlThread& control_;
  std::vector<std::unique_ptr<Porter>> all_;
};

}  // namespace aperture::cm
