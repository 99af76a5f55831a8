// Drawing key numbers: see key_numbers.hpp.
#include "protect/key_numbers.hpp"

#include <algorithm>
#include <cassert>
#include <new>

#include "base/random.hpp"

namespace aperture::protect {

namespace {

bool has(const uint64_t* bitmap, uint32_t number) noexcept {
  return (bitmap[number / 64] >> number % 64 & 1) != 0;
}

void put(uint64_t* bitmap, uint32_t number) noexcept {
  bitmap[number / 64] |= uint64_t{1} << number % 64;
}

}  // namespace

Result<std::unique_ptr<KeyNumbers>> KeyNumbers::create(unsigned bits) {
  if (bits < 4 || bits > kKeyNumberBits) return Errc::invalid;
  std::unique_ptr<KeyNumbers> made(new (std::nothrow) KeyNumbers(1u << bits));
  if (made == nullptr) return Errc::no_memory;
  const auto bitmap = [words = made->words()] {
    return Bitmap(static_cast<uint64_t*>(std::calloc(words, sizeof(uint64_t))));
  };
  made->taken_ = bitmap();
  bool all = made->taken_ != nullptr;
  for (Bitmap& back : made->came_back_) {
    back = bitmap();
    all = all && back != nullptr;
  }
  if (!all) return Errc::no_memory;
  return made;
}

bool KeyNumbers::rests(uint32_t number) const noexcept {
  if (has(taken_.get(), number)) return true;
  return std::any_of(came_back_.begin(), came_back_.end(),
                     [number](const Bitmap& back) { return has(back.get(), number); });
}

// The oldest spell is forgotten: half of all numbers have been drawn since it ended.
void KeyNumbers::begin_spell() noexcept {
  spell_ = (spell_ + 1) % kSpells;
  std::fill_n(came_back_[spell_].get(), words(), 0);
  drawn_ = 0;
}

// At most 5/8 of the numbers were drawn in the spells that are remembered, and at most 1/4 were out
// when those began (and may have come back since): one try in eight succeeds, or more. What is out
// rests anyway; that it was is noted when it comes back.
Result<uint32_t> KeyNumbers::take() noexcept {
  std::lock_guard guard(mutex_);
  if (out_ >= count_ / 4) return Errc::no_space;
  uint32_t number;
  do {
    number = static_cast<uint32_t>(random_u64()) & (count_ - 1);
  } while (number == 0 || number == count_ - 1 || rests(number));
  put(taken_.get(), number);
  ++out_;
  assert(drawn_ < count_ / 8);
  if (++drawn_ == count_ / 8) begin_spell();
  return number;
}

void KeyNumbers::give_back(uint32_t number) noexcept {
  std::lock_guard guard(mutex_);
  assert(number < count_ && has(taken_.get(), number));
  taken_[number / 64] &= ~(uint64_t{1} << number % 64);
  put(came_back_[spell_].get(), number);
  assert(out_ != 0);
  --out_;
}

uint32_t KeyNumbers::out() const noexcept {
  std::lock_guard guard(mutex_);
  return out_;
}

}  // namespace aperture::protect
