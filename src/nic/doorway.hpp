// The door at one TCP port: accepts TCP there, hears a hello, finds the end that it is for, and
// hands out a ticket with which the process behind it may come to a unix socket of ours and open a
// lane.
//
//   accepted -> hello heard -> answered (ticket: nonce, socket name) -> joined -> taken by Open
//                              answered (ticket: nonce) -> stays --------------'
//
// Who shares no memory with us stays on the connection by which it came, and is a peer from then
// on. Who could share it, but for its network namespace, comes to a socket in the directory that
// both have (meeting_directory.hpp), or stays as well.
//
// An endpoint of libfabric has a doorway for itself, with one socket, and is found under index 0.
// Queue pairs share one: a socket on each address of the host, all with the same port number, and
// ends found under the index of the hello's destination. Whose index nobody has yet is asked to
// come again. They listen at all addresses, and serve other hosts at those alone that are named for
// it (serves_other_hosts()): any other connection from elsewhere is closed before a byte of it is
// read. The contexts of a scalable endpoint share one as well, with one socket; they meet endpoints
// of libfabric and their contexts, and never queue pairs of verbs.
//
// Everything here is bounded, for all ends of a doorway together: handshakes in number and in time,
// bytes read to one hello, knocks at one socket name. Where there are too many handshakes, the
// oldest of the user who has most makes room: however many one user begins, those of another come
// to their end. Rubbish ends a handshake and nothing else. Owned by the control thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "nic/control_thread.hpp"
#include "nic/listening_end.hpp"
#include "nic/meeting_directory.hpp"
#include "nic/sockets.hpp"

namespace aperture::nic {

class DoorwayHost {
 public:
  virtual ~DoorwayHost() = default;
  // Whose the socket at `there` is, which has connected to `here`.
  virtual Holder holder_of(const Address& there, const Address& here) noexcept = 0;
  // A hello for this end from a process of that user or host: offered, crossing, wrong_destination,
  // or busy.
  virtual wire::Verdict validate(ListeningEnd& listener, const wire::Hello& hello,
                                 Holder holder) noexcept = 0;
  // Who said that hello, and was told that it stays, is a peer from now on, over that connection;
  // null: it cannot be.
  virtual std::shared_ptr<Peer> on_stays(const wire::Hello& hello, uint64_t ticket,
                                         ParentOnlyFd tcp, Holder holder) noexcept = 0;
  // A process came with the right nonce: it becomes a peer.
  virtual void on_joined(const wire::Hello& hello, const wire::Join& join, ParentOnlyFd socket,
                         const Credentials& credentials) noexcept = 0;
  // The ticket of that hello was not used.
  virtual void on_ticket_lost(ListenerId listener, const wire::Hello& hello) noexcept = 0;
};

using DoorwayId = uint32_t;

class Doorway {
 public:
  enum class Kind : uint8_t { of_one, of_queue_pairs, of_contexts };
  struct Limits {
    size_t handshakes = 1024;  // at once
    uint64_t timeout_ns = 5'000'000'000;
  };

  // By exception std::bad_alloc.
  Doorway(ControlThread& control, DoorwayHost& host, const Identity& self, DoorwayId id, Kind kind,
          std::vector<ParentOnlyFd> sockets, const Limits& limits);
  ~Doorway();
  Doorway(const Doorway&) = delete;
  Doorway& operator=(const Doorway&) = delete;
  // Errors: no_fds, no_memory.
  Status start() noexcept;

  // Whether connections to that address, whatever its index, come here.
  bool is_at(const Address& address) const noexcept;
  // Whether ends with such an index can be here, and come here.
  bool is_for(const Address& end) const noexcept {
    return end.is_queue_pair() == (kind_ == Kind::of_queue_pairs);
  }
  size_t handshakes() const noexcept { return handshakes_.size(); }
  // The end that a hello without a key finds at that address; nullptr: there is none.
  ListeningEnd* end_at(const Address& destination) const noexcept;

  // Errors: addr_in_use (another has the index, and this is no other key of its endpoint),
  // no_memory. The end outlives its time here.
  Status add_end(ListeningEnd& end) noexcept;
  // Its handshakes end with it, in silence.
  void remove_end(const ListeningEnd& end) noexcept;

