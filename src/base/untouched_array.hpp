// An array whose items are stored before they are read. None is made at the beginning: memory that
// the system has just given is not touched, so what a large array never needs costs no page.
//
// Not thread-safe. A copy would read what has never been stored: there is none.
#pragma once

#include <cassert>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/invariant.hpp"

namespace aperture {

template <typename T>
class UntouchedArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  UntouchedArray() noexcept = default;
  // By exception std::bad_alloc.
  explicit UntouchedArray(size_t size)
      : places_(std::make_unique_for_overwrite<Place[]>(size)), size_(size) {
    assert(size != 0);
  }
  UntouchedArray(UntouchedArray&& other) noexcept { swap(other); }
  UntouchedArray& operator=(UntouchedArray&& other) noexcept {
    swap(other);
    return *this;
  }

  size_t size() const noexcept { return size_; }
  T& operator[](size_t at) noexcept {
    APERTURE_DEBUG_ASSERT(at < size_);
    return places_[at].item;
  }
  const T& operator[](size_t at) const noexcept {
    APERTURE_DEBUG_ASSERT(at < size_);
    return places_[at].item;
  }

  void swap(UntouchedArray& other) noexcept {
    std::swap(places_, other.places_);
    std::swap(size_, other.size_);
  }

 private:
  union Place {
    Place() noexcept {}
    T item;
  };

  std::unique_ptr<Place[]> places_;
  size_t size_ = 0;
};

}  // namespace aperture
