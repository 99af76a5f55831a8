// Short copies: every length, nothing outside it.
#include "base/copy.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>

namespace aperture {
namespace {

TEST(CopyShort, copies_every_length_and_nothing_else) {
  for (size_t n = 0; n <= kShortBytes; ++n) {
    SCOPED_TRACE(n);
    std::array<unsigned char, kShortBytes + 2> from, to;
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i + 1);
    to.fill(0xee);
    // exactly as long as n: a sanitizer sees a byte read or written beyond
    std::unique_ptr<unsigned char[]> in(new unsigned char[n]), out(new unsigned char[n]);
    std::memcpy(in.get(), from.data() + 1, n);
    copy_short(out.get(), in.get(), n);
    copy_short(to.data() + 1, out.get(), n);
    EXPECT_EQ(to[0], 0xee);
    EXPECT_EQ(std::memcmp(to.data() + 1, from.data() + 1, n), 0);
    EXPECT_EQ(to[n + 1], 0xee);
  }
}

}  // namespace
}  // namespace aperture
