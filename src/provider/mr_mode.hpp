// Memory registration modes: what an application offers (mr_mode of the hints), what this provider
// demands, and how a domain behaves that was opened with the answer. man 3 fi_mr, fi_domain.
//
// Aperture demands nothing. Of the bits that an application offers, those are kept which it then
// honours as behaviour: virtual addresses, provider keys (which nobody can guess), and registration
// of mapped memory only. Profiles of named NICs will demand more: then `demanded` is not 0.
#pragma once

#include <cstdint>

#include "provider/hints.hpp"

namespace aperture::provider {

// How the regions of a domain behave.
struct RegionRules {
  bool virtual_addresses = false;  // else offsets from 0
  bool provider_keys = false;      // else the application chooses
  bool must_be_mapped = false;     // FI_MR_ALLOCATED
};

// The mr_mode of the answer, given the answer's caps. False: refused.
bool match_mr_mode(const Matching& m, uint64_t caps, int demanded, int& answer);

// The rules of a domain opened with that mr_mode; false if it holds a bit that is not offered.
bool rules_of(int mr_mode, RegionRules& out) noexcept;

}  // namespace aperture::provider
