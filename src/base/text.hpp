// Parts of what a user has written: settings, lists. No state: any thread.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace aperture {

inline bool begins(std::string_view text, std::string_view head) noexcept {
  return text.substr(0, head.size()) == head;
}

// Without the spaces around it.
inline std::string_view trimmed(std::string_view text) noexcept {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// All of it is digits, and the number is one of that type: it is in `out` then.
template <typename Number>
bool is_number(std::string_view text, Number& out) noexcept {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), out);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

}  // namespace aperture
