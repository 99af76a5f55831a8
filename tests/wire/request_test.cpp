// Which messages lie in one cell: the quick answer agrees with the general one for every head.
#include "wire/request.hpp"

#include <gtest/gtest.h>

namespace aperture::wire {
namespace {

TEST(Request, a_line_is_an_inline_send_in_one_cell_and_nothing_else) {
  for (unsigned op = 0; op < 256; ++op) {
    for (unsigned flags = 0; flags < 256; ++flags) {
      for (unsigned len = 0; len < 80; ++len) {
        const Head head = Head::make(static_cast<Op>(op), static_cast<uint8_t>(flags),
                                     static_cast<uint16_t>(len), ~uint64_t{0});
        const bool expected = head.op == static_cast<uint8_t>(Op::send) &&
                              (flags & ~unsigned{kTagged | kImm}) == 0 &&
                              cells_of(Op::send, head.flags, head.len) == 1;
        ASSERT_EQ(is_line(head), expected) << op << " " << flags << " " << len;
      }
    }
  }
}

TEST(Request, no_length_beyond_a_cell_is_taken_for_a_line) {
  for (unsigned len = 49; len < 65536; ++len) {
    ASSERT_FALSE(is_line(Head::make(Op::send, 0, static_cast<uint16_t>(len), 0))) << len;
  }
}

}  // namespace
}  // namespace aperture::wire
