// The door of one endpoint: accepts TCP at its address, hears a hello, and hands out a ticket with
// which the process behind it may come to a unix socket of ours and open a lane.
//
//   accepted -> hello heard -> answered (ticket: nonce, socket name) -> joined -> taken by Open
//
// Everything here is bounded: handshakes in number (the oldest makes room) and in time, bytes read
// to one hello, knocks at one socket name. Rubbish ends a handshake and nothing else. Owned by the
// control thread.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "nic/control_thread.hpp"
#include "nic/peer.hpp"
#include "nic/sockets.hpp"

namespace aperture::nic {

class Listener;

class ListenerHost {
 public:
  virtual ~ListenerHost() = default;
  // A hello for this endpoint from this host: offered or crossing.
  virtual wire::Verdict judge(Listener& listener, const wire::Hello& hello) noexcept = 0;
  // A process came with the right nonce: it becomes a peer.
  virtual void on_joined(Listener& listener, const wire::Hello& hello, const wire::Join& join,
                         ParentOnlyFd socket, const Credentials& credentials) noexcept = 0;
  // The ticket of that hello was not used.
  virtual void on_ticket_lost(Listener& listener, const wire::Hello& hello) noexcept = 0;
};

class Listener {
 public:
  struct Limits {
    size_t handshakes = 1024;  // at once
    uint64_t timeout_ns = 5'000'000'000;
  };

  // Without a socket nobody comes: the end of a connection that was accepted has none of its own.
  Listener(ControlThread& control, ListenerHost& host, const Identity& self, const ListenSpec& spec,
           const LocalEnd& end, ParentOnlyFd socket, const Limits& limits) noexcept;
  ~Listener();
  Status start() noexcept;

  const LocalEnd& end() const noexcept { return end_; }
  ListenFor what() const noexcept { return spec_.what; }
  ContactEvents& events() const noexcept { return *spec_.events; }
  // Of a listener for requests: those that wait for an answer, and how many may.
  size_t waiting = 0;
  size_t backlog = 0;
  size_t handshakes() const noexcept { return handshakes_.size(); }

  static ListenerId listener_of(uint64_t ticket) noexcept {
    return static_cast<ListenerId>(ticket >> 32);
  }
  // Takes the ticket that Open presents (right nonce, right process, right endpoints): used up
  // then. What the two sides have to prove is in `statement`.
  bool take_ticket(const wire::Open& open, const wire::Id128& incarnation,
                   wire::Statement& statement) noexcept;
  // Somebody at that address has a ticket, and may be about to use it.
  bool has_ticket_from(const Address& source) const noexcept;
  void drop_tickets_from(const Address& source) noexcept;

 private:
  static constexpr size_t kMaxKnocks = 4;

  struct Knock {  // somebody at the unix socket who has not said Join yet
    ParentOnlyFd socket;
    ControlThread::WatchId watch = 0;
  };
  struct Handshake {
    uint64_t ticket = 0;
    ParentOnlyFd tcp;
    ControlThread::WatchId tcp_watch = 0;
    uint64_t deadline_ns = 0;
    std::array<std::byte, wire::kHelloBytes> bytes{};
    size_t got = 0;
    bool offered = false;
    wire::Hello hello;
    wire::Id128 nonce{};
    ParentOnlyFd door;  // the unix socket under the name that was offered, until one has joined
    ControlThread::WatchId door_watch = 0;
    std::vector<std::unique_ptr<Knock>> knocks;
  };

  void on_arrivals() noexcept;
  void pause_accepting() noexcept;
  void admit(ParentOnlyFd tcp) noexcept;
  void on_tcp(uint64_t ticket) noexcept;
  void on_hello(Handshake& handshake) noexcept;
  Status open_door(Handshake& handshake, wire::Answer& answer) noexcept;
  void on_door(uint64_t ticket) noexcept;
  void on_knock(uint64_t ticket, Knock* knock) noexcept;
  void close_door(Handshake& handshake) noexcept;
  bool names_us(const Address& destination, int tcp_fd) const noexcept;
  void answer(Handshake& handshake, wire::Answer& answer) noexcept;
  void drop(uint64_t ticket) noexcept;
  void set_timer() noexcept;
  void on_timer() noexcept;

  ControlThread& control_;
  ListenerHost& host_;
  const Identity& self_;
  const ListenSpec spec_;
  const LocalEnd end_;
  const Limits limits_;
  ParentOnlyFd socket_;
  ControlThread::WatchId watch_ = 0;
  ControlThread::TimerId resume_timer_ = 0;
  ControlThread::TimerId deadline_timer_ = 0;
  uint32_t next_ticket_ = 1;
  std::map<uint64_t, std::unique_ptr<Handshake>> handshakes_;  // by ticket, so the oldest is first
};

}  // namespace aperture::nic
