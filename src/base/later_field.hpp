// Fields that a structure of somebody else's header was given later. An application that was built
// before hands over a shorter one, and what lies behind its end may not even be mapped.
#pragma once

namespace aperture {

// The field, read here and nowhere before: a compiler takes a structure for complete once one of
// its fields is read, and may load the others early. (GCC 14 does.)
template <typename T>
T later_field(const T& field) noexcept {
  return *static_cast<const volatile T*>(&field);
}

}  // namespace aperture
