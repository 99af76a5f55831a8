// The address table: dense indices for endpoint addresses (the address vector of libfabric).
//
// Guarded by its engine's lock. Indices are given in order and a removed one is used again.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/address.hpp"

namespace aperture::nic {

class AddressTable {
 public:
  // Errors: no_memory. The same address may be inserted twice and gets two indices.
  Result<uint64_t> insert(const Address& address) noexcept;
  // Errors: no_entry.
  Status remove(uint64_t index) noexcept;
  const Address* find(uint64_t index) const noexcept {
    return index < entries_.size() && entries_[index].used ? &entries_[index].address : nullptr;
  }
  // The lowest index of that address but for `except`, or qp::kNoSource (~0) if there is none.
  uint64_t index_of(const Address& address, uint64_t except = ~uint64_t{0}) const noexcept;
  size_t count() const noexcept { return count_; }
  // True once an address was inserted while it was there already.
  bool has_duplicates() const noexcept { return has_duplicates_; }
  // Changes with each insert and remove, so that what was looked up can be known to be stale.
  uint64_t version() const noexcept { return version_; }

 private:
  struct Entry {
    Address address;
    bool used = false;
  };
  std::vector<Entry> entries_;
  std::vector<uint64_t> free_;
  std::unordered_multimap<Address, uint64_t, AddressHash> by_address_;
  size_t count_ = 0;
  bool has_duplicates_ = false;
  uint64_t version_ = 1;
};

// For endpoints that have no addresses.
inline const AddressTable& no_addresses() noexcept {
  static const AddressTable none;
  return none;
}

}  // namespace aperture::nic
