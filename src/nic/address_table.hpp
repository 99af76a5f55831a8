// The address table: dense indices for endpoint addresses (the address vector of libfabric).
//
// Guarded by its engine's lock. Indices are given in order and a removed one is used again. What
// completions say of an address is its index, unless the user has given it an id of his own.
//
// Where endpoints have several receive contexts, the highest bits of what names a destination are
// the number of one.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/address.hpp"

namespace aperture::nic {

class AddressTable {
 public:
  // Errors: no_memory. The same address may be inserted twice and gets two indices. reported: what
  // completions say of it; none: its index.
  Result<uint64_t> insert(const Address& address, std::optional<uint64_t> reported = {}) noexcept;
  // Errors: no_entry.
  Status set_reported(uint64_t index, uint64_t reported) noexcept;
  // Of no index: itself.
  uint64_t reported(uint64_t index) const noexcept {
    return find(index) != nullptr ? entries_[index].reported : index;
  }
  // Errors: no_entry.
  Status remove(uint64_t index) noexcept;
  const Address* find(uint64_t index) const noexcept {
    return index < entries_.size() && entries_[index].used ? &entries_[index].address : nullptr;
  }
  // The lowest index of that address but for `except`, or qp::kNoSource (~0) if there is none.
  uint64_t index_of(const Address& address, uint64_t except = ~uint64_t{0}) const noexcept;
  // Receives name a peer by the lowest index that it has: what they say instead of this one, which
  // may be none of the table's.
  uint64_t canonical(uint64_t index) const noexcept {
    if (!has_duplicates_) return index;
    const Address* address = find(index);
    return address != nullptr ? index_of(*address) : index;
  }
  size_t count() const noexcept { return count_; }
  size_t size() const noexcept { return entries_.size(); }  // above all indices
  // True once an address was inserted while it was there already.
  bool has_duplicates() const noexcept { return has_duplicates_; }
  // Changes with each insert and remove, so that what was looked up can be known to be stale.
  uint64_t version() const noexcept { return version_; }

  // Where others put addresses too, at indices that mean the same here. It is asked again when
  // something is not found, and tells by place() and remove().
  class Origin {
   public:
    virtual ~Origin() = default;
    virtual void refresh() noexcept = 0;
  };
  void set_origin(Origin* origin) noexcept { origin_ = origin; }  // it outlives the table's use
  // False: there is none, so nothing new is known.
  bool refresh() noexcept {
    if (origin_ == nullptr) return false;
    origin_->refresh();
    return true;
  }
  // At that index, which is free. Errors: no_memory.
  Status place(uint64_t index, const Address& address) noexcept;

  // A destination: an index, and the number of a receive context there.
  struct Destination {
    uint64_t index;
    uint64_t context;
  };
  Destination destination(uint64_t name) const noexcept {
    if (context_bits_ == 0) return {name, 0};
    return {name & ~uint64_t{0} >> context_bits_, name >> (64 - context_bits_)};
  }
  // At most 63; before anything is named.
  void set_context_bits(unsigned bits) noexcept { context_bits_ = bits; }

 private:
  struct Entry {
    Address address;
    bool used = false;
    uint64_t reported = 0;
  };
  std::vector<Entry> entries_;
  std::vector<uint64_t> free_;
  std::unordered_multimap<Address, uint64_t, AddressHash> by_address_;
  size_t count_ = 0;
  bool has_duplicates_ = false;
  uint64_t version_ = 1;
  unsigned context_bits_ = 0;
  Origin* origin_ = nullptr;
};

// For endpoints that have no addresses.
inline const AddressTable& no_addresses() noexcept {
  static const AddressTable none;
  return none;
}

}  // namespace aperture::nic
