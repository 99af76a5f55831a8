// The connection between an id and its peer, on this host or by a porter on another: made, as often
// as it takes; spoken over; let go.
//
// The control thread's own. Whoever holds it sets what is called before anything begins.
// Invariants: there is one connection at most, and none while it is to be tried again; it is asked
// for only while the id waits for an answer (req_sent, sidr_sent); of being connected, dialled and
// to be tried again it is one at most. After close(), lose() or last
// words nothing of that connection is heard any more.
#pragma once

#include <functional>
#include <memory>

#include "cm/binding.hpp"
#include "cm/connection.hpp"
#include "cm/dial.hpp"
#include "cm/life.hpp"

namespace aperture::cm {

class Farewell;

class Conversation {
 public:
  Conversation(nic::ControlThread& control, const Life& life, Binding& binding) noexcept;
  ~Conversation() { control_.cancel_timer(retry_timer_); }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  // Connects as the binding says and sends this, again where there was no room for it, and for
  // `refused_ns` where nobody listens.
  void ask(const wire::CmPacket& question, uint64_t refused_ns) noexcept;
  // The same question once more, in so long.
  void ask_again_in(uint64_t ns) noexcept;
  // The connection over which a peer has asked.
  void adopt(std::shared_ptr<Connection> connection) noexcept;

  bool is_open() const noexcept { return connection_ != nullptr; }
  // A peer that cannot be told is lost.
  void say(const wire::CmPacket& packet) noexcept;
  // The connection stays until that has arrived (farewell.hpp). Nothing where there is none.
  void say_last(const wire::CmPacket& packet) noexcept;
  void close() noexcept;
  // close(), and on_lost.
  void lose() noexcept;
  // What was said last may still be on its way.
  void part() noexcept;

  std::function<void(wire::CmKind, Connection::Bytes)> on_message;
  std::function<void()> on_lost;         // the peer is gone, or has said what cannot be
  std::function<void(Errc)> on_no_peer;  // nobody could be asked, and it is over

 private:
  void try_to_ask() noexcept;
  Status connect() noexcept;
  Status dial() noexcept;
  void on_dialled(Result<ParentOnlyFd> socket) noexcept;
  Status begin_with(ParentOnlyFd socket) noexcept;
  bool is_asking() const noexcept;
  void on_not_connected(Errc why) noexcept;

  nic::ControlThread& control_;
  Farewell& farewell_;
  const Life& life_;
  Binding& binding_;
  wire::CmPacket question_;  // as often as it takes
  uint64_t refused_until_ns_ = 0;
  nic::ControlThread::TimerId retry_timer_ = 0;
  std::unique_ptr<Dial> dial_;  // on its way to another host
  std::shared_ptr<Connection> connection_;
};

}  // namespace aperture::cm
