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

TEST(StoreMembers, puts_them_as_they_lie_in_the_type_at_any_address) {
  struct Record {
    uint64_t a;
    uint32_t b;
    uint16_t c;
    uint16_t d;
  };
  const Record record{0x0807060504030201, 0x0c0b0a09, 0x0e0d, 0x100f};
  for (size_t at = 0; at < sizeof record; ++at) {
    SCOPED_TRACE(at);
    std::array<std::byte, 2 * sizeof record> to;
    to.fill(std::byte{0xee});
    store_members(to.data() + at, record);
    for (size_t i = 0; i < to.size(); ++i) {
      const bool inside = i >= at && i < at + sizeof record;
      EXPECT_EQ(to[i], static_cast<std::byte>(inside ? i - at + 1 : 0xee)) << i;
    }
  }
}

}  // namespace
}  // namespace aperture
