// The address table: see address_table.hpp.
#include "nic/address_table.hpp"

#include <algorithm>
#include <cassert>
#include <new>

namespace aperture::nic {

Result<uint64_t> AddressTable::insert(const Address& address) noexcept {
  try {
    // the lowest first, so that indices stay dense
    const auto lowest = std::min_element(free_.begin(), free_.end());
    const bool fresh = lowest == free_.end();
    const uint64_t index = fresh ? entries_.size() : *lowest;
    const bool known = by_address_.contains(address);
    if (fresh) {
      free_.reserve(entries_.size() + 1);  // remove() never allocates
      entries_.push_back({address, false});
    }
    try {
      by_address_.emplace(address, index);
    } catch (const std::bad_alloc&) {
      if (fresh) entries_.pop_back();
      throw;
    }
    if (!fresh) free_.erase(lowest);
    entries_[index] = {address, true};
    has_duplicates_ = has_duplicates_ || known;
    ++count_;
    assert(count_ == by_address_.size() && count_ + free_.size() == entries_.size());
    ++version_;
    return index;
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
}

Status AddressTable::remove(uint64_t index) noexcept {
  if (find(index) == nullptr) return Errc::no_entry;
  const auto [first, last] = by_address_.equal_range(entries_[index].address);
  for (auto it = first; it != last; ++it) {
    if (it->second != index) continue;
    by_address_.erase(it);
    break;
  }
  entries_[index].used = false;
  free_.push_back(index);
  assert(count_ != 0);
  --count_;
  ++version_;
  assert(count_ == by_address_.size());
  return {};
}

uint64_t AddressTable::index_of(const Address& address, uint64_t except) const noexcept {
  uint64_t lowest = ~uint64_t{0};
  const auto [first, last] = by_address_.equal_range(address);
  for (auto it = first; it != last; ++it) {
    if (it->second != except) lowest = std::min(lowest, it->second);
  }
  return lowest;
}

}  // namespace aperture::nic
