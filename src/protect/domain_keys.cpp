// See domain_keys.hpp.
#include "protect/domain_keys.hpp"

namespace aperture::protect {

bool key_in_use(const KeyTable& keys, DomainId pd, uint64_t key) noexcept {
  AccessAsk ask;  // of no bytes and with no need: whatever is wrong with that, the key was found
  ask.pd = pd;
  ask.key = Wild<uint64_t>(key);
  switch (keys.access().check(ask).denial()) {
    case Denial::unknown_key:
    case Denial::wrong_domain:
    case Denial::closed: return false;
    default: return true;
  }
}

}  // namespace aperture::protect
