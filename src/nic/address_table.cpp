// The address table: see address_table.hpp.
#include "nic/address_table.hpp"

#include <algorithm>
#include <new>

namespace aperture::nic {

Result<uint64_t> AddressTable::insert(const Address& address) noexcept {
  try {
    uint64_t index = 0;
    if (free_.empty()) {
      index = entries_.size();
      entries_.push_back({address, true});
      free_.reserve(entries_.size());  // remove() never allocates
    } else {
      // the lowest first, so that indices stay dense
      const auto lowest = std::min_element(free_.begin(), free_.end());
      index = *lowest;
      free_.erase(lowest);
      entries_[index] = {address, true};
    }
    if (by_address_.contains(address)) has_duplicates_ = true;
    by_address_.emplace(address, index);
    ++count_;
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
  --count_;
  ++version_;
  return {};
}

uint64_t AddressTable::index_of(const Address& address) const noexcept {
  uint64_t lowest = ~uint64_t{0};
  const auto [first, last] = by_address_.equal_range(address);
  for (auto it = first; it != last; ++it) lowest = std::min(lowest, it->second);
  return lowest;
}

}  // namespace aperture::nic
