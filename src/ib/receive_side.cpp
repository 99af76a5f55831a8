// The receiving half of a queue pair: see receive_side.hpp.
#include "ib/receive_side.hpp"

#include "ib/queue_pair.hpp"

namespace aperture::ib {

namespace {

std::unique_ptr<ReceiveQueue> queue_of_its_own(const QpSpec& spec) {
  if (spec.srq != nullptr) return nullptr;
  return std::make_unique<ReceiveQueue>(spec.max_recv_wr, spec.max_recv_sge, nullptr, spec.memory);
}

}  // namespace

ReceiveSide::ReceiveSide(QueuePair& qp, const QpSpec& spec)
    : qp_(qp), spec_(spec), own_(queue_of_its_own(spec)), cq_(spec.recv_cq) {
  assert((own_ == nullptr) == (spec.srq != nullptr));
}

void ReceiveSide::on_overrun() noexcept {
  APERTURE_DEBUG_ASSERT(cq_->overrun() && !cq_->has_room());
  qp_.fail_fatally();
}

}  // namespace aperture::ib
