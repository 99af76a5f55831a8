// A connected queue pair of the verbs door, with its number, its lane and its place in the engine.
//
// The lane is asked for when the first work request needs it, by whichever side is first. Locks as
// verbs_nic.hpp says; upcalls come with the engine lock.
#pragma once

#include <memory>

#include "ib/rc_qp.hpp"
#include "nic/qp_numbers.hpp"
#include "nic/rc_endpoint.hpp"
#include "nic/verbs_nic.hpp"
#include "nic/verbs_qps.hpp"

namespace aperture::nic {

class RcVerbsQp final : public VerbsQp,
                        private ib::LaneHost,
                        private LaneEvents,
                        private Engine::PollableOwner {
 public:
  // By exception std::bad_alloc. numbers: of which spec.qpn is one; it is given back in the end.
  RcVerbsQp(Engine& engine, QpNumbers& numbers, const ib::QpSpec& spec);
  ~RcVerbsQp() override;
  Status start() noexcept;  // Errors: no_memory

  ib::QueuePair& qp() noexcept override { return qp_; }
  Status modify(const ib::QpAttributes& attr, uint32_t mask) noexcept override;

 private:
  void want_lane() noexcept override;
  void give_back(std::unique_ptr<link::Lane> lane) noexcept override;
  void share_taken() noexcept override;
  void on_lane(std::unique_ptr<link::Lane> lane) noexcept override;
  void on_no_lane(Errc why) noexcept override;
  void on_lane_down(Errc why) noexcept override;
  void wind_up(link::Pollable&) noexcept override {}

  Status expect(const ib::QpAttributes& attr) noexcept;

  Engine& engine_;
  QpNumbers& numbers_;
  ib::RcQp qp_;
  VerbsQps::Entry entry_;
  RcEndpoint endpoint_;
  std::unique_ptr<link::Lane> early_;  // came before we were ready to receive
  bool pollables_ = false;
};

}  // namespace aperture::nic
