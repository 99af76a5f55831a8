// Handles whose operations are triggered by default: see ep_triggered.cpp. man 3 fi_trigger.
#pragma once

#include "provider/ep.hpp"

namespace aperture::provider {

// FI_TRIGGER is among the default flags of one side at least.
bool triggers_by_default(const Ep& ep) noexcept;
[[gnu::cold]] ssize_t refuse_trigger_of_inject() noexcept;

}  // namespace aperture::provider
