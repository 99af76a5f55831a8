// The address table: see address_table.hpp.
#include "nic/address_table.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <new>

#include "base/clock.hpp"

namespace aperture::nic {

// --- which indices are free ---

void AddressTable::set_free(uint64_t index, bool free) noexcept {
  assert(index < entries_.size() && is_free(index) != free);
  free_[index / 64] ^= uint64_t{1} << index % 64;
  if (free) lowest_word_ = std::min<size_t>(lowest_word_, index / 64);
}

// All new ones are free. By exception std::bad_alloc.
void AddressTable::make_room(uint64_t size) {
  if (size <= entries_.size()) return;
  const uint64_t before = entries_.size();
  free_.resize((size + 63) / 64);
  entries_.resize(size);
  for (uint64_t index = before; index < size; ++index) set_free(index, true);
}

uint64_t AddressTable::lowest_free() noexcept {
  if (count_ == entries_.size()) return count_;
  while (free_[lowest_word_] == 0) ++lowest_word_;
  return lowest_word_ * 64 + static_cast<uint64_t>(std::countr_zero(free_[lowest_word_]));
}

// --- changes ---

Result<uint64_t> AddressTable::insert(const Address& address,
                                      std::optional<uint64_t> reported) noexcept {
  const uint64_t index = lowest_free();
  if (const Status s = place(index, address); !s) return s.error();
  if (reported) entries_[index].reported = *reported;
  return index;
}

Status AddressTable::place(uint64_t index, const Address& address) noexcept {
  assert(find(index) == nullptr);
  try {
    make_room(index + 1);
    const bool known = by_address_.contains(address);
    by_address_.emplace(address, index);
    has_duplicates_ = has_duplicates_ || known;
    receives_look_ = receives_look_ || known;
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  set_free(index, false);
  entries_[index] = {address, true, index};
  ++count_;
  ++version_;
  assert(count_ == by_address_.size() && count_ <= entries_.size());
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
  set_free(index, true);
  assert(count_ != 0);
  --count_;
  ++version_;
  assert(count_ == by_address_.size());
  return {};
}

// --- looking up ---

uint64_t AddressTable::index_of(const Address& address, uint64_t except) const noexcept {
  uint64_t lowest = ~uint64_t{0};
  const auto [first, last] = by_address_.equal_range(address);
  for (auto it = first; it != last; ++it) {
    if (it->second != except) lowest = std::min(lowest, it->second);
  }
  return lowest;
}

uint64_t AddressTable::source_of(const Address& from, bool& may_come) noexcept {
  uint64_t index = index_of(from);
  if (index == ~uint64_t{0} && origin_ != nullptr && may_ask_for_stranger()) {
    origin_->refresh();
    index = index_of(from);
  }
  may_come = index == ~uint64_t{0} && origin_ != nullptr;
  return index;
}

bool AddressTable::may_ask_for_stranger() noexcept {
  if (awaits_index_) return true;  // a message that is not recognised would never find that receive
  const uint64_t now = now_ns();
  const uint64_t more = (now - reckoned_ns_) / kStrangerNs;
  if (more >= kStrangersAtOnce - asks_left_) {
    asks_left_ = kStrangersAtOnce;
    reckoned_ns_ = now;
  } else {
    asks_left_ += static_cast<uint32_t>(more);
    reckoned_ns_ += more * kStrangerNs;
  }
  assert(asks_left_ <= kStrangersAtOnce);
  if (asks_left_ == 0) return false;
  --asks_left_;
  return true;
}

uint64_t AddressTable::receive_from(uint64_t index) noexcept {
  const Address* const address = find_fresh(index);
  if (address == nullptr) await_index();
  return address != nullptr && has_duplicates_ ? index_of(*address) : index;
}

}  // namespace aperture::nic
