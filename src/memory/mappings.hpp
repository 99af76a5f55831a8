// Allocations of other processes that a driver has mapped into this one: each once, for as long as
// anything of it is held.
//
// One for each driver. The lock is held while the driver maps or unmaps, so that nobody is given
// what is just being let go. Any thread.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "memory/driver.hpp"

namespace aperture::memory {

class Mappings;

// One of them; unmapped at the end.
class Mapped {
 public:
  explicit Mapped(Mappings& of) noexcept : of_(of) {}
  ~Mapped();
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  // Where [offset, offset + len) of it lies; null: not inside.
  std::byte* place_of(uint64_t offset, uint64_t len) const noexcept {
    if (offset > size || len > size - offset) return nullptr;
    return at + offset;
  }

  // Filled by who maps it.
  std::byte* at = nullptr;  // null: it is not mapped
  size_t size = 0;          // of the whole; 0: nobody knows it, and it holds nothing
  void* in = nullptr;       // the driver's own: a context

 private:
  Mappings& of_;
};

class Mappings {
 public:
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  // What `owner` shares; map(Mapped&) says false where it cannot be had. By exception
  // std::bad_alloc. Null: it is not to be had.
  template <typename Map>
  std::shared_ptr<const Mapped> find(const Share& share, pid_t owner, Map&& map) {
    auto mapped = std::make_shared<Mapped>(*this);
    const std::lock_guard guard(lock_);
    std::erase_if(known_, [](const Known& known) { return known.mapped.expired(); });
    for (const Known& known : known_) {
      if (!known.is(share, owner)) continue;
      if (auto there = known.mapped.lock()) return there;
    }
    known_.push_back({share, owner, mapped});
    if (map(*mapped)) {
      assert(mapped->at != nullptr);
      return mapped;
    }
    assert(mapped->at == nullptr);
    known_.pop_back();
    return nullptr;
  }

 protected:
  Mappings() noexcept = default;
  ~Mappings() = default;

 private:
  friend class Mapped;
  struct Known {
    Share share;
    pid_t owner;
    std::weak_ptr<const Mapped> mapped;

    bool is(const Share& other, pid_t others) const noexcept {
      return owner == others && share.id == other.id && share.device == other.device &&
             share.handle == other.handle;
    }
  };
  virtual void unmap(const Mapped& mapped) noexcept = 0;

  std::mutex lock_;  // guards what follows
  std::vector<Known> known_;
};

inline Mapped::~Mapped() {
  if (at == nullptr) return;
  const std::lock_guard guard(of_.lock_);
  of_.unmap(*this);
}

}  // namespace aperture::memory
