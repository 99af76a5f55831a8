// Invalidations of memory windows by the peer, and the messages that follow them (the other half:
// send_requester.hpp). Executed by the owner, never claimed: windows that a peer may invalidate are
// reached by the owner alone, under the engine's lock, so one is over at once. A message that names
// the key is dropped if the invalidation before it was refused, and the send ends with that
// refusal.
#pragma once

#include "qp/execution.hpp"

namespace aperture::qp {

class InvalidationResponder {
 public:
  InvalidationResponder(QpCore& core, Execution& execution) noexcept
      : core_(core), execution_(execution) {}

  // The request at the head of the ring. False: it has to wait.
  bool on_invalidate(const wire::SoundHead& head) noexcept;
  // A message names that key as invalidated before it; is_dropped: that was refused. False: no
  // sound peer says that.
  bool precedes(uint64_t key, bool& is_dropped) noexcept;

 private:
  enum class Last : uint8_t { none, done, refused };

  QpCore& core_;
  Execution& execution_;
  Last last_ = Last::none;  // what became of the last one
  uint64_t last_key_ = 0;   // and whose it was
};

}  // namespace aperture::qp
