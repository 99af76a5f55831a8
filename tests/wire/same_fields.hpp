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
  ((EXPECT_EQ(plain(got.*field), plain(want.*field)) << "field " << n++), ...);
}

}  // namespace aperture::wire::test
