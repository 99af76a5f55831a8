// Which lane is up for which pair of endpoints.
//
// One pair has one lane: one that arrives where another is up replaces it. Here the owner of the
// end is told, and the lane changes hands: it is the owner's from up() until close(), and its
// record the table's. Owned by the control thread.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>

#include "link/faulty/lane.hpp"
#include "nic/control_thread.hpp"
#include "nic/listeners.hpp"
#include "nic/peers.hpp"

namespace aperture::nic {

class LaneTable final : private link::faulty::LaneHost {
 public:
  // They outlive it.
  LaneTable(ControlThread& control, Listeners& listeners) noexcept
      : control_(control), listeners_(listeners) {}

  bool is_up(const EndPair& pair) const noexcept { return current_.contains(pair); }
  // Likewise, and the other end is that process's.
  bool is_up_with(const EndPair& pair, const wire::Id128& incarnation) const noexcept;
  // data: what the application there said; null: a datagram endpoint's lane. If its end is gone it
  // is closed again. Errors: no_memory; the other side is told that the lane is closed, nothing is
  // noted, and nobody here was told of it.
  Status up(const std::shared_ptr<PeerLane>& record, std::unique_ptr<link::Lane> lane,
            const wire::PrivateData* data = nullptr) noexcept;
  // Its end is told, once.
  void down(PeerLane& record, Errc why) noexcept;
  // Its owner gives it back; a loopback lane, which is in no table, just ends.
  void close(std::unique_ptr<link::Lane> lane) noexcept;
  // That end is about to go: its pairs have no lane any more. The lanes themselves come to close().
  void forget_end(ListenerId id) noexcept;

 private:
  // Any thread: a fault that the user asked for has ended it.
  void on_lane_struck(link::Lane& lane, Errc why) noexcept override;
  // With the faults that the user asks for, if any. By exception std::bad_alloc.
  void add_faults(const ListenSpec& spec, std::unique_ptr<link::Lane>& lane);
  void forget_current(const PeerLane& record) noexcept;

  ControlThread& control_;
  Listeners& listeners_;
  std::map<EndPair, std::shared_ptr<PeerLane>> current_;  // the lane that is up for a pair
  std::unordered_map<link::Lane*, std::shared_ptr<PeerLane>> by_lane_;  // as its owner has it
};

}  // namespace aperture::nic
