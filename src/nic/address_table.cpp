// The address table: see address_table.hpp.
#include "nic/address_table.hpp"

#include <algorithm>
#include <cassert>
#include <new>

namespace aperture::nic {

Result<uint64_t> AddressTable::insert(const Address& address,
                                      std::optional<uint64_t> reported) noexcept {
  try {
    // the lowest first, so that indices stay dense
    const auto lowest = std::min_element(free_.begin(), free_.end());
    const bool fresh = lowest == free_.end();
    const uint64_t index = fresh ? entries_.size() : *lowest;
    const bool known = by_address_.contains(address);
    if (fresh) {
      free_.reserve(entries_.size() + 1);  // remove() never allocates
      entries_.push_back({address, false, 0});
    }
    try {
      by_address_.emplace(address, index);
    } catch (const std::bad_alloc&) {
      if (fresh) entries_.pop_back();
      throw;
    }
    if (!fresh) free_.erase(lowest);
    entries_[index] = {address, true, reported.value_or(index)};
    has_duplicates_ = has_duplicates_ || known;
    ++count_;
    assert(count_ == by_address_.size() && count_ + free_.size() == entries_.size());
    ++version_;
    return index;
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
}

Status AddressTable::place(uint64_t index, const Address& address) noexcept {
  assert(find(index) == nullptr);
  try {
    free_.reserve(std::max(entries_.size(), index + 1));  // remove() never allocates
    const bool known = by_address_.contains(address);
    while (entries_.size() <= index) {
      entries_.push_back({Address{}, false, 0});
      free_.push_back(entries_.size() - 1);
    }
    by_address_.emplace(address, index);
    has_duplicates_ = has_duplicates_ || known;
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  [[maybe_unused]] const size_t taken = std::erase(free_, index);
  assert(taken == 1);
  entries_[index] = {address, true, index};
  ++count_;
  ++version_;
  assert(count_ == by_address_.size() && count_ + free_.size() == entries_.size());
  return {};
}

Status AddressTable::set_reported(uint64_t index, uint64_t reported) noexcept {
  if (find(index) == nullptr) return Errc::no_entry;
  entries_[index].reported = reported;
  ++version_;
  return {};
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
