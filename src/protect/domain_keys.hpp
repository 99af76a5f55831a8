// Keys across the protection domains that one domain of the application has: its authorization keys
// give it several, and a key that it chooses names one region among them all. man 3 fi_mr,
// "requested_key". No state; any thread.
#pragma once

#include "protect/key_table.hpp"

namespace aperture::protect {

// A region of that key is registered in the domain, or is being closed there.
bool key_in_use(const KeyTable& keys, DomainId pd, uint64_t key) noexcept;

}  // namespace aperture::protect
