// What becomes of the work of a connected queue pair whose peer is gone, or is not to be had.
//
// What is left when a peer goes fails when the requester has retried for as long as timeout and
// retry_cnt say, within reason: a program that polls the last of its completions while its peer
// ends must not find a failure among them (rdma-core's SRQ ping-pong has more sends under way than
// its peer waits for). The same goes for what is posted later, for which a new lane may yet come.
// Nothing is begun meanwhile. RcCore::lost_until_ns_ says until when. The lane
// goes back only when no thread of the peer is inside our memory any more. Guarded by the engine's
// lock. A part of RcQp, see rc_core.hpp.
#pragma once

#include "ib/rc_receiver.hpp"
#include "ib/rc_requester.hpp"

namespace aperture::ib {

class RcLoss {
 public:
  RcLoss(RcCore& core, RcAnswers& answers, RcRequester& requester, RcReceiver& receiver) noexcept
      : q_(core), answers_(answers), requester_(requester), receiver_(receiver) {}

  // What the peer had published is executed.
  void begin() noexcept;
  // Retries from now on. False: neither timeout nor retry_cnt say so.
  bool retry() noexcept;
  // The requester has retried for long enough: leave() is to be called, or there was no lane to
  // leave any more.
  bool is_due() const noexcept;
  // The end of what begin() began. If the peer is inside still, it stays due.
  void leave() noexcept;
  // There is no lane, and none will come: reliable WQEs fail, unreliable ones are lost on the way.
  void wind_down(WcStatus status) noexcept;

 private:
  RcCore& q_;
  RcAnswers& answers_;
  RcRequester& requester_;
  RcReceiver& receiver_;
};

}  // namespace aperture::ib
