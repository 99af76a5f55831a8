// That what was read is what was written, field by field.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "wire/cm.hpp"

namespace aperture::wire::test {

template <typename T>
auto plain(const T& value) {
  if constexpr (requires { value.unchecked(); }) {
    return value.unchecked();
  } else {
    return value;
  }
}
inline auto plain(const Ece& ece) {
  return std::pair(plain(ece.vendor), plain(ece.attributes));
}

template <typename Message, typename... Field>
void expect_same(const Message& got, const Message& want, Field Message::*... field) {
  int n = 0;
  const auto same = [&n](const auto& is, const auto& should_be) {
    EXPECT_EQ(plain(is), plain(should_be)) << "field " << n++;
  };
  (same(got.*field, want.*field), ...);
}

}  // namespace aperture::wire::test
