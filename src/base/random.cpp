// The refilled buffer behind random_u64: see random.hpp.
#include "base/random.hpp"

#include <sodium.h>
#include <sys/random.h>

#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/fork.hpp"
#include "base/per_process.hpp"

namespace aperture {

namespace {

constexpr size_t kPoolBytes = 4096;
constexpr uint32_t kRefillsOfOneSeed = 1024;  // then the kernel is asked again

struct Pool {
  unsigned char seed[crypto_stream_chacha20_KEYBYTES];  // of the next refill: not of this one
  unsigned char bytes[kPoolBytes];
  size_t used = kPoolBytes;
  uint32_t refills = 0;
  uint64_t epoch = 0;  // the process that filled it: a child must not repeat its parent's keys
};

void fill(void* out, size_t len) noexcept {
  auto* p = static_cast<unsigned char*>(out);
  while (len > 0) {
    const ssize_t n = ::getrandom(p, len, 0);
    if (n < 0) {
      if (errno == EINTR) continue;
      std::abort();  // no entropy means no protection: never go on with guessable keys
    }
    p += n;
    len -= static_cast<size_t>(n);
  }
}

thread_local Pool pool;

// libsodium takes a lock each time it is asked, which a forked child might find taken.
constinit FoundOnce<bool> sodium;

// A stream under the seed, of which the first bytes are the next seed: whoever reads this memory
// learns nothing of what was handed out before.
void refill(uint64_t epoch) noexcept {
  if (pool.epoch != epoch || pool.refills == kRefillsOfOneSeed) {
    if (!sodium.get([] { return ::sodium_init() >= 0; })) std::abort();  // no entropy, as below
    fill(pool.seed, sizeof pool.seed);
    pool.refills = 0;
    pool.epoch = epoch;
  }
  // one call for both: they are neighbours
  static_assert(offsetof(Pool, bytes) == sizeof pool.seed);
  constexpr unsigned char kNonce[crypto_stream_chacha20_NONCEBYTES] = {};
  unsigned char key[sizeof pool.seed];
  std::memcpy(key, pool.seed, sizeof key);
  ::crypto_stream_chacha20(pool.seed, sizeof pool.seed + kPoolBytes, kNonce, key);
  ::sodium_memzero(key, sizeof key);
  pool.used = 0;
  ++pool.refills;
  assert(pool.epoch == epoch && pool.refills <= kRefillsOfOneSeed);
}

}  // namespace

void random_bytes(void* out, size_t len_bytes) noexcept {
  if (len_bytes > sizeof(pool.bytes)) {
    fill(out, len_bytes);
    return;
  }
  assert(pool.used <= kPoolBytes);
  const uint64_t epoch = process_epoch();
  if (pool.epoch != epoch || sizeof(pool.bytes) - pool.used < len_bytes) {
    refill(epoch);
  }
  std::memcpy(out, pool.bytes + pool.used, len_bytes);
  // what was handed out does not stay behind for a core dump or a stray read
  explicit_bzero(pool.bytes + pool.used, len_bytes);
  pool.used += len_bytes;
}

uint64_t random_u64() noexcept {
  uint64_t v;
  if (pool.epoch != process_epoch() || sizeof(pool.bytes) - pool.used < sizeof v) {
    random_bytes(&v, sizeof v);
    return v;
  }
  unsigned char* at = pool.bytes + pool.used;
  std::memcpy(&v, at, sizeof v);
  constexpr uint64_t kNothing = 0;
  std::memcpy(at, &kNothing, sizeof kNothing);
  asm volatile("" ::"r"(at) : "memory");  // the zero is really written, as with explicit_bzero
  pool.used += sizeof v;
  return v;
}

}  // namespace aperture
