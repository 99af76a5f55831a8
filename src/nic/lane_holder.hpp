// A lane on its way from first contact to an engine, and who takes it there. It goes back to
// contact if its engine ends without having run what was posted. One owner at a time.
#pragma once

#include <memory>
#include <utility>

#include "link/lane.hpp"
#include "nic/contact.hpp"

namespace aperture::nic {

// What the connection of a queue pair tells it: with the engine's lock, by whoever progresses it.
class LaneEvents {
 public:
  virtual ~LaneEvents() = default;
  // The lane is the callee's, also when it is down.
  virtual void on_lane(std::unique_ptr<link::Lane> lane) noexcept = 0;
  // The connect came to nothing: refused, timed_out (the peer did not become ready in time),
  // unreachable, protocol, no_fds...
  virtual void on_no_lane(Errc why) noexcept = 0;
  // The lane that was handed over is lost: the peer has given it back (shut_down) or died
  // (peer_lost), or a fault that the user asked for (link/faulty) has ended it: those, timed_out or
  // canceled. What it had published can still be read.
  virtual void on_lane_down(Errc why) noexcept = 0;
};

struct LaneHolder {
  LaneHolder(Contact& to, std::unique_ptr<link::Lane> made) noexcept
      : contact(&to), lane(std::move(made)) {}
  LaneHolder(LaneHolder&&) noexcept = default;
  LaneHolder& operator=(LaneHolder&&) = delete;
  ~LaneHolder() {
    if (lane != nullptr) contact->close_lane(std::move(lane));
  }
  Contact* contact;
  std::unique_ptr<link::Lane> lane;
};

}  // namespace aperture::nic
