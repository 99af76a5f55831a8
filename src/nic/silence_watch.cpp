// Looking after hosts that may have been cut off: see silence_watch.hpp.
#include "nic/silence_watch.hpp"

#include <algorithm>
#include <cassert>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "nic/stream_peer.hpp"

namespace aperture::nic {

namespace {

constexpr uint64_t kLookNs = 500'000'000;

}  // namespace

void SilenceWatch::add(StreamPeer& peer, link::Lane& lane) {
  assert(control_.is_current());
  assert(std::find(peers_.begin(), peers_.end(), &peer) == peers_.end());
  peers_.push_back(&peer);
  lane.watch = this;
  keep_watch();
}

void SilenceWatch::remove(StreamPeer& peer) noexcept {
  std::erase(peers_, &peer);
}

// Any thread.
void SilenceWatch::wake() noexcept {
  if (rests_.exchange(false)) control_.post([this] { keep_watch(); });
}

void SilenceWatch::keep_watch() noexcept {
  rests_.store(false, std::memory_order_relaxed);  // relaxed: our own; others only take it back
  if (timer_ == 0) timer_ = control_.add_timer(now_ns() + kLookNs, [this] { look(); });
}

void SilenceWatch::look() noexcept {
  timer_ = 0;
  for (size_t i = peers_.size(); i-- != 0;) {  // one that is found silent leaves the list
    peers_[i]->look_for_silence();
    assert(i <= peers_.size());
  }
  if (peers_.empty() || (!is_any_awaiting() && rest())) return;
  keep_watch();
}

bool SilenceWatch::is_any_awaiting() const noexcept {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const StreamPeer* peer) { return peer->awaits_answer(); });
}

// True: wake() is called for what becomes pending.
bool SilenceWatch::rest() noexcept {
  if (!can_rest_) return false;
  // SYNC POINT: watch-rests; relaxed: the heavy barrier orders it
  rests_.store(true, std::memory_order_relaxed);
  heavy_barrier();
  if (!is_any_awaiting()) return true;
  // whoever saw the flag has posted: that finds it taken back, or us watching
  rests_.store(false, std::memory_order_relaxed);
  return false;
}

}  // namespace aperture::nic
