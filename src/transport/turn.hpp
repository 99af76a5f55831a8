// A responder's look at its request ring, and what became of the request at which it stopped.
//
// The request either goes on with the next poll, since this look has done enough; or it is held:
// nothing is to be done about it until what it waits for is there (room for its answer, the end of
// a claim, what the application has to give). A held head does not count as an arrival: an engine
// that has nothing else to do may sleep. Guarded by the engine's lock.
#pragma once

#include <cstdint>

#include "ring/cell.hpp"

namespace aperture::transport {

class Turn {
 public:
  // Another look begins.
  void begin() noexcept { over_ = false; }
  // Enough for this look: what is at the head goes on with the next.
  void end() noexcept { over_ = true; }
  bool is_over() const noexcept { return over_; }
  // The head of the ring stays where it is. True: it goes on with the next look; false: it is held.
  bool leave(const ring::CellReader& requests) noexcept {
    if (!over_) held_at_ = requests.pos();
    return over_;
  }
  // The head of the ring was looked at, and is held.
  bool is_held(const ring::CellReader& requests) const noexcept {
    return held_at_ == requests.pos() && requests.ready();
  }
  // Another lane: nothing of its ring was looked at.
  void forget() noexcept { held_at_ = kNowhere; }

 private:
  static constexpr uint64_t kNowhere = ~uint64_t{0};

  bool over_ = false;
  uint64_t held_at_ = kNowhere;  // where the head was when it was left there
};

}  // namespace aperture::transport
