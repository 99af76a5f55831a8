// What the door tests send and how they recognise it: the shared list of sizes, seeded contents,
// and buffers with canaries on both sides.
//
// Sizes sit on and around every boundary where a path may change: the inline part of a ring slot,
// chunk and page sizes, the step from copies to rendezvous, and the largest messages of MPI runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace aperture::doors {

inline constexpr size_t kKiB = 1024;
inline constexpr size_t kMiB = 1024 * 1024;

// All sizes in ascending order, 0 through 8 MiB + 1.
const std::vector<size_t>& all_sizes();

// A short list, one or two for each path: for tests that multiply by many other cases.
const std::vector<size_t>& few_sizes();

// Writes the contents that belong to `seed`; byte i depends on the seed and on i only.
void fill(std::span<uint8_t> bytes, uint64_t seed);

// The first index that differs from the contents of `seed`; nothing if all are equal. `skip` is the
// index at which bytes[0] lies in the contents.
std::optional<size_t> first_difference(std::span<const uint8_t> bytes, uint64_t seed,
                                       size_t skip = 0);

// The seed of this run: APERTURE_SEED, or drawn once and printed with every failure.
uint64_t run_seed();

// A seed that depends on the run and on `n`.
uint64_t seed_of(uint64_t n);

// Bytes with a canary page on both sides. A write outside is seen by intact().
class Guarded {
 public:
  explicit Guarded(size_t len_bytes, uint64_t seed = 0);
  uint8_t* data() { return bytes_.data() + kGuard; }
  const uint8_t* data() const { return bytes_.data() + kGuard; }
  size_t size() const { return size_; }
  std::span<uint8_t> span() { return {data(), size_}; }
  std::span<const uint8_t> span() const { return {data(), size_}; }
  bool intact() const;

  static constexpr size_t kGuard = 4096;

 private:
  size_t size_;
  std::vector<uint8_t> bytes_;
};

}  // namespace aperture::doors
