// Registration modes: see mr_mode.hpp.
#include "provider/mr_mode.hpp"

#include <rdma/fi_domain.h>

#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

constexpr int kHonoured = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
// Bits that concern only the targets of remote access.
constexpr int kTargetBits = FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_RMA_EVENT;

bool is_target(uint64_t caps) noexcept {
  return (caps & (FI_RMA | FI_ATOMIC)) != 0 && (caps & (FI_REMOTE_READ | FI_REMOTE_WRITE)) != 0;
}

}  // namespace

bool match_mr_mode(const Matching& m, uint64_t caps, int demanded, int& answer) {
  const bool asked = m.hints != nullptr && m.hints->domain_attr != nullptr;
  const int offered = asked ? m.hints->domain_attr->mr_mode : kMrModeUnspec;
  if ((offered & (kMrModeBasic | kMrModeScalable)) != 0) {
    if (offered != kMrModeBasic && offered != kMrModeScalable) {
      return m.refuse(
          "mr_mode 0x%x mixes FI_MR_BASIC or FI_MR_SCALABLE with other bits; set one of "
          "the two alone, or only the newer bits",
          static_cast<unsigned>(offered));
    }
    answer = offered;
    return true;
  }
  if (m.version < kApi15) {
    if (offered != kMrModeUnspec) {
      return m.refuse(
          "mr_mode 0x%x is asked for with API %u.%u, which knows only FI_MR_BASIC and "
          "FI_MR_SCALABLE; ask for API 1.5 or newer",
          static_cast<unsigned>(offered), FI_MAJOR(m.version), FI_MINOR(m.version));
    }
    answer = kMrModeScalable;
    return true;
  }
  if (!is_target(caps)) demanded &= ~kTargetBits;
  const int missing = asked ? demanded & ~offered : 0;
  if (missing != 0) {
    return m.refuse(
        "the profile demands mr_mode bits 0x%x which the hints do not offer (0x%x); "
        "support them and set them in domain_attr->mr_mode",
        static_cast<unsigned>(missing), static_cast<unsigned>(offered));
  }
  const int keep = is_target(caps) ? kHonoured : 0;
  answer = demanded | (offered & keep);
  return true;
}

bool rules_of(int mr_mode, RegionRules& out) noexcept {
  const int tolerated = FI_MR_LOCAL | kHonoured;  // whoever registers local buffers does no harm
  if (mr_mode == kMrModeScalable || mr_mode == kMrModeUnspec) {
    out = {};
    return true;
  }
  if (mr_mode == kMrModeBasic) {
    out = {true, true, true};
    return true;
  }
  if ((mr_mode & ~tolerated) != 0) return false;
  out.virtual_addresses = (mr_mode & FI_MR_VIRT_ADDR) != 0;
  out.provider_keys = (mr_mode & FI_MR_PROV_KEY) != 0;
  out.must_be_mapped = (mr_mode & FI_MR_ALLOCATED) != 0;
  return true;
}

}  // namespace aperture::provider
