// The lane of one connected queue pair (RC, UC, XRC): how it comes, from whichever side asks first,
// and how it goes.
//
// Both sides of a connected queue pair know each other before there is a lane. expect() lets the
// one peer come that was named; connect() asks for the lane itself, at the first operation that
// needs it. Whoever was first, on_lane() follows at both. A lane from anybody else is closed before
// anything is read from it. When a lane is down another may come, if either side asks again.
//
// Guarded by the engine's lock, and called with it, but for expect(), close() and the destructor,
// which wait for the control thread and are called without it, by one thread at a time. The upcalls
// come with the lock, from whoever progresses the engine.
#pragma once

#include <memory>

#include "nic/contact.hpp"
#include "nic/engine.hpp"
#include "nic/lane_holder.hpp"

namespace aperture::nic {

class RcEndpoint final : private ContactEvents {
 public:
  struct Wish {
    Address local;                 // with the queue pair's port and index
    Address remote;                // the only one that may come; local itself: both ends are ours
    protect::DomainId domain = 0;  // that the peer's requests meet
    // A connect() has so long; kLeastConnectNs at least, for it takes turns of two processes.
    uint64_t connect_within_ns = kLeastConnectNs;
  };
  static constexpr uint64_t kLeastConnectNs = 1'000'000'000;

  RcEndpoint(Engine& engine, LaneEvents& events) noexcept : engine_(engine), events_(events) {}
  RcEndpoint(const RcEndpoint&) = delete;
  RcEndpoint& operator=(const RcEndpoint&) = delete;
  ~RcEndpoint() override;

  // From now on the peer may come, and upcalls with it, before this has returned. Whether there is
  // a peer at all, connect() finds out. Lock not held. Errors: bad_state (it is expecting),
  // no_memory, those of Contact::listen.
  Status expect(const Wish& wish) noexcept;
  // Nobody may come, and no upcall comes after it has returned. A lane that was handed over is
  // given back apart, before or after. Nothing to do if it expects nobody. Lock not held.
  void close() noexcept;
  // No upcall comes any more, and a lane that is on its way is given back when it comes; close()
  // follows. Lock held: what is told of nothing can be taken apart under the same lock.
  void ignore_all() noexcept {
    if (expecting_ != nullptr) *expecting_ = false;
  }

  // Lock held. Asks for a lane, unless it is asking already or there is one. Errors: bad_state (it
  // expects nobody), no_memory.
  Status connect() noexcept;
  // What on_lane() brought. Lock held, or after close(). The peer sees it down, and what we had
  // published it can still read.
  void give_back(std::unique_ptr<link::Lane> lane) noexcept;

  const Address& local() const noexcept { return wish_.local; }
  const Address& remote() const noexcept { return wish_.remote; }

 private:
  void on_lane_up(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept override;
  void on_connect_failed(const Address& remote, Errc why) noexcept override;
  void on_lane_down(link::Lane* lane, Errc why) noexcept override;
  Status connect_to_self() noexcept;
  void post_lane(std::unique_ptr<link::Lane> lane) noexcept;
  void hand_over(std::unique_ptr<link::Lane> lane) noexcept;

  Engine& engine_;
  LaneEvents& events_;
  Wish wish_;                         // constant while it expects somebody
  ListenerId listener_ = 0;           // 0: it expects nobody
  bool connecting_ = false;           // connect() has not been answered
  const link::Lane* lane_ = nullptr;  // that was handed over and is not down
  std::shared_ptr<bool> expecting_;   // false once closed, for work posted to the engine
};

}  // namespace aperture::nic
