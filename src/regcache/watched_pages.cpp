// The tables of bits: see watched_pages.hpp.
#include "regcache/watched_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>

namespace aperture::regcache {

namespace {

// Zeros; what is never touched costs nothing. Not from the allocator, which is watched.
template <typename T>
T* map_zeros() noexcept {
  void* const at = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at != MAP_FAILED ? static_cast<T*>(at) : nullptr;
}

// The bits of one word from its page `first` to its page `last`.
constexpr uint64_t mask_of(unsigned first, unsigned last) noexcept {
  return (~uint64_t{0} << first) & (~uint64_t{0} >> (63 - last));
}

// Calls visit(index of the table, index of the word, mask) until it returns true.
template <typename Visit>
bool walk(uint64_t page, uint64_t last, unsigned table_bits, Visit&& visit) noexcept {
  while (page <= last) {
    const uint64_t end = std::min(last, page | 63);
    const auto table = static_cast<size_t>(page >> table_bits);
    const auto word = static_cast<size_t>((page & ((uint64_t{1} << table_bits) - 1)) / 64);
    if (visit(table, word, mask_of(page % 64, end % 64))) return true;
    page = end + 1;
  }
  return false;
}

}  // namespace

Status WatchedPages::reserve() noexcept {
  // relaxed: one thread at a time
  if (tables_.load(std::memory_order_relaxed) != nullptr) return {};
  auto* const tables = map_zeros<Tables>();
  if (tables == nullptr) return Errc::no_memory;
  // SYNC POINT: watched-tables: it is all zeros
  tables_.store(tables, std::memory_order_release);
  return {};
}

template <typename Visit>
void WatchedPages::for_each_word(const Range& range, Of of, Visit&& visit) noexcept {
  assert(!range.is_empty() && range.end <= kEnd);
  // relaxed, all: they are this thread's own
  Tables* const tables = tables_.load(std::memory_order_relaxed);
  walk(range.begin >> kPageBits, (range.end - 1) >> kPageBits, kTableBits,
       [&](size_t table, size_t word, uint64_t mask) {
         Table* const t = tables->at[table].load(std::memory_order_relaxed);
         if (t != nullptr) visit(t->bits[static_cast<size_t>(of)][word], mask);
         return false;
       });
}

Status WatchedPages::add(const Range& range) noexcept {
  assert(!range.is_empty());
  if (range.end > kEnd) return Errc::not_supported;
  Tables* const tables = tables_.load(std::memory_order_relaxed);  // relaxed: as above
  assert(tables != nullptr);
  constexpr uint64_t kTableSize = uint64_t{1} << (kPageBits + kTableBits);
  for (uint64_t at = range.begin & ~(kTableSize - 1); at < range.end; at += kTableSize) {
    std::atomic<Table*>& table = tables->at[at / kTableSize];
    if (table.load(std::memory_order_relaxed) != nullptr) continue;  // relaxed: as above
    auto* const made = map_zeros<Table>();
    if (made == nullptr) return Errc::no_memory;
    // SYNC POINT: watched-table: it is all zeros
    table.store(made, std::memory_order_release);
  }
  // relaxed: who is to find it has been told of this memory, which orders
  const auto set = [](std::atomic<uint64_t>& word, uint64_t mask) {
    word.fetch_or(mask, std::memory_order_relaxed);
  };
  Range inner = range;
  if (range.size() >= 3 * page_size()) {
    inner = {range.begin + page_size(), range.end - page_size()};
  }
  for_each_word(range, Of::pages, set);
  for_each_word(inner, Of::blocks, set);
  return {};
}

void WatchedPages::remove(const Range& range) noexcept {
  for (const Of of : {Of::pages, Of::blocks}) {
    for_each_word(range, of, [](std::atomic<uint64_t>& word, uint64_t mask) {
      word.fetch_and(~mask, std::memory_order_relaxed);  // relaxed: found once more does no harm
    });
  }
}

// The tables stay, empty, as does their address for whoever is just looking at them.
void WatchedPages::clear() noexcept {
  // relaxed, both: as above
  Tables* const tables = tables_.load(std::memory_order_relaxed);
  if (tables == nullptr) return;
  for (std::atomic<Table*>& at : tables->at) {
    Table* const table = at.load(std::memory_order_relaxed);
    if (table != nullptr) ::madvise(table, sizeof *table, MADV_DONTNEED);
  }
}

bool WatchedPages::any_in(const Tables& tables, const Range& range, Of of) noexcept {
  if (range.is_empty() || range.begin >= kEnd) return false;
  const uint64_t last = (std::min(range.end, kEnd) - 1) >> kPageBits;
  uint64_t page = range.begin >> kPageBits;
  while (page <= last) {
    const uint64_t end = std::min(last, page | ((uint64_t{1} << kTableBits) - 1));
    // SYNC POINT: watched-table
    const Table* const table = tables.at[page >> kTableBits].load(std::memory_order_acquire);
    if (table != nullptr && walk(page, end, kTableBits, [&](size_t, size_t word, uint64_t mask) {
          // relaxed: as add() says
          const auto& bits = table->bits[static_cast<size_t>(of)][word];
          return (bits.load(std::memory_order_relaxed) & mask) != 0;
        })) {
      return true;
    }
    page = end + 1;
  }
  return false;
}

}  // namespace aperture::regcache
