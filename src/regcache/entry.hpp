// One resource in the cache's hands. Guarded by the cache's lock, but for what says otherwise.
#pragma once

#include <cstdint>
#include <memory>

#include "base/list.hpp"
#include "regcache/oracle.hpp"
#include "regcache/range.hpp"
#include "regcache/registrar.hpp"

namespace aperture::regcache {

// In one list at a time: of those that are kept (the one used last at the back), of those that are
// not (being made, or in use until their users are done), or of those that are over, whose resource
// is to be given back.
struct Entry : ListHook {
  Range range;
  Access access = Access::read;
  bool kept = false;   // it is in the index: who asks for its range finds it
  bool stale = false;  // its memory has changed, so it is never found again
  Range watched;       // with it; before it is kept, its maker's alone
  uint32_t users = 0;
  std::unique_ptr<const Oracle::View> view;  // when it was made, for who checks; never changed
  Registrar::Resource resource = 0;          // before it is kept, its maker's alone
};

}  // namespace aperture::regcache
