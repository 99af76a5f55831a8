// Who looks whether the hosts at the other end of our connections still answer, while anything
// waits for them.
//
// A reset, or an end in order, is told by the stream itself. A host that is cut off says nothing,
// and only who waits can know that an answer is due: so each connection is looked at every kLookNs
// while on any of them something is pending, or was sent and is not acknowledged. That may be an
// answer to the other side: it would hold the connection, since there is no keepalive meanwhile.
// Else the watch rests, and whoever next has something pending, or sends, wakes it: connections
// that are idle cost nothing. Owned by the control thread.
#pragma once

#include <vector>

#include "link/lane.hpp"
#include "nic/control_thread.hpp"

namespace aperture::nic {

class StreamPeer;

class SilenceWatch final : private link::PendingWatch {
 public:
  // can_rest: heavy barriers reach every thread of this process.
  SilenceWatch(ControlThread& control, bool can_rest) noexcept
      : control_(control), can_rest_(can_rest) {}

  // A connection that carries a lane, until remove(). By exception std::bad_alloc.
  void add(StreamPeer& peer, link::Lane& lane);
  void remove(StreamPeer& peer) noexcept;

 private:
  void wake() noexcept override;
  void keep_watch() noexcept;
  void look() noexcept;
  bool is_any_awaiting() const noexcept;
  bool rest() noexcept;

  ControlThread& control_;
  const bool can_rest_;
  std::vector<StreamPeer*> peers_;
  ControlThread::TimerId timer_ = 0;
};

}  // namespace aperture::nic
