// Names that a slip of the finger keeps from being what was meant. No state; any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace aperture {

// How many letters have to be put in, taken out or changed to make b of a; case is no matter.
size_t spelling_distance(std::string_view a, std::string_view b);

// Of three letters of `meant` one may be wrong.
bool is_nearly(std::string_view text, std::string_view meant);

}  // namespace aperture
