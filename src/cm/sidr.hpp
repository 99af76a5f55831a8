// Service id resolution, for datagram ids: a SIDR REQ from UDP port to UDP port and the SIDR REP
// that answers it. IBTA volume 1, 12.11.
//
// The control thread's own. A REQ is repeated until it is answered; an answer is kept with its port
// for a while, so that a repeated REQ gets the same one and is not a second request.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "base/address.hpp"
#include "cm/event.hpp"
#include "cm/ports.hpp"
#include "nic/control_thread.hpp"

namespace aperture::cm {

// A bound UDP port; shared by a listener and the ids that were asked for there.
class UdpPort {
 public:
  static constexpr size_t kMaxRemembered = 1024;

  UdpPort(nic::ControlThread& control, nic::ParentOnlyFd socket, const Address& bound) noexcept
      : control_(control), socket_(std::move(socket)), bound_(bound) {}
  ~UdpPort() { stop(); }
  UdpPort(const UdpPort&) = delete;
  UdpPort& operator=(const UdpPort&) = delete;

  // Errors: no_memory, no_fds.
  Status start() noexcept;
  void stop() noexcept;
  const Address& bound() const noexcept { return bound_; }
  int fd() const noexcept { return socket_.get(); }

  std::function<void(const Datagram&)> on_datagram;
  std::function<void()> on_refused;  // nobody has the port that we sent to

  // The requests that came here, and their answers once there are any.
  struct Asked {
    Address from;
    uint64_t request_id = 0;
    bool answered = false;
    wire::CmPacket answer;
  };
  Asked* find(const Address& from, uint64_t request_id) noexcept;
  // Nothing: as many wait for their answers as may, or there is no memory.
  Asked* remember(const Address& from, uint64_t request_id) noexcept;

 private:
  void on_readable() noexcept;

  nic::ControlThread& control_;
  nic::ParentOnlyFd socket_;
  const Address bound_;
  nic::ControlThread::WatchId watch_ = 0;
  std::list<Asked> asked_;  // oldest first
};

// One exchange, from either side.
class Sidr {
 public:
  // Asks. `done` is called once: with the reply, or with nothing and -ETIMEDOUT or a status.
  using Done = std::function<void(const Params* reply, int status)>;
  Sidr(nic::ControlThread& control, std::shared_ptr<UdpPort> port, const Address& from,
       const Address& to) noexcept
      : control_(control), port_(std::move(port)), from_(from), to_(to) {}
  ~Sidr();
  Sidr(const Sidr&) = delete;
  Sidr& operator=(const Sidr&) = delete;

  struct Pace {
    uint64_t every_ns;
    int tries;
    uint64_t refused_ns;  // so long a port that nobody has is tried again
  };
  Status ask(std::span<const uint8_t> data, const Pace& pace, Done done) noexcept;

  // Was asked under this number, and answers.
  void was_asked(uint64_t request_id) noexcept {
    request_id_ = request_id;
    owes_ = true;
  }
  void answer(uint32_t status, const Params& params) noexcept;

 private:
  void send_again() noexcept;
  void on_refused() noexcept;
  void on_datagram(const Datagram& datagram) noexcept;
  void finish(const Params* reply, int status) noexcept;

  nic::ControlThread& control_;
  std::shared_ptr<UdpPort> port_;
  const Address from_;
  const Address to_;
  uint64_t request_id_ = 0;
  bool owes_ = false;
  wire::CmPacket request_;
  Pace pace_{};
  uint64_t refused_until_ns_ = 0;
  Done done_;
  nic::ControlThread::TimerId timer_ = 0;
};

}  // namespace aperture::cm
