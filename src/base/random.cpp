// The refilled buffer behind random_u64: see random.hpp.
#include "base/random.hpp"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/fork.hpp"

namespace aperture {

namespace {

struct Pool {
  unsigned char bytes[4096];
  size_t used = sizeof(bytes);
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

}  // namespace

void random_bytes(void* out, size_t len_bytes) noexcept {
  if (len_bytes > sizeof(pool.bytes)) {
    fill(out, len_bytes);
    return;
  }
  const uint64_t epoch = process_epoch();
  if (pool.epoch != epoch || sizeof(pool.bytes) - pool.used < len_bytes) {
    fill(pool.bytes, sizeof(pool.bytes));
    pool.used = 0;
    pool.epoch = epoch;
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
