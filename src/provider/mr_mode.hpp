// Memory registration modes: what this provider demands (the setting APERTURE_MR_MODE), what an
// application offers (mr_mode of the hints), what fi_getinfo answers, and how a domain behaves that
// was opened with the answer. man 3 fi_mr, fi_domain, fi_getinfo ("MODE").
//
// Aperture needs nothing: it demands what it is told to demand, so that a program can be tried
// against the rules of the NIC that it will meet. The answer holds what is demanded and matters to
// the capabilities asked for, nothing else. With the word local_cache FI_MR_LOCAL is demanded of
// who offers it alone; for all others the domain registers local buffers by itself. No state, any
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "provider/hints.hpp"

namespace aperture::provider {

// Whether posts must describe their local buffers (the desc arguments).
enum class DescriptorRule : uint8_t {
  ignored,        // never looked at
  valid_or_null,  // NULL, or the descriptor of a region that covers the buffer
  required,       // the descriptor of a region that covers the buffer
  own,            // the provider registers the buffer itself, whatever is given
  own_or_valid,   // likewise for NULL; else the descriptor of a region that covers the buffer
};

// How the regions of a domain behave.
struct RegionRules {
  bool virtual_addresses = false;  // FI_MR_VIRT_ADDR; else offsets from 0
  bool provider_keys = false;      // FI_MR_PROV_KEY; else the application chooses
  bool must_be_mapped = false;     // FI_MR_ALLOCATED
  bool raw_keys = false;           // FI_MR_RAW: fi_mr_key is not available, posts name mapped keys
  bool mmu_notify = false;         // FI_MR_MMU_NOTIFY: only pages seen at fi_mr_refresh
  bool rma_event = false;          // FI_MR_RMA_EVENT: regions with FI_RMA_EVENT start disabled
  bool per_endpoint = false;       // FI_MR_ENDPOINT: regions start disabled, and are bound
  bool hmem = false;               // FI_HMEM was granted: iface and device of fi_mr_attr are read
  bool described_devices = false;  // FI_MR_HMEM: device memory is not used without its descriptor
  DescriptorRule descriptors = DescriptorRule::ignored;
};

// The registration part of an answer.
struct MrAnswer {
  int mr_mode = 0;
  bool local_mr = false;  // FI_MR_LOCAL is demanded, and satisfied by FI_LOCAL_MR of fi_info's mode
};

// Reads a value of APERTURE_MR_MODE: words with commas between them. False: `why` says what is
// wrong with it and which words there are.
bool parse_mr_mode(const char* text, int& bits, std::string& why);

// Whether APERTURE_MR_MODE demands all that a verbs NIC does, by that word or by its parts.
bool demands_verbs() noexcept;

// The answer for those capabilities, given that the hints are read as m says. False: refused.
bool match_mr_mode(const Matching& m, uint64_t caps, MrAnswer& answer);

// The rules of a domain that is opened with this info, and with the setting as it is now; false if
// its mr_mode holds a bit that fi_mr(3) does not know, or bits that exclude each other.
bool rules_of(const fi_info& info, uint32_t api_version, RegionRules& out) noexcept;

}  // namespace aperture::provider
