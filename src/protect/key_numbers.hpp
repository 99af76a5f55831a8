// The numbers of verbs keys. An lkey or rkey is 32 bits: the number of an MR or of a memory window,
// and a tag of 8 bits, which the consumer owns for windows of type 2.
//
//   31                 8 7      0
//   | number, 24 bits   |  tag   |     never 0 and never all ones, whatever the tag
//
// Numbers are drawn unpredictably, and unique among those that are out in this process: one
// KeyNumbers serves all domains, so that a key of one domain never names anything in another. A
// number that was given back is not drawn again before half of all numbers have been: whoever kept
// a key of something that is gone finds nothing under it for a long time.
//
// Any thread: one mutex. Only for registration and allocation, never for the data path. (IBTA vol.
// 1, 10.6.3: L_Keys, R_Keys and their key portion.)
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/errc.hpp"

namespace aperture::protect {

constexpr unsigned kKeyTagBits = 8;
constexpr unsigned kKeyNumberBits = 24;

constexpr uint32_t verbs_key(uint32_t number, uint8_t tag) noexcept {
  return number << kKeyTagBits | tag;
}
constexpr uint32_t number_of_key(uint32_t key) noexcept {
  return key >> kKeyTagBits;
}
constexpr uint8_t tag_of_key(uint32_t key) noexcept {
  return static_cast<uint8_t>(key);
}
// The tag counts, the number stays. (IBTA vol. 1, 10.6.7)
constexpr uint32_t next_tag(uint32_t key) noexcept {
  return verbs_key(number_of_key(key), static_cast<uint8_t>(tag_of_key(key) + 1));
}

class KeyNumbers {
 public:
  // Numbers of `bits` bits (tests take few), 4 to 24. A quarter of them can be out at once. Errors:
  // no_memory (of address space: memory comes as numbers are drawn), invalid.
  static Result<std::unique_ptr<KeyNumbers>> create(unsigned bits = kKeyNumberBits);

  // A number that nothing has. Errors: no_space (a quarter of all are out).
  Result<uint32_t> take() noexcept;
  // What take() returned, once.
  void give_back(uint32_t number) noexcept;
  uint32_t out() const noexcept;

 private:
  // A bit for each number; pages come when they are touched.
  struct Free {
    void operator()(void* p) const noexcept { std::free(p); }
  };
  using Bitmap = std::unique_ptr<uint64_t[], Free>;
  // A spell lasts until an eighth of all numbers have been drawn in it. The spells before it that
  // are remembered make up the half.
  static constexpr unsigned kSpellsBefore = 4;
  static constexpr unsigned kSpells = kSpellsBefore + 1;

  explicit KeyNumbers(uint32_t count) noexcept : count_(count) {}
  size_t words() const noexcept { return (count_ + 63) / 64; }
  bool rests(uint32_t number) const noexcept;
  void begin_spell() noexcept;

  const uint32_t count_;
  mutable std::mutex mutex_;               // guards what follows
  Bitmap taken_;                           // those that are out
  std::array<Bitmap, kSpells> came_back_;  // those that came back, by spell
  unsigned spell_ = 0;                     // of came_back_, now
  uint32_t drawn_ = 0;                     // in this spell
  uint32_t out_ = 0;
};

}  // namespace aperture::protect
