// Words for rights and denials: see rights.hpp.
#include "protect/rights.hpp"

#include <atomic>

namespace aperture::protect {

const char* sentence(Denial denial) noexcept {
  switch (denial) {
    case Denial::none: return "allowed";
    case Denial::unknown_key: return "no region has this key";
    case Denial::wrong_domain: return "the key belongs to a region of another domain";
    case Denial::closed: return "the region of this key has been closed";
    case Denial::revoking: return "the region of this key is being closed or refreshed";
    case Denial::not_enabled: return "the region is not enabled";
    case Denial::missing_right: return "the region does not grant this right";
    case Denial::out_of_range: return "the range leaves the region";
    case Denial::not_backed:
      return "no memory that can be used so is mapped in that part of the region";
    case Denial::not_persistent: return "the region was not registered as persistent memory";
    case Denial::wrong_endpoint: return "the region is not bound to the endpoint that was accessed";
    case Denial::not_verified:
      return "a page was not mapped when the region was registered or refreshed last";
    case Denial::misaligned: return "the elements are not aligned as their datatype must be";
    case Denial::no_window: return "the key is not that of a memory window of type 2";
  }
  return "refused for a reason that this version does not know";
}

void describe_rights(Rights rights, char* out, unsigned len) noexcept {
  static constexpr const char* kNames[] = {
      "local read", "local write", "remote read",    "remote write", "remote atomic",
      "send",       "receive",     "window binding", "global flush", "persistent flush"};
  unsigned used = 0;
  const auto put = [&](const char* text) {
    while (*text != '\0' && used + 1 < len) out[used++] = *text++;
  };
  if (len == 0) return;
  for (unsigned bit = 0; bit < sizeof kNames / sizeof *kNames; ++bit) {
    if ((static_cast<uint32_t>(rights) >> bit & 1) == 0) continue;
    if (used != 0) put(" and ");
    put(kNames[bit]);
  }
  if (used == 0) put("nothing");
  out[used] = '\0';
}

DomainId new_domain() noexcept {
  static std::atomic<uint32_t> next{1};
  // relaxed: only uniqueness matters
  DomainId id = next.fetch_add(1, std::memory_order_relaxed);
  while (id == 0) id = next.fetch_add(1, std::memory_order_relaxed);
  return id;
}

}  // namespace aperture::protect