  static DoorwayId doorway_of(uint64_t ticket) noexcept {
    return static_cast<DoorwayId>(ticket >> 32);
  }
  struct UsedTicket {
    ListenerId end = 0;               // that it is for; 0: it is not valid
    wire::Statement statement;        // what the two sides have to prove
    bool is_from_its_source = false;  // its hello came from the endpoint's IP, in another namespace
  };
  // Takes the ticket that Open presents (right nonce, right process, right endpoints): used up
  // then.
  UsedTicket take_ticket(const wire::Open& open, const wire::Id128& incarnation) noexcept;
  // That ticket is not going to be used; one that was is nothing to us any more.
  void drop(uint64_t ticket) noexcept;
  // Somebody at that address has a ticket to that end, and may be about to use it.
  bool has_ticket(ListenerId to, const Address& source) const noexcept;

 private:
  static constexpr size_t kMaxKnocks = 4;

  struct Door {  // a listening socket
    ParentOnlyFd socket;
    Address address;
    ControlThread::WatchId watch = 0;
  };
  struct Knock {  // somebody at the unix socket who has not said Join yet
    ParentOnlyFd socket;
    ControlThread::WatchId watch = 0;
  };
  using CountByUser = std::map<Holder, size_t>;
  struct Counted {  // for as long as it lives
    Counted(CountByUser& counts, Holder user) : all(counts), at(counts.try_emplace(user, 0).first) {
      ++at->second;
    }
    ~Counted() {
      if (--at->second == 0) all.erase(at);
    }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    CountByUser& all;
    const CountByUser::iterator at;
  };
  struct Handshake {
    Handshake(CountByUser& counts, Holder whose) : user(counts, whose) {}
    const Counted user;
    uint64_t ticket = 0;
    ParentOnlyFd tcp;
    ControlThread::WatchId tcp_watch = 0;
    uint64_t deadline_ns = 0;
    std::array<std::byte, wire::kHelloBytes> bytes{};
    size_t got = 0;
    ListenerId offered_to = 0;  // the end that was offered; 0: none so far
    wire::Hello hello;
    wire::Id128 nonce{};
    ParentOnlyFd side_door;  // the unix socket that was offered, until one has joined
    ControlThread::WatchId side_door_watch = 0;
    MeetingDirectory::Name side_door_name;  // if it is in a directory
    bool meets = false;  // it comes, or came, by that: from its source's IP, in another namespace
    std::vector<std::unique_ptr<Knock>> knocks;
    std::weak_ptr<Peer> guest;  // that stayed, and has not used its ticket yet
  };

  void on_arrivals(const Door& door) noexcept;
  bool is_served(int tcp) const noexcept;
  void pause_accepting() noexcept;
  void admit(ParentOnlyFd tcp) noexcept;
  void make_room_for(Holder user) noexcept;
  void on_tcp(uint64_t ticket) noexcept;
  void on_hello(Handshake& handshake) noexcept;
  bool meet(Handshake& handshake, wire::Answer& answer) noexcept;
  void stay(Handshake& handshake, wire::Answer& answer) noexcept;
  wire::Verdict consider(const Handshake& handshake, ListenerId& end) noexcept;
  ListeningEnd* end_for(const wire::Hello& hello) const noexcept;
  void hand_out_ticket(Handshake& handshake, wire::Answer& answer) noexcept;
  Status open_side_door(Handshake& handshake, wire::Answer& answer) noexcept;
  Status listen_at_side_door(Handshake& handshake, const wire::Answer& answer) noexcept;
  void on_side_door(uint64_t ticket) noexcept;
  void on_knock(uint64_t ticket, Knock* knock) noexcept;
  void close_side_door(Handshake& handshake) noexcept;
  void answer(Handshake& handshake, wire::Answer& answer) noexcept;
  void end_in_silence(Handshake& handshake) noexcept;
  void set_timer() noexcept;
  void on_timer() noexcept;

  ControlThread& control_;
  DoorwayHost& host_;
  const Identity& self_;
  const DoorwayId id_;
  const Kind kind_;
  const Limits limits_;
  std::vector<Door> doors_;
  std::multimap<uint16_t, ListeningEnd*> ends_;  // by index; several are the keys of one endpoint
  ControlThread::TimerId resume_timer_ = 0;
  ControlThread::TimerId deadline_timer_ = 0;
  uint32_t next_ticket_ = 1;
  CountByUser by_user_;                                        // of handshakes_
  std::map<uint64_t, std::unique_ptr<Handshake>> handshakes_;  // by ticket, so the oldest is first
};

}  // namespace aperture::nic
