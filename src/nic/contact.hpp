// First contact: how an endpoint finds the process behind another endpoint's address, and how the
// two get a lane. ARCHITECTURE.md, "Ideas, each with one home".
//
// Every connection begins with TCP to exactly (IP, port), so only the port's owner can offer
// anything; but for the next ones to a process of our user that has offered something there. The
// hellos carry boot id, network namespace, a 128-bit incarnation id, a fresh abstract socket name
// and a nonce; on the same host both move to that socket, the nonce is presented, both check
// SO_PEERCRED, and the lane is opened in the segment of the process pair. In another network
// namespace the socket is one in a directory that both have (meeting_directory.hpp). Elsewhere, and
// without that, the TCP connection stays and becomes the lane. Everything here is done by the
// control thread; the calls below only hand it work, from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/address.hpp"
#include "base/secret.hpp"
#include "link/lane.hpp"
#include "protect/key_table.hpp"
#include "wire/hello.hpp"

namespace aperture::link::tcp {
class Mover;
}  // namespace aperture::link::tcp
namespace aperture::link::faulty {
class Mover;
enum class Language : uint8_t;
}  // namespace aperture::link::faulty

namespace aperture::nic {

// A request that an application has to answer: what its connector said, and how it is called here.
using RequestId = uint64_t;  // never 0
struct ConnectionRequest {
  RequestId id = 0;
  Address local;   // the address that it came to
  Address remote;  // of the endpoint that asks
  wire::PrivateData data;
};

// What contact tells an endpoint. Called on the control thread: hand over to the engine and return.
class ContactEvents {
 public:
  virtual ~ContactEvents() = default;
  // A lane to `remote` is open, whoever asked for it. It replaces any connect() under way to there.
  virtual void on_lane_up(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept = 0;
  // The connect() to `remote` came to nothing: refused, unreachable, timed_out, protocol, no_fds,
  // access_denied (it has another authorization key)...
  virtual void on_connect_failed(const Address& remote, Errc why) noexcept = 0;
  // The other side closed the lane (shut_down) or died (peer_lost); lane->lost() is true already.
  // What it had published before can still be read.
  virtual void on_lane_down(link::Lane* lane, Errc why) noexcept = 0;

  // Of a listener for requests: one has come; and: nobody waits for the answer any more.
  virtual void on_request(const ConnectionRequest& /*request*/) noexcept {}
  virtual void on_request_gone(RequestId /*id*/) noexcept {}
  // Of connected endpoints, instead of on_lane_up and beside on_connect_failed: the request was
  // accepted, or refused by the application at the other side.
  virtual void on_connected(const Address& /*remote*/, std::unique_ptr<link::Lane> /*lane*/,
                            const wire::PrivateData& /*data*/) noexcept {}
  virtual void on_refused(const wire::PrivateData& /*data*/) noexcept {}
};

using ListenerId = uint32_t;
using PortId = uint32_t;

// What a listener is there for.
enum class ListenFor : uint8_t {
  lanes,     // a datagram endpoint: whoever comes gets a lane
  requests,  // a passive endpoint: the application answers
  nobody,    // one that connects only: the address is its own, and nobody may come to it
};

struct ListenSpec {
  Address local;              // port 0: any; with an index: at an open port
  bool at_open_port = false;  // also without one
  uint32_t domain = 0;        // protection domain that requests of peers meet here
  int doorbell_fd = -1;       // of the endpoint's engine; outlives the listener; requests: none
  std::shared_ptr<link::tcp::Mover> mover;      // of that engine, likewise
  std::shared_ptr<link::faulty::Mover> faults;  // of that engine, too; null: none are injected
  link::faulty::Language language{};            // of its queue pairs: request, if it is not said
  ContactEvents* events = nullptr;
  ListenFor what = ListenFor::lanes;
  size_t backlog = 0;  // requests: so many may wait for their answers; the others try again
  std::shared_ptr<const Secret> auth_key;  // null: none; only endpoints with the same one come
  ListenerId beside = 0;  // another key of the endpoint that has this listener; 0: its first
};

class Contact {
 public:
  virtual ~Contact() = default;

