// The numbers behind lkeys and rkeys, one book for each process: protect/key_numbers.hpp.
// Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "protect/key_numbers.hpp"

namespace aperture::verbs {

// How long the end of a region or of a window waits for who is still inside.
constexpr uint64_t kQuietTimeoutNs = 1'000'000'000;

// The book; nullptr: no memory.
protect::KeyNumbers* key_numbers() noexcept;

// A number that was drawn, given back unless it is kept.
class KeyNumber {
 public:
  KeyNumber() = default;
  KeyNumber(const KeyNumber&) = delete;
  KeyNumber& operator=(const KeyNumber&) = delete;
  ~KeyNumber();

  bool draw() noexcept;  // false: none is left, or no memory
  uint32_t number() const noexcept { return *number_; }
  // The key that it begins with: its tag is drawn too.
  uint32_t first_key() const noexcept;
  void keep() noexcept { number_.reset(); }

  // Of a key whose object is gone.
  static void give_back(uint32_t key) noexcept;

 private:
  std::optional<uint32_t> number_;
};

}  // namespace aperture::verbs
