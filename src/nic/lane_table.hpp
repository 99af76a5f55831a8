// Which lane is up for which pair of endpoints.
//
// One pair has one lane: one that arrives where another is up replaces it. Here the owner of the
// end is told, and the lane changes hands: it is the owner's from up() until close(), and its
// record the table's. Owned by the control thread.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>

#include "nic/listeners.hpp"
#include "nic/peers.hpp"

namespace aperture::nic {

class LaneTable {
 public:
  // They outlive it.
  explicit LaneTable(Listeners& listeners) noexcept : listeners_(listeners) {}

  bool is_up(const EndPair& pair) const noexcept { return current_.contains(pair); }
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
  void forget_current(const PeerLane& record) noexcept;

  Listeners& listeners_;
  std::map<EndPair, std::shared_ptr<PeerLane>> current_;  // the lane that is up for a pair
  std::unordered_map<link::Lane*, std::shared_ptr<PeerLane>> by_lane_;
};

}  // namespace aperture::nic
