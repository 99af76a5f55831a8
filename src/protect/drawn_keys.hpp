// Keys that nobody can guess, for regions that ask for none of their own: 64 random bits each.
//
// A key is drawn some registrations before it is handed out, so that its chain can be fetched
// meanwhile, a link at a time: among a million regions the cache misses of an insertion cost more
// than all the rest of it.
//
// Threads: whoever holds the lock of the entries (key_entries.hpp). Invariants: no key is drawn
// from another, and none is handed out twice; never 0, nor the number that means no key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "protect/key_chains.hpp"
#include "protect/rights.hpp"

namespace aperture::protect {

constexpr uint64_t kNotAvail = ~uint64_t{0};  // means "no key": fi_mr(3)

class DrawnKeys {
 public:
  struct Drawn {
    uint64_t key = 0;
    uint64_t hash = 0;  // in the domain that it was drawn for
  };
  // So many registrations before it is handed out: also how far ahead of keys that count up their
  // chains are worth fetching.
  static constexpr size_t kAhead = 16;

  DrawnKeys() noexcept = default;
  DrawnKeys(const DrawnKeys&) = delete;
  DrawnKeys& operator=(const DrawnKeys&) = delete;

  // A key that no entry of the domain has, or remembers.
  Drawn draw(DomainId pd, const KeyChains& chains) noexcept;

 private:
  // With the domain that registered last when it was drawn.
  struct Ahead {
    Drawn drawn;
    DomainId pd = 0;
  };
  Ahead next(DomainId pd, const KeyChains& chains) noexcept;

  std::array<Ahead, kAhead> ahead_{};
  size_t ahead_at_ = 0;
  std::array<uint64_t, 64> fresh_{};  // of the generator, which is asked for many at a time
  size_t fresh_at_ = 64;
};

}  // namespace aperture::protect
