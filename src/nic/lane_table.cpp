// Lanes that come up, go down and are given back: see lane_table.hpp.
#include "nic/lane_table.hpp"

#include <cassert>
#include <new>
#include <utility>

#include "base/no_throw.hpp"
#include "link/faulty/setting.hpp"

namespace aperture::nic {

namespace {

// What it stands on is its peer's to close.
std::unique_ptr<link::Lane> bare(std::unique_ptr<link::Lane> lane) noexcept {
  auto inner = lane->take_inner();
  return inner != nullptr ? std::move(inner) : std::move(lane);
}

}  // namespace

bool LaneTable::is_up_with(const EndPair& pair, const wire::Id128& incarnation) const noexcept {
  const auto it = current_.find(pair);
  return it != current_.end() && it->second->peer != nullptr &&
         it->second->peer->incarnation() == incarnation;
}

Status LaneTable::up(const std::shared_ptr<PeerLane>& record, std::unique_ptr<link::Lane> lane,
                     const wire::PrivateData* data) noexcept {
  assert(record->peer != nullptr && record->lane == lane.get());
  const ListeningEnd* const listener = listeners_.find(record->listener);
  std::shared_ptr<PeerLane> old;
  const Status noted = no_throw([&] {
    if (listener == nullptr) return;
    record->peer->begin_watch(*lane);
    if (listener->spec.faults != nullptr) [[unlikely]]
      add_faults(listener->spec, lane);
    record->owned = lane.get();
    by_lane_.emplace(lane.get(), record);
    old = std::exchange(current_[{record->listener, record->remote}], record);
  });
  if (listener == nullptr || !noted) {
    by_lane_.erase(lane.get());
    record->peer->close_here(*record, bare(std::move(lane)));
    return noted;
  }
  if (old != nullptr) {
    const bool same =
        old->peer != nullptr && old->peer->incarnation() == record->peer->incarnation();
    down(*old, same ? Errc::shut_down : Errc::peer_lost);
  }
  ContactEvents& events = listener->events();
  if (data != nullptr) {
    events.on_connected(record->remote, std::move(lane), *data);
  } else {
    events.on_lane_up(record->remote, std::move(lane));
  }
  return {};
}

void LaneTable::down(PeerLane& record, Errc why) noexcept {
  if (record.lane == nullptr || record.down) return;
  record.owned->mark_lost();
  record.down = true;
  forget_current(record);
  const ListeningEnd* const listener = listeners_.find(record.listener);
  if (listener != nullptr) listener->events().on_lane_down(record.owned, why);
}

void LaneTable::close(std::unique_ptr<link::Lane> lane) noexcept {
  const auto it = by_lane_.find(lane.get());
  if (it == by_lane_.end()) return;
  const std::shared_ptr<PeerLane> record = it->second;
  assert(record->owned == lane.get());
  by_lane_.erase(it);
  forget_current(*record);
  record->lane = record->owned = nullptr;
  if (record->peer != nullptr) record->peer->close_here(*record, bare(std::move(lane)));
}

// --- faults ---

void LaneTable::add_faults(const ListenSpec& spec, std::unique_ptr<link::Lane>& lane) {
  const FaultPlan* const plan = link::faulty::configured();
  assert(plan != nullptr);
  if (!plan->is_of_lanes()) return;
  auto made = link::faulty::FaultyLane::make(
      lane, {plan, link::faulty::next_number(), spec.language, this, spec.faults});
  if (!made) throw std::bad_alloc();
  lane = *std::move(made);
}

// Its owner may give it back meanwhile, which comes here later.
void LaneTable::on_lane_struck(link::Lane& lane, Errc why) noexcept {
  control_.post([this, struck = &lane, why] {
    const auto it = by_lane_.find(struck);
    if (it != by_lane_.end()) down(*it->second, why);
  });
}

void LaneTable::forget_end(ListenerId id) noexcept {
  std::erase_if(current_, [&](const auto& entry) { return entry.first.first == id; });
}

void LaneTable::forget_current(const PeerLane& record) noexcept {
  const auto it = current_.find({record.listener, record.remote});
  if (it != current_.end() && it->second.get() == &record) current_.erase(it);
}

}  // namespace aperture::nic