  // The process's one, another in a forked child; starts the control thread at first use and lives
  // until the process ends.
  // Errors: no_fds, no_memory.
  static Result<Contact*> instance() noexcept;

  // Listens on spec.local (exactly that address). The address with its port is in `bound`.
  // With an index it opens no socket: who says hello to that address (or, with the wildcard IP, to
  // that port and index) at an open port of this process comes to it. Not for requests, and at a
  // port of queue pairs only queue pairs come. With `beside` it has the address and the socket of
  // that listener: whose hello speaks for this key comes here. Errors: addr_in_use (also the
  // index), addr_not_avail (also: the port is not open, or not on that IP), no_fds, no_memory,
  // invalid; no_entry (there is no such listener as `beside`).
  virtual Result<ListenerId> listen(const ListenSpec& spec, Address& bound) noexcept = 0;
  // Stops listening; pending connects of this listener are dropped. No upcall runs or comes after
  // it has returned. Not from an upcall.
  virtual void unlisten(ListenerId id) noexcept = 0;
  // One TCP port number on all of these addresses, which queue pairs share. Whose index nobody
  // listens for is told to come again. Errors: addr_in_use, addr_not_avail, no_fds, no_memory,
  // invalid.
  virtual Result<PortId> open_port(std::span<const Address> ips, uint16_t& port) noexcept = 0;
  // The same for the contexts of a scalable endpoint: at exactly that address, as listen() has it.
  virtual Result<PortId> open_context_port(const Address& at, Address& bound) noexcept = 0;
  // Nobody can listen there any more; the sockets close with the last listener that does.
  virtual void close_port(PortId id) noexcept = 0;
  // Asks for a lane from the listener's endpoint to `remote`. One of on_lane_up and
  // on_connect_failed follows, within so many ns (0: the default, 5 s). Asking again while under
  // way, or while a lane is up, changes nothing. The endpoint's own address fails with invalid:
  // link/loopback joins an endpoint to itself. So does a queue pair's, for what is none.
  virtual void connect(ListenerId id, const Address& remote, uint64_t within_ns = 0) noexcept = 0;
  // Asks the passive endpoint at `remote` for a connection, on behalf of a listener for nobody. One
  // of on_connected, on_refused and on_connect_failed follows, however long the application there
  // takes. unlisten() withdraws. Errors: no_memory, and nothing follows.
  virtual Status request(ListenerId id, const Address& remote,
                         const wire::PrivateData& data) noexcept = 0;
  // Answers a request: a lane to spec.events (spec.local is not looked at), whose number is in
  // `id` and whose end is unlisten(id). on_connected comes before it returns. Errors: no_entry
  // (nobody waits any more), access_denied (the authorization key is another than that of the
  // request), no_fds, no_memory. Not from an upcall.
  virtual Status accept(RequestId request, const ListenSpec& spec, const wire::PrivateData& data,
                        ListenerId& id) noexcept = 0;
  virtual void refuse(RequestId request, const wire::PrivateData& data) noexcept = 0;
  // The request outlives the listener that it came to: somebody is about to answer it.
  virtual void keep_request(RequestId request) noexcept = 0;
  virtual void set_backlog(ListenerId id, size_t backlog) noexcept = 0;
  // Gives a lane back: the other side is told and sees it down; what we published it can still
  // read. on_lane_down() of that lane may be under way when this is called: compare it, do not
  // follow it.
  virtual void close_lane(std::unique_ptr<link::Lane> lane) noexcept = 0;

  // The key table of this process, which peers of the same uid map.
  virtual protect::KeyTable& keys() noexcept = 0;
};

}  // namespace aperture::nic
