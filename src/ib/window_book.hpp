// The memory windows and regions of a context that other objects name by number: a remote
// invalidation says an rkey, an XRC request a receive queue.
//
// Guarded by the engine lock; entered and removed when the objects are made and destroyed, never on
// the data path.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/errc.hpp"
#include "base/number_map.hpp"
#include "protect/window.hpp"

namespace aperture::ib {

class QueuePair;
class ReceiveQueue;

class WindowBook {
 public:
  protect::WindowSet windows;

  // Regions that windows may be bound to, by the number of their keys.
  Status enter_region(uint32_t key, const protect::BindableRegion& region) noexcept;
  void remove_region(uint32_t key) noexcept { regions_.remove(protect::number_of_key(key)); }
  // The one that has that very key now: it had another tag while it was registered elsewhere.
  const protect::BindableRegion* find_region(uint32_t key) const noexcept;

  // XRC: the receive queue of that number in that domain, or nullptr.
  Status enter_srq(uint32_t number, uint32_t xrc_domain, ReceiveQueue& srq) noexcept;
  void remove_srq(uint32_t number) noexcept { srqs_.erase(number); }
  // That queue pair, which may wait for a receive of any of them, is going.
  void forget_waiter(const QueuePair& qp) noexcept;
  ReceiveQueue* find_srq(uint32_t number, uint32_t xrc_domain) const noexcept {
    const auto it = srqs_.find(number);
    return it == srqs_.end() || it->second.domain != xrc_domain ? nullptr : it->second.queue;
  }

 private:
  struct Shared {
    uint32_t domain;
    ReceiveQueue* queue;
  };
  NumberMap<const protect::BindableRegion> regions_;
  std::unordered_map<uint32_t, Shared> srqs_;  // by number
};

}  // namespace aperture::ib
