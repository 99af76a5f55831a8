// What an id and its peer say to each other, by either protocol: to make a connection
// (connection_exchange.hpp), or to resolve a service id (sidr_exchange.hpp). And what the parts of
// an id work on together.
//
// The control thread's own. Whether the state allows a command has been asked before it is given to
// one of these (id.hpp), and a command that returns an error has changed nothing. What the peer
// says, and what becomes of the connection, comes by way of Conversation and Life, each of which
// owns its part of what lies in the core.
#pragma once

#include <memory>
#include <span>

#include "cm/binding.hpp"
#include "cm/conversation.hpp"
#include "cm/event.hpp"
#include "cm/life.hpp"

namespace aperture::cm {

// How long an id waits. Tests wait less.
struct Timeouts {
  uint64_t connect_ns = 20'000'000'000;    // until the answer to a REQ, before an MRA
  uint64_t answer_ns = 120'000'000'000;    // of an application, after an MRA; of the RTU
  uint64_t disconnect_ns = 5'000'000'000;  // of a DREP
  uint64_t timewait_ns = 500'000'000;
  uint64_t request_ns = 5'000'000'000;  // of a REQ on an accepted connection
  // A port where nobody listens is tried again for so long: servers that listen anew between two
  // connections (perftest) are slower than clients that need no fabric to find them.
  uint64_t refused_ns = 1'000'000'000;
  uint64_t sidr_ns = 4'000'000'000;     // of a SIDR REP
  uint64_t ask_again_ns = 250'000'000;  // after who was asked has gone without an answer
};

// Of the connection, as queue pairs need it.
struct Agreed {
  uint32_t remote_qpn = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry_count = 0;
};

struct IdCore {
  IdCore(nic::ControlThread& control, PortSpace space) noexcept
      : life(control), binding(space), talk(control, life, binding) {}
  IdCore(const IdCore&) = delete;
  IdCore& operator=(const IdCore&) = delete;

  Timeouts timeouts;
  Agreed agreed;
  Life life;
  Binding binding;
  Conversation talk;
};

class Exchange {
 public:
  explicit Exchange(IdCore& core) noexcept : core_(core) {}
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // What asks for what connect() wants, and how long its answer may take. Errors: invalid, too_big.
  virtual Result<wire::CmPacket> request(const Params& params) noexcept = 0;
  virtual uint64_t answer_ns() const noexcept = 0;
  // Errors: too_big.
  virtual Status accept(const Params& params) noexcept = 0;
  virtual Status reject(uint32_t reason, std::span<const uint8_t> data) noexcept = 0;
  // The id goes: the other side is told.
  virtual void end() noexcept = 0;

  virtual void on_message(wire::CmKind kind, Connection::Bytes bytes) noexcept = 0;
  virtual void on_lost() noexcept = 0;
  // Nobody could be asked: refused, access_denied, or there is no way there.
  virtual void on_no_peer(Errc why) noexcept = 0;
  virtual void on_expired(State before) noexcept = 0;

 protected:
  State state() const noexcept { return core_.life.state(); }
  // It says what makes no sense in this state.
  void break_off() noexcept;

  IdCore& core_;
};

}  // namespace aperture::cm
