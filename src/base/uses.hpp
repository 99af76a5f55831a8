// How many objects refer to another one, which cannot go until there are none. Any thread.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <utility>

namespace aperture {

class Uses {
 public:
  // relaxed: a count alone; what is behind it is published by whoever handed the object over
  void add() noexcept {
    [[maybe_unused]] const uint32_t before = count_.fetch_add(1, std::memory_order_relaxed);
    assert(before != UINT32_MAX);
  }
  void drop() noexcept {
    // SYNC POINT: uses: what the child did to its parent is visible before the parent goes
    [[maybe_unused]] const uint32_t before = count_.fetch_sub(1, std::memory_order_release);
    assert(before != 0);
  }
  uint32_t count() const noexcept {
    // SYNC POINT: uses: a close that reads 0 sees what every child did
    return count_.load(std::memory_order_acquire);
  }

 private:
  std::atomic<uint32_t> count_{0};
};

// One use of an object, for as long as this lives.
class Use {
 public:
  Use() noexcept = default;
  explicit Use(Uses& uses) noexcept : uses_(&uses) { uses.add(); }
  Use(Use&& other) noexcept : uses_(std::exchange(other.uses_, nullptr)) {}
  Use& operator=(Use&& other) noexcept {
    std::swap(uses_, other.uses_);
    return *this;
  }
  ~Use() {
    if (uses_ != nullptr) uses_->drop();
  }
  explicit operator bool() const noexcept { return uses_ != nullptr; }

 private:
  Uses* uses_ = nullptr;
};

// The object of ours whose first member is this one of a library's.
template <typename Object, typename Base>
Object& object_of(Base* base) noexcept {
  return *reinterpret_cast<Object*>(base);
}

}  // namespace aperture
