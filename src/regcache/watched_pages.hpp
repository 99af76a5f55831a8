// Which pages of our addresses are watched: a bit for each, so that a hook finds out in a few
// nanoseconds that a call is none of our business.
//
// Tables of bits for 4 GiB each, made when the first page there is watched and never given back: a
// hook may look at any moment, in a signal handler too. So any() waits for nobody and allocates
// nothing; add(), remove() and clear() are for one thread at a time. A caller that is told of a
// page by whoever has added it finds it there, which is all that is promised: who unmaps memory
// while another thread registers it has a race of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/errc.hpp"
#include "regcache/range.hpp"

namespace aperture::regcache {

class WatchedPages {
 public:
  // 48 bits of address, as Linux hands them out unless asked for more.
  static constexpr uint64_t kEnd = uint64_t{1} << 48;

  enum class Of : uint8_t {
    pages,  // that are unmapped, dropped or mapped over
    // That are freed. An allocator gives no page away on which another block lives. So a range of
    // three pages or more is not asked for by its first and its last: whose bytes lie there and
    // reach into the next page has a block that is found by that one, and what else is freed beside
    // it is a neighbour's. Pieces that were joined overlap in pages, so that holds for each.
    blocks,
  };

  constexpr WatchedPages() noexcept = default;
  WatchedPages(const WatchedPages&) = delete;
  WatchedPages& operator=(const WatchedPages&) = delete;

  // Once, before any other. Errors: no_memory.
  Status reserve() noexcept;
  // Errors: no_memory, not_supported (beyond kEnd); then nothing of it may be relied on.
  Status add(const Range& range) noexcept;
  void remove(const Range& range) noexcept;
  void clear() noexcept;

  bool any(const Range& range, Of of) const noexcept {
    // SYNC POINT: watched-tables
    const auto* const tables = tables_.load(std::memory_order_acquire);
    return tables != nullptr && any_in(*tables, range, of);
  }

 private:
  static constexpr unsigned kPageBits = 12;   // the smallest page that Linux has
  static constexpr unsigned kTableBits = 20;  // pages of a table
  static constexpr size_t kWords = (size_t{1} << kTableBits) / 64;
  static constexpr size_t kTables = size_t{1} << (48 - kTableBits - kPageBits);
  struct Table {
    std::atomic<uint64_t> bits[2][kWords];  // by Of
  };
  struct Tables {
    std::atomic<Table*> at[kTables];
  };

  static bool any_in(const Tables& tables, const Range& range, Of of) noexcept;
  // visit(word of bits, mask) for each word of the range; where there is no table, nothing.
  template <typename Visit>
  void for_each_word(const Range& range, Of of, Visit&& visit) noexcept;

  std::atomic<Tables*> tables_{nullptr};
};

}  // namespace aperture::regcache
