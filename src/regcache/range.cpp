// Whole pages: see range.hpp.
#include "regcache/range.hpp"

#include <unistd.h>

#include <limits>

namespace aperture::regcache {

uint64_t page_size() noexcept {
  static const auto size = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

Range pages_around(const void* addr, size_t len) noexcept {
  const uint64_t page = page_size();
  const auto begin = reinterpret_cast<uint64_t>(addr);
  if (len == 0 || len > std::numeric_limits<uint64_t>::max() - begin - (page - 1)) return {};
  return {begin & ~(page - 1), (begin + len + page - 1) & ~(page - 1)};
}

}  // namespace aperture::regcache
