// The processes that this one talks to: see peers.hpp.
#include "nic/peers.hpp"

#include <algorithm>
#include <cassert>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "nic/closer.hpp"

namespace aperture::nic {

namespace {

// Something has become pending, or moved, within so long:
constexpr uint64_t kStirringNs = 1000 * kNsPerMs;
constexpr uint64_t kWatchStirringNs = 1 * kNsPerMs;     // and is pending
constexpr uint64_t kWatchRecentNs = 4 * kNsPerMs;       // and nothing is
constexpr uint64_t kWatchLongPendingNs = 8 * kNsPerMs;  // it is pending longer than that
constexpr uint64_t kWatchShare = 20;  // the watch takes at most 1/20 of the thread's time
constexpr uint64_t kDetachAgainNs = 5 * kNsPerMs;
// A peer's socket, twice, and its stat file.
constexpr Holding kHeldForPeer{.descriptors = 3, .bytes = 0};

}  // namespace

std::shared_ptr<HostPeer> Peers::make(ParentOnlyFd socket, const Credentials& credentials) {
  SegmentsHost& segments = *this;
  auto peer = std::make_shared<HostPeer>(context_, segments, std::move(socket), credentials);
  const bool is_behind = !peer->may_ask_at_once() && is_behind_with(credentials.uid);
  if (!is_behind && peer->may_hold(kHeldForPeer)) return peer;
  APERTURE_WARN(
      "%s is turned away: that user's processes hold as many of our descriptors as they may; raise "
      "the limit (ulimit -n) if they are many",
      peer->name().c_str());
  return nullptr;
}

std::shared_ptr<StreamPeer> Peers::make(ParentOnlyFd tcp, const wire::Id128& incarnation,
                                        Holder holder, uint64_t ticket) const {
  auto peer = std::make_shared<StreamPeer>(context_, std::move(tcp), incarnation, holder, ticket);
  // what we asked for ourselves is counted for nobody, nor is a process of our own user
  const bool is_counted = ticket != 0 && holder != context_.self.uid;
  if (!is_counted || peer->may_hold(StreamPeer::kHolding)) return peer;
  APERTURE_WARN(
      "%s is turned away: that host, or user, holds as many of our descriptors or as much memory "
      "as "
      "it may; raise the limits (ulimit -n, ulimit -v) if it has many endpoints",
      peer->name().c_str());
  return nullptr;
}

bool Peers::has_place_for(Holder user) const noexcept {
  if (user == kNobody || user == context_.self.uid) return true;
  const bool is_of_this_host = user == static_cast<uid_t>(user);
  if (is_of_this_host && is_behind_with(static_cast<uid_t>(user))) return false;
  return context_.shares.has_room(user, kHeldForPeer);
}

void Peers::adopt(std::shared_ptr<Peer> peer) {
  peers_.push_back(std::move(peer));
  // whoever has not joined and opened a lane by then will not: it must not cost us a descriptor
  peers_.back()->open_within(limits_.timeout_ns);
}

bool Peers::has(const wire::Id128& incarnation) const noexcept {
  return find(incarnation, [](const HostPeer&) { return true; }) != nullptr;
}

std::shared_ptr<HostPeer> Peers::find_at(const Address& remote) const noexcept {
  return find_process([&](const HostPeer& peer) { return peer.ports.has(remote); });
}

void Peers::remove(Peer& peer) noexcept {
  assert(peer.is_down());
  std::erase(peers_, peer.shared_from_this());
}

void Peers::take_over(WatchedSegments segments) noexcept {
  resting_.splice(resting_.end(), segments);
  if (!resting_.empty() && rest_timer_ == 0)
    rest_timer_ = context_.control.add_timer(now_ns(), [this] { detach_resting(); });
}

Peers::Count Peers::count() const noexcept {
  Count c{peers_.size(), 0, resting_.size()};
  for (const auto& peer : peers_) c.lanes += peer->lanes().size();
  return c;
}

// --- the watch -----------------------------------------------------------------------------------

void Peers::watch(link::Lane& lane) noexcept {
  lane.watch = this;
  keep_watch();
}

// Any thread.
void Peers::wake() noexcept {
  if (rests_.exchange(false)) context_.control.post([this] { keep_watch(); });
}

void Peers::keep_watch() noexcept {
  rests_.store(false, std::memory_order_relaxed);  // relaxed: our own; others only take it back
  last_stir_ns_ = now_ns();
  if (watch_timer_ != 0) return;
  watch_timer_ = context_.control.add_timer(last_stir_ns_ + kWatchStirringNs,
                                            [this] { watch_over_pending(); });
}

void Peers::watch_over_pending() noexcept {
  watch_timer_ = 0;
  const uint64_t began = now_ns();
  Peer::Pending pending;
  bool lanes = false;
  for (size_t i = peers_.size(); i-- != 0;) {  // one that is found dead leaves the list
    const std::shared_ptr<Peer> peer = peers_[i];
    const Peer::Pending more = peer->look_after_pending();
    pending = {pending.any || more.any, pending.stirs || more.stirs};
    lanes = lanes || (peer->is_process() && !peer->lanes().empty());
    assert(i <= peers_.size());
  }
  if (!lanes) return;  // the next lane starts it again
  const uint64_t now = now_ns();
  if (pending.stirs) last_stir_ns_ = now;
  const bool stirring = now - last_stir_ns_ < kStirringNs;
  if (!pending.any && !stirring && rest()) return;
  uint64_t pause = kWatchLongPendingNs;
  if (stirring) pause = pending.any ? kWatchStirringNs : kWatchRecentNs;
  pause = std::max(pause, (now - began) * kWatchShare);
  watch_timer_ = context_.control.add_timer(now + pause, [this] { watch_over_pending(); });
}

// relaxed, both: ordered by the barriers of PendingWatch::on_pending()
bool Peers::is_anything_pending() noexcept {
  for (const auto& peer : peers_) {
    if (!peer->is_process()) continue;
    for (const auto& [key, lane] : peer->lanes()) {
      if (lane->lane != nullptr && lane->lane->pending.load(std::memory_order_relaxed) != 0) {
        return true;
      }
    }
  }
  return false;
}

// True: wake() is called for what becomes pending.
bool Peers::rest() noexcept {
  if (!context_.self.heavy_barriers) return false;
  // SYNC POINT: watch-rests
  rests_.store(true, std::memory_order_relaxed);
  heavy_barrier();
  if (!is_anything_pending()) return true;
  // whoever saw the flag has posted: that finds it taken back, or us watching
  rests_.store(false, std::memory_order_relaxed);
  return false;
}

void Peers::detach_resting() noexcept {
  using link::shm::Side;
  rest_timer_ = 0;
  const size_t gone = std::erase_if(resting_, [&](const auto& segment) {
    const Side theirs = segment->side() == Side::creator ? Side::attacher : Side::creator;
    return context_.keys.accessors().detach(segment->slots_of(theirs));
  });
  if (gone != 0) context_.host.on_detached();
  if (resting_.empty()) return;
  rest_timer_ = context_.control.add_timer(now_ns() + kDetachAgainNs, [this] { detach_resting(); });
}

}  // namespace aperture::nic
