// The unix socket of a process pair: who is at the other end, the packets between the two, and how
// its end is noticed.
//
//   begin() or answer()  -->  joined  -->  down
//
// The process is known by SO_PEERCRED, and by the nonce that went to the owner of a TCP port.
// Packets that the socket does not take at once wait in a bounded outbox. What they mean is the
// host's. Owned by the control thread.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "nic/control_thread.hpp"
#include "nic/identity.hpp"
#include "nic/liveness.hpp"
#include "nic/sockets.hpp"
#include "wire/hello.hpp"

namespace aperture::nic {

class PeerChannelHost {
 public:
  virtual ~PeerChannelHost() = default;
  // Holds the host, and the channel in it, while upcalls run.
  virtual std::shared_ptr<void> keep() noexcept = 0;
  // Connector: the other side has proved to be the one that was expected.
  virtual void on_joined() noexcept = 0;
  // One packet after joining. False: it breaks the protocol.
  virtual bool on_packet(wire::PeerMessage kind, Packet& packet) noexcept = 0;
  // All that was there has been read.
  virtual void on_drained() noexcept = 0;
  // The other side is gone, or talks nonsense. The host closes the channel.
  virtual void on_channel_lost(Errc why) noexcept = 0;
};

class PeerChannel {
 public:
  // By exception std::bad_alloc.
  PeerChannel(ControlThread& control, const Identity& self, PeerChannelHost& host,
              ParentOnlyFd socket, const Credentials& credentials);
  ~PeerChannel();
  PeerChannel(const PeerChannel&) = delete;
  PeerChannel& operator=(const PeerChannel&) = delete;

  // Connector: presents `nonce`; on_joined() follows when the other side has presented `expected`
  // and is that incarnation. Errors: no_memory, peer_lost.
  Status begin(const wire::Id128& nonce, const wire::Id128& expected,
               const wire::Id128& incarnation) noexcept;
  // Acceptor: the other side has presented our nonce; presents its own. Errors: as above.
  Status answer(const wire::Join& join, const wire::Id128& nonce) noexcept;
  // Nothing is sent or heard from here on.
  void close() noexcept;

  // The descriptors are copied if they have to wait. Errors: peer_lost, no_space (it reads
  // nothing), no_fds, no_memory.
  Status send(const wire::PeerPacket& packet, std::span<const int> fds) noexcept;
  // The socket once more, for whoever rings the other side through it.
  ParentOnlyFd copy_of_socket() const noexcept;

  bool joined() const noexcept { return joined_; }
  bool is_down() const noexcept { return down_; }
  const wire::Id128& incarnation() const noexcept { return incarnation_; }
  pid_t pid() const noexcept { return credentials_.pid; }
  uid_t uid() const noexcept { return credentials_.uid; }
  bool same_user() const noexcept { return same_user_; }
  bool is_self() const noexcept { return credentials_.pid == self_.pid; }
  bool alive() const noexcept { return liveness_.alive(); }
  // Known once it has joined: senders need full fences; and one-sided copies are possible (same
  // user, pid namespace and time namespace, and neither side denies them).
  bool fence_sends() const noexcept { return fence_sends_; }
  bool direct_possible() const noexcept { return direct_possible_; }

 private:
  struct Outgoing {
    wire::PeerPacket packet;
    std::vector<UniqueFd> fds;
  };
  Status watch() noexcept;
  void on_events() noexcept;
  bool handle(Packet& packet) noexcept;
  bool handle_joined(const Packet& packet) noexcept;
  void learn(const wire::Join& join) noexcept;
  wire::Join introduction(const wire::Id128& nonce) const noexcept;
  Status send_later(const wire::PeerPacket& packet, std::span<const int> fds);
  void flush() noexcept;
  void flush_soon() noexcept;

  ControlThread& control_;
  const Identity& self_;
  PeerChannelHost& host_;
  ParentOnlyFd socket_;
  const Credentials credentials_;
  const bool same_user_;
  ControlThread::WatchId watch_ = 0;
  ControlThread::TimerId flush_timer_ = 0;
  std::deque<Outgoing> outbox_;  // bounded: see send()

  wire::Id128 incarnation_{};
  wire::Id128 expected_nonce_{};
  bool joined_ = false;
  bool down_ = false;
  bool fence_sends_ = false;
  bool direct_possible_ = false;
  Liveness liveness_;
};

}  // namespace aperture::nic
