// The table of mapped raw keys: see raw_keys.hpp.
#include "qp/raw_keys.hpp"

#include <cassert>
#include <new>

#include "base/random.hpp"

namespace aperture::qp {

namespace {

constexpr uint64_t kNoKey = ~uint64_t{0};  // FI_KEY_NOTAVAIL: no region is registered under it

}  // namespace

Result<uint64_t> RawKeys::map(const ShownKey& key) noexcept {
  assert(key.flags != 0 || key.secret == 0);
  try {
    for (;;) {
      const uint64_t handle = random_u64();
      if (handle == 0 || handle == kNoKey) continue;
      if (!by_handle_.emplace(handle, key).second) continue;
      assert(has(handle) && shown(handle).key == key.key);
      return handle;
    }
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
}

ShownKey RawKeys::shown(uint64_t handle) const noexcept {
  const auto it = by_handle_.find(handle);
  return it != by_handle_.end() ? it->second : ShownKey{kNoKey, 0, 0};
}

}  // namespace aperture::qp
