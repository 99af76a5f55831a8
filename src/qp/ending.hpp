// How a queue pair comes to its end: lost with its peer, broken by it, or given up by its owner.
//
// A loss leaves what the peer had published to be executed first. Before its owner takes a queue
// pair apart, no peer may be inside memory that it reaches through it: end_access() shuts the gate,
// and is asked again until nobody is. Holds why it was lost, and whether that is so. Guarded by the
// engine's lock.
#pragma once

#include "qp/execution.hpp"
#include "transport/permit.hpp"

namespace aperture::qp {

class Ending {
 public:
  Ending(QpCore& core, transport::Gate& gate, Execution& execution) noexcept
      : core_(core), gate_(gate), execution_(execution) {}

  // ready -> draining: Qp::finish() becomes possible once drained() is true.
  void lose(Errc why) noexcept;
  bool drained() const noexcept;
  // Broken, or lost and drained.
  bool is_over() const noexcept {
    return core_.lane.broken() || (core_.state == QpState::draining && drained());
  }
  // Before Qp::finish(), without anything in between but polls (nic::until): no peer begins a
  // direct access through it any more; true once nothing that one has begun can land.
  bool end_access() noexcept {
    access_over_ = !core_.lane || gate_.begin_to_shut(core_.lane, core_.port.keys.accessors());
    core_.busy = core_.busy || !access_over_;
    return access_over_;
  }
  bool is_access_over() const noexcept { return access_over_; }
  // Why, for its owner: the loss, or what has broken the lane.
  Errc why() const noexcept { return why_lost(core_.broken_why); }
  // The loss, or that if there was none.
  Errc why_lost(Errc otherwise) const noexcept {
    return lost_why_ != Errc::ok ? lost_why_ : otherwise;
  }

  // A lane was attached: peers may be inside from now on.
  void begin() noexcept { access_over_ = false; }

 private:
  QpCore& core_;
  transport::Gate& gate_;
  Execution& execution_;
  Errc lost_why_ = Errc::ok;
  bool access_over_ = false;  // end_access() has said so
};

}  // namespace aperture::qp
