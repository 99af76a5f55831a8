// How a door puts refusals into words: which of its own calls and flags would make an access legal.
//
// A Wording is constant and lives for ever; a door hands its own to the endpoints that it opens, so
// that in a process with both doors each asker reads the names that it knows. What a door leaves
// out is said in the field's words. No state, any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "protect/rights.hpp"
#include "protect/window.hpp"

namespace aperture::protect {

// A text for each value of an enum; null where there is none.
template <typename Enum, size_t kCount>
struct TextBy {
  const char* text[kCount] = {};
  constexpr const char*& operator[](Enum e) noexcept { return text[static_cast<size_t>(e)]; }
  constexpr const char* operator[](Enum e) const noexcept {
    return static_cast<size_t>(e) < kCount ? text[static_cast<size_t>(e)] : nullptr;
  }
};

// A text for each right.
struct TextByRight {
  static constexpr size_t kRights = 10;
  const char* text[kRights] = {};
  constexpr void set(Rights right, const char* to) noexcept { text[bit_of(right)] = to; }
  constexpr const char* of(Rights right) const noexcept { return text[bit_of(right)]; }
  // Of the lowest of several; one at least.
  static constexpr size_t bit_of(Rights rights) noexcept {
    size_t bit = 0;
    while (bit + 1 < kRights && (static_cast<uint32_t>(rights) >> bit & 1) == 0) ++bit;
    return bit;
  }
};

// All texts are static.
struct Wording {
  TextBy<Denial, kDenials> rules;       // what was broken, where sentence() is not the door's word
  TextBy<Denial, kDenials> remedies;    // what would make it legal
  TextByRight right_remedies;           // of missing_right, before remedies
  const char* offset_remedy = nullptr;  // of out_of_range where peers give offsets
  const char* range_remedy = nullptr;   // of out_of_range where nobody here knows which they give
  TextBy<Denial, kDenials> local_remedies;  // of local buffers: descriptor.hpp
  TextByRight right_names;                  // as the application asks for them
  TextBy<WindowAnswer, kWindowAnswers> window_remedies;
  // How the names of its inline functions begin that register and bind: where one of them was
  // called is what the application knows as the place of a registration. Null behind the last.
  const char* inline_calls[5] = {};
};

// The field's words, and no door's.
extern const Wording kNeutralWording;

// Each in the door's words, else in the field's.
const char* rule(const Wording& door, Denial denial) noexcept;
// zero_based: whether peers give offsets; nothing if that is not known.
const char* remedy(const Wording& door, Denial denial, Rights need,
                   std::optional<bool> zero_based) noexcept;
const char* local_remedy(const Wording& door, Denial denial) noexcept;
const char* remedy(const Wording& door, WindowAnswer answer) noexcept;
const char* name_of(const Wording& door, Rights right) noexcept;
// All of them: "FI_SEND and FI_READ", or "nothing".
std::string names_of(const Wording& door, Rights rights);

}  // namespace aperture::protect
