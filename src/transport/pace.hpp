// A responder that does not tread on the heels of a stream.
//
// Whoever executes requests faster than they come looks at each cell before it is written, and so
// takes its line away from the sender, who has to fetch it back to write it: both then do no more
// than one request in the time that a line takes from core to core, however little work each is. A
// short rest lets some requests gather, whose lines can be fetched ahead by both sides; they stay
// apart for as long as the sender is not much slower. Where a rest has changed nothing (it is the
// requests that take so long, or they come one by one) the next ones are put off, up to 64 times as
// long. Guarded by the engine's lock.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace aperture::transport {

class Pace {
 public:
  // A look at the ring begins there.
  void begin(uint64_t position) noexcept {
    from_ = position;
    since_ = 0;
  }
  // Small requests were executed up to there. True: rest() is due, and before it what the sender
  // waits for.
  bool wants_rest(uint64_t position) noexcept {
    return position - from_ >= kGroup && is_rest_due(position, ticks());
  }
  // Takes kRestNs.
  void rest() noexcept;

  // wants_rest() by another clock, for tests.
  bool is_rest_due(uint64_t position, uint64_t now) noexcept;

 private:
  static constexpr uint64_t kGroup = 8;  // cells between two looks at the clock

  uint64_t from_ = 0;        // position at the last look at the clock
  uint64_t since_ = 0;       // ticks then; 0: it was not looked at in this look at the ring
  uint32_t put_off_ = 0;     // slow groups until the next rest
  uint32_t in_vain_ = 0;     // rests in a row that have changed nothing, as far as they count
  uint32_t since_rest_ = 0;  // groups until the last rest is judged; 0: it was
};

}  // namespace aperture::transport
