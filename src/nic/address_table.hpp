// The address table: dense indices for endpoint addresses (the address vector of libfabric).
//
// Guarded by its engine's lock. Indices are given in order, the lowest removed one first. What
// completions say of an address is its index, unless the user has given it an id of his own.
//
// A table may be a view of what others put addresses into, too (Origin), at indices that mean the
// same here. Their changes are learned when something is not found, by asking there again, which
// may be a system call: as often as the application asks, and for messages of strangers seldom.
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
  size_t count() const noexcept { return count_; }
  size_t size() const noexcept { return entries_.size(); }  // above all indices
  // Changes with each insert and remove, so that what was looked up can be known to be stale.
  uint64_t version() const noexcept { return version_; }

  // Where others put addresses too. It tells by place() and remove().
  class Origin {
   public:
    virtual ~Origin() = default;
    virtual void refresh() noexcept = 0;
  };
  void set_origin(Origin* origin) noexcept {  // it outlives the table's use
    origin_ = origin;
    receives_look_ = receives_look_ || origin != nullptr;
  }
  // What the application asks for: looked for at the origin too before it is not found.
  const Address* find_fresh(uint64_t index) noexcept {
    const Address* const found = find(index);
    if (found != nullptr || origin_ == nullptr) [[likely]]
      return found;
    origin_->refresh();
    return find(index);
  }
  // The whole of it, as the origin has it now.
  void refresh() noexcept {
    if (origin_ != nullptr) origin_->refresh();
  }
  // What a message asks for that came from there: the lowest index. True in `may_come`: it is in no
  // table, and the next message may ask again. The origin is not asked each time then
  // (kStrangersAtOnce), unless a receive waits for an index that nobody has inserted yet.
  uint64_t source_of(const Address& from, bool& may_come) noexcept;
  static constexpr uint32_t kStrangersAtOnce = 32;
  static constexpr uint64_t kStrangerNs = 1'000'000;  // until the next one, beyond those

  // Receives that name a source have to look for it first, by receive_from().
  bool receives_look() const noexcept { return receives_look_; }
  // A receive may name an index that is not here yet: no message of a stranger is to be missed from
  // now on.
  void await_index() noexcept { awaits_index_ = origin_ != nullptr; }
  // The index under which messages come from there: the lowest that its address has.
  uint64_t receive_from(uint64_t index) noexcept;
  // Above all indices if no lower one is free.
  uint64_t lowest_free() noexcept;
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
  bool is_free(uint64_t index) const noexcept { return (free_[index / 64] >> index % 64 & 1) != 0; }
  void set_free(uint64_t index, bool free) noexcept;
  void make_room(uint64_t size);
  bool may_ask_for_stranger() noexcept;

  std::vector<Entry> entries_;
  std::vector<uint64_t> free_;  // a bit for each of entries_
  size_t lowest_word_ = 0;      // of free_: none before it has a bit
  std::unordered_multimap<Address, uint64_t, AddressHash> by_address_;
  size_t count_ = 0;
  bool has_duplicates_ = false;
  bool receives_look_ = false;  // there are duplicates, or an origin: asked by each receive
  uint64_t version_ = 1;
  unsigned context_bits_ = 0;
  Origin* origin_ = nullptr;
  // how often the origin may be asked for strangers now, and until when that has been reckoned
  uint32_t asks_left_ = kStrangersAtOnce;
  uint64_t reckoned_ns_ = 0;
  bool awaits_index_ = false;  // of a receive that was posted
};

// For endpoints that have no addresses.
inline const AddressTable& no_addresses() noexcept {
  static const AddressTable none;
  return none;
}

}  // namespace aperture::nic
