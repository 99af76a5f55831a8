// Matching an application's hints against what is offered, and shaping the answer.
//
// The semantics are those of libfabric's own check-and-alter: a non-zero hint must be met or the
// answer is -FI_ENODATA; threading, progress, AV type, sizes and operation flags are echoed; the
// caps of the answer are the primary ones asked for plus our free secondary ones. Each refusal
// says what was asked, what is offered and what to change. man 3 fi_getinfo, fi_endpoint,
// fi_domain. No state, any thread.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>

#include "base/log.hpp"
#include "provider/names.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

// One fi_getinfo call while it is matched. Refusals are warnings when the application named this
// provider, and information when it looked at all of them.
struct Matching {
  uint32_t version = 0;
  const fi_info* hints = nullptr;
  LogLevel level = LogLevel::info;
  const Name& name = own_name();  // what we are asked as
  fi_ep_type type = FI_EP_RDM;    // what is being offered
  int demanded_mr_mode = 0;       // APERTURE_MR_MODE

  // Logs "fi_getinfo: <sentence>" and returns false.
  [[gnu::format(printf, 2, 3)]] bool refuse(const char* format, ...) const noexcept;
};

// Each fills its part of the answer, or refuses.
bool match_caps(const Matching& m, fi_info& answer);
bool match_fabric(const Matching& m, fi_info& answer);
bool match_domain(const Matching& m, fi_info& answer);
bool match_ep(const Matching& m, fi_info& answer);
bool match_tx(const Matching& m, fi_info& answer);
bool match_rx(const Matching& m, fi_info& answer);
// FI_MSG_PREFIX, once the capabilities are known.
void match_prefix(const Matching& m, fi_info& answer) noexcept;

const char* type_name(int ep_type) noexcept;  // "FI_EP_RDM"
// Whether bit 48 of caps is FI_VARIABLE_MSG for applications of that API.
constexpr bool has_variable_messages(uint32_t version) noexcept {
  return version >= kApi17 && version < kApi121;
}

// The name of the lowest bit that is set: "FI_ATOMIC", or "bit 44" where none is known. The meaning
// of some bits depends on the API version.
const char* cap_name(uint64_t caps, uint32_t version) noexcept;

}  // namespace aperture::provider
