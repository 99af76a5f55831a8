// The two faces of `aperture info`: text for people, JSON for programs. Both say the same.
#pragma once

#include <string>
#include <vector>

#include "tool/host.hpp"

namespace aperture::tool {

// One line per fact; a restriction has its reason and its gain below it.
std::string as_text(const std::vector<Fact>& facts);

// One member per fact: {"available": bool, "why_not": text, "gain": text, figures...}; the last
// three only where they apply. Ends with a newline.
std::string as_json(const std::vector<Fact>& facts);

}  // namespace aperture::tool
