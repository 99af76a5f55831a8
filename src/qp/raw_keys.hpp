// Raw keys of peers that an application has mapped: handle -> key and secret. man 3 fi_mr,
// "FI_MR_RAW", "fi_mr_map_raw".
//
// In a domain with raw keys, operations name a range by its handle: a number that is drawn, so that
// it can neither be guessed nor be mistaken for a key. It is looked up each time that a request
// goes into the ring, so once it is unmapped nothing shows that key any more. Guarded by the
// engine's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/errc.hpp"

namespace aperture::qp {

// How a range is named in a request (wire/request.hpp).
struct ShownKey {
  uint64_t key = 0;
  uint64_t secret = 0;  // with wire::kRaw
  uint8_t flags = 0;    // wire::kRaw, or 0: the key has no second half
};

class RawKeys {
 public:
  // A new handle. Errors: no_memory.
  Result<uint64_t> map(const ShownKey& key) noexcept;
  // False: it is none.
  bool unmap(uint64_t handle) noexcept { return by_handle_.erase(handle) != 0; }
  bool has(uint64_t handle) const noexcept { return by_handle_.contains(handle); }
  size_t count() const noexcept { return by_handle_.size(); }
  // What it stands for; if it is unmapped, a key that no region has, for the owner to refuse.
  ShownKey shown(uint64_t handle) const noexcept;

 private:
  std::unordered_map<uint64_t, ShownKey> by_handle_;
};

}  // namespace aperture::qp
