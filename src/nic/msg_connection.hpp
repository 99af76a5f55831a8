// The connection of a connected endpoint: what the application asks of first contact, what that
// answers, and the state between (connection_state.hpp). fi_cm(3).
//
// connect(), accept() and close() are called without the engine's lock, by one thread at a time;
// state() and why_not() by any thread; over() and shut_down() with the lock. ContactEvents come on
// the control thread, which tells the door at once, so that an application that only waits for
// events gets them, and posts to the engine what LaneEvents has to be told. There is one lane at
// most in the life of a connection. A send that finds it not handed over yet is told `again`; the
// poll that follows hands it over.
#pragma once

#include <atomic>
#include <memory>

#include "nic/connection_state.hpp"
#include "nic/endpoint.hpp"
#include "nic/lane_holder.hpp"

namespace aperture::nic {

// What becomes of a connection. Called on the control thread, or by whoever progresses the engine.
class ConnectionEvents {
 public:
  virtual ~ConnectionEvents() = default;
  // `data` is what the other side accepted with; empty at the side that accepted.
  virtual void on_connected(const wire::PrivateData& data) noexcept = 0;
  // The connect came to nothing. `data`: what the application there said; nullptr if it was not it.
  virtual void on_refused(Errc why, const wire::PrivateData* data) noexcept = 0;
  // Once at most: the other side has shut down or is lost; Errc::ok: we have shut down.
  virtual void on_shut_down(Errc why) noexcept = 0;
};

class MsgConnection final : private ContactEvents {
 public:
  // request: to be accepted, and peer is who asks; 0: it will connect. By exception std::bad_alloc.
  MsgConnection(const EndpointOptions& options, ConnectionEvents& events, LaneEvents& lanes,
                RequestId request, const Address& peer);

  // One that will connect gets its address here. Errors: those of Contact::listen.
  Status listen() noexcept;
  // As of MsgEndpoint.
  Status connect(const Address& remote, const wire::PrivateData& data) noexcept;
  Status accept(const wire::PrivateData& data) noexcept;
  // By ourselves: no lane is handed over any more. False: it was over already, or never there.
  // Engine's lock held.
  bool shut_down() noexcept;
  // After that: the door is told too. Lock not held.
  void tell_own_end() noexcept { events_.on_shut_down(Errc::ok); }
  // The other side has shut down, or the lane is lost: the door is told, unless it was before.
  void over(Errc why) noexcept;
  // Nobody is told anything from here on.
  void close() noexcept;

  Connection state() const noexcept {
    // SYNC POINT: connection: the peer's address is there once it is connected
    return state_.load(std::memory_order_acquire);
  }
  // There is no lane: why, or `again` if it is about to come.
  [[gnu::cold]] Status why_not() const noexcept;
  bool accepts() const noexcept { return accepts_; }
  const Address& local() const noexcept { return spec_.local; }
  const Address& peer() const noexcept { return peer_; }

 private:
  void on_lane_up(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept override;
  void on_connect_failed(const Address& remote, Errc why) noexcept override;
  void on_lane_down(link::Lane* lane, Errc why) noexcept override;
  void on_connected(const Address& remote, std::unique_ptr<link::Lane> lane,
                    const wire::PrivateData& data) noexcept override;
  void on_refused(const wire::PrivateData& data) noexcept override;
  bool advance(ConnectionEvent event) noexcept;
  void fail(Errc why, const wire::PrivateData* data) noexcept;

  Engine& engine_;
  ConnectionEvents& events_;
  LaneEvents& lanes_;
  ListenSpec spec_;    // what we are to first contact
  RequestId request_;  // 0 once answered; who opened us refuses it if it never is
  const bool accepts_;
  Address peer_;
  ListenerId listener_ = 0;  // 0: none yet
  std::atomic<Connection> state_{Connection::unconnected};
  std::atomic<bool> lane_coming_{false};  // handed to the engine, which has not taken it yet
  const link::Lane* lane_ = nullptr;      // that was handed over; guarded by the engine's lock
  bool closed_ = false;                   // by our own shut_down(); likewise
  std::shared_ptr<bool> alive_;  // false once closed, for work posted to the engine; likewise
};

}  // namespace aperture::nic
