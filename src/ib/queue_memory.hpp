// Where the memory of queues comes from: the process's own allocator, or one that the application
// has given for them (ibv_alloc_parent_domain(3)).
//
// Asked when a queue is made or resized, never on the data path.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

namespace aperture::ib {

class QueueMemory {
 public:
  virtual ~QueueMemory() = default;
  // False: the process's own allocator shall be asked. `at` is nullptr when there is no memory.
  virtual bool allocate(size_t bytes, size_t alignment, void*& at) noexcept = 0;
  virtual void release(void* at) noexcept = 0;
};

// An array of that memory, whose items are stored before they are read: what has never been needed
// has not been touched. memory (null: the process's own) outlives it.
template <typename T>
class QueueArray {
  static_assert(std::is_trivially_destructible_v<T> && std::is_trivially_copyable_v<T>);

 public:
  // By exception std::bad_alloc.
  QueueArray(size_t count, QueueMemory* memory) : memory_(memory) {
    count = std::max<size_t>(count, 1);  // even of none there is an address
    void* at = nullptr;
    if (memory_ == nullptr || !memory_->allocate(count * sizeof(T), kAlignment, at)) {
      memory_ = nullptr;
      at = ::operator new (count * sizeof(T), std::align_val_t{kAlignment});
    }
    if (at == nullptr) throw std::bad_alloc();
    items_ = static_cast<T*>(at);
    // how an application's memory is aligned is for the application to see to
    assert(memory_ != nullptr || reinterpret_cast<uintptr_t>(items_) % kAlignment == 0);
  }
  ~QueueArray() {
    assert(items_ != nullptr);
    if (memory_ != nullptr) {
      memory_->release(items_);
    } else {
      ::operator delete (items_, std::align_val_t{kAlignment});
    }
  }
  QueueArray(const QueueArray&) = delete;
  QueueArray& operator=(const QueueArray&) = delete;

  T& operator[](size_t at) noexcept { return items_[at]; }
  const T& operator[](size_t at) const noexcept { return items_[at]; }
  void swap(QueueArray& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(items_, other.items_);
  }

 private:
  static constexpr size_t kAlignment = 64;  // a cache line

  QueueMemory* memory_;  // that has given it; null: the process's own
  T* items_ = nullptr;
};

}  // namespace aperture::ib
