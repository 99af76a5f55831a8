// Handles whose operations are triggered by default: see ep_triggered.cpp. man 3 fi_trigger.
#pragma once

#include "provider/ep.hpp"

namespace aperture::provider {

// FI_TRIGGER is among the default flags of one side at least.
bool triggers_by_default(const Ep& ep) noexcept;
// Of an enabled endpoint, the calls that defer nothing by default.
fi_ops_msg& msg_ops_at_once(const Ep& ep) noexcept;        // ep_msg.cpp
fi_ops_tagged& tagged_ops_at_once(const Ep& ep) noexcept;  // ep_tagged.cpp
fi_ops_rma& rma_ops_at_once(const Ep& ep) noexcept;        // ep_rma.cpp
fi_ops_atomic& atomic_ops_at_once(const Ep& ep) noexcept;  // ep_atomic.cpp
[[gnu::cold]] ssize_t refuse_trigger_of_inject() noexcept;

}  // namespace aperture::provider
