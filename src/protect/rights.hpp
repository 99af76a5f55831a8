// The words of protection: what a region allows, why an access is refused, whose region it is.
//
// The numbers of Rights and Denial travel between processes (key file, status records): they are
// fixed for ever; new ones are added at the end. No state, any thread. (fi_mr(3) "access"; IBTA
// vol. 1, 10.6 Memory Management.)
#pragma once

#include <cstdint>

namespace aperture::protect {

// What may be done to a region, and through which side of the link.
enum class Rights : uint32_t {
  none = 0,
  local_read = 1,   // source of this process's RMA writes
  local_write = 2,  // result of this process's RMA reads
  remote_read = 4,
  remote_write = 8,
  remote_atomic = 16,
  send = 32,          // source of messages
  recv = 64,          // landing place of messages
  bind_window = 128,  // a memory window may be bound to it
  // flushed from the other side: what was written there can be seen by everybody here ...
  flush_global = 256,
  flush_persistent = 512,  // ... or has reached the file that is mapped there
};

constexpr uint32_t kAllRights = 0x3ff;

constexpr Rights operator|(Rights a, Rights b) noexcept {
  return static_cast<Rights>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr Rights operator&(Rights a, Rights b) noexcept {
  return static_cast<Rights>(static_cast<uint32_t>(a) & static_cast<uint32_t>(b));
}
constexpr Rights operator~(Rights a) noexcept {
  return static_cast<Rights>(~static_cast<uint32_t>(a) & kAllRights);
}
constexpr Rights& operator|=(Rights& a, Rights b) noexcept {
  return a = a | b;
}
constexpr bool includes(Rights have, Rights need) noexcept {
  return (have & need) == need;
}

// Why an access was refused: the syndrome, one byte on the wire. The order is the order of the
// checks, but for wrong_domain, which is an unknown key that another domain knows.
enum class Denial : uint8_t {
  none = 0,
  unknown_key = 1,
  wrong_domain = 2,  // the key belongs to another protection domain of that process
  closed = 3,        // the key was right until its region was closed
  revoking = 4,      // its region is being closed or refreshed
  not_enabled = 5,   // its region waits to be enabled
  missing_right = 6,
  out_of_range = 7,
  not_backed = 8,  // the range is registered, but no memory that can be used so is mapped there
  misaligned = 9,  // of an atomic: an element's address is no multiple of its alignment
  not_persistent = 10,  // a commit to a region that was not registered for that
  wrong_endpoint = 11,  // the region is reached through one endpoint only, and not this one
  not_verified = 12,    // a page was not there when the region was registered or refreshed last
  no_window = 13,       // of an invalidation: only a bound memory window of type 2 allows it
};

constexpr uint8_t kDenials = 14;

// The rule that was broken, in a few words: "the range leaves the region". Static storage; any byte
// is answered, since it may have come from a peer.
const char* sentence(Denial denial) noexcept;

// "remote write", "remote read and remote atomic", ...; for explanations. Writes at most len bytes.
void describe_rights(Rights rights, char* out, unsigned len) noexcept;

// The protection domain (PD) that a region belongs to: unique in this process, never 0.
using DomainId = uint32_t;

// The next unused DomainId.
DomainId new_domain() noexcept;

// The longest piece that one check covers. Longer operations ask again for each chunk, so that a
// close in the middle of them need not wait for their end.
constexpr uint64_t kChunkBytes = 256 * 1024;
// Of a device's memory, by its driver: takes no longer, and each copy costs some 7 us alone.
constexpr uint64_t kDeviceChunkBytes = 2 * 1024 * 1024;

}  // namespace aperture::protect
