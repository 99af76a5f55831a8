// What the owner alone knows of a few regions, by the index of their entries: the side record, and
// where peers count from, if that is no address of the region's own.
//
// Threads: written with the lock of the entries held (key_entries.hpp), before the entry is VALID
// or inside the engine lock of its domain; read inside the latter, but for shares(), which peers
// read. Invariants: the entry of what has a record carries kFlagAskOwner or kFlagDevice; a record
// lives as long as the region's life, and no longer.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/invariant.hpp"
#include "protect/side_record.hpp"

namespace aperture::protect {

class SideTable {
 public:
  // is_made(): there was memory, of address space: pages come with the records.
  explicit SideTable(uint32_t capacity) noexcept
      : capacity_(capacity),
        records_(static_cast<SideRecord**>(std::calloc(capacity, sizeof(void*)))),
        origins_(static_cast<uint64_t*>(std::calloc(capacity, sizeof(uint64_t)))),
        shares_(static_cast<const memory::Share**>(std::calloc(capacity, sizeof(void*)))) {}
  ~SideTable() {
    for (uint32_t i = 0; i < used_; ++i) delete records_[i];
  }
  SideTable(const SideTable&) = delete;
  SideTable& operator=(const SideTable&) = delete;
  bool is_made() const noexcept {
    return records_ != nullptr && origins_ != nullptr && shares_ != nullptr;
  }

  // Null for most.
  SideRecord* record(uint32_t index) const noexcept { return records_[index]; }
  // Of an entry with kFlagOrigin.
  uint64_t origin(uint32_t index) const noexcept { return origins_[index]; }

  // Addresses of what the regions share with peers, by index: of an entry with kFlagDevice.
  const memory::Share* const* shares() const noexcept { return shares_.get(); }

  // To a region that has none; null changes nothing.
  void put(uint32_t index, std::unique_ptr<SideRecord> record) noexcept {
    assert(index < capacity_ && records_[index] == nullptr);
    if (record == nullptr) return;
    APERTURE_DEBUG_ASSERT(!record->segments.empty());
    if (record->share != nullptr) shares_[index] = record->share.get();
    records_[index] = record.release();
    used_ = std::max(used_, index + 1);
  }
  void put_origin(uint32_t index, uint64_t origin) noexcept {
    assert(index < capacity_ && origin != 0);  // 0 is said by kFlagZeroBased
    origins_[index] = origin;
  }
  // The life that had it is over, and no check is in it.
  void drop(uint32_t index) noexcept {
    assert(index < capacity_ && (index < used_ || records_[index] == nullptr));
    if (records_[index] != nullptr && records_[index]->share != nullptr) shares_[index] = nullptr;
    delete std::exchange(records_[index], nullptr);
  }

 private:
  struct Free {
    void operator()(void* p) const noexcept { std::free(p); }
  };

  const uint32_t capacity_;
  uint32_t used_ = 0;  // no record lies beyond
  std::unique_ptr<SideRecord*[], Free> records_;
  std::unique_ptr<uint64_t[], Free> origins_;
  std::unique_ptr<const memory::Share*[], Free> shares_;
};

}  // namespace aperture::protect
