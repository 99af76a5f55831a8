// Checking attributes of contexts: see context_attr.hpp.
#include "provider/context_attr.hpp"

#include <cassert>

#include "provider/errors.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

bool exceeds(const char* call, const char* field, size_t asked, size_t offered) noexcept {
  if (asked <= offered) return false;
  APERTURE_WARN("%s: %s %zu; at most %zu is offered", call, field, asked, offered);
  return true;
}

}  // namespace

int check_limits(const char* call, const fi_tx_attr* attr) noexcept {
  if (attr == nullptr) return 0;
  const bool beyond =
      exceeds(call, "tx_attr->size", attr->size, kMaxQueueSize) ||
      exceeds(call, "tx_attr->inject_size", attr->inject_size, qp::kInjectBytes) ||
      exceeds(call, "tx_attr->iov_limit", attr->iov_limit, qp::kIovLimit) ||
      exceeds(call, "tx_attr->rma_iov_limit", attr->rma_iov_limit, qp::kRmaIovLimit);
  return beyond ? -FI_EINVAL : 0;
}

int check_limits(const char* call, const fi_rx_attr* attr) noexcept {
  if (attr == nullptr) return 0;
  const bool beyond = exceeds(call, "rx_attr->size", attr->size, kMaxQueueSize) ||
                      exceeds(call, "rx_attr->iov_limit", attr->iov_limit, qp::kIovLimit);
  return beyond ? -FI_EINVAL : 0;
}

int check_op_flags(const char* call, const EpBody& body, uint64_t side, uint64_t flags) noexcept {
  assert(side == FI_TRANSMIT || side == FI_RECV);
  const uint64_t offered = side == FI_TRANSMIT ? body.tx_op_flags() : body.rx_op_flags();
  if ((flags & ~offered) != 0)
    return refuse(-FI_EBADFLAGS, "%s: operation flags 0x%llx (%s) are not all offered", call,
                  static_cast<unsigned long long>(flags),
                  side == FI_TRANSMIT ? "transmit" : "receive");
  if ((flags & FI_TRIGGER) != 0 && !body.triggers())
    return refuse(
        -FI_EOPNOTSUPP,
        "%s: FI_TRIGGER on an endpoint that was opened without it; ask for it in hints->caps",
        call);
  return 0;
}

}  // namespace aperture::provider
