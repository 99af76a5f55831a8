// What a proof is about: every part of the handshake is in the text, where it is drawn.
#include "wire/proof.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

namespace aperture::wire {
namespace {

Id128 id(uint8_t seed) {
  Id128 out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(seed + 7 * i);
  return out;
}

Statement some_statement() {
  Statement s{{id(1), id(2), Address::v4(0x7f000001, 4000)},
              {id(3), id(4), Address::v4(0x7f000002, 5000)},
              0x0102030405060708};
  s.connector.address.index = 7;
  s.acceptor.address.index = 9;
  return s;
}

TEST(Statement, lies_as_drawn) {
  const Statement s = some_statement();
  const auto bytes = encode(s, Who::acceptor);
  EXPECT_EQ(std::memcmp(bytes.data(), "APERTURE", 8), 0);
  EXPECT_EQ(bytes[8], std::byte{kVersion});
  EXPECT_EQ(bytes[10], std::byte{2});
  EXPECT_EQ(std::memcmp(bytes.data() + 16, s.connector.nonce.data(), 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 32, s.acceptor.nonce.data(), 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 48, s.connector.incarnation.data(), 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 64, s.acceptor.incarnation.data(), 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 80, s.connector.address.ip.data(), 16), 0);
  EXPECT_EQ(bytes[96], std::byte{4000 & 0xff});
  EXPECT_EQ(bytes[97], std::byte{4000 >> 8});
  EXPECT_EQ(bytes[114], std::byte{5000 & 0xff});
  EXPECT_EQ(bytes[116], std::byte{7});
  EXPECT_EQ(bytes[117], std::byte{9});
  for (const size_t at : {11, 12, 13, 14, 15, 118, 119}) {
    EXPECT_EQ(bytes[at], std::byte{0}) << at;
  }
  EXPECT_EQ(bytes[120], std::byte{8});
  EXPECT_EQ(bytes[127], std::byte{1});
}

TEST(Statement, says_something_else_for_every_other_handshake) {
  const Statement s = some_statement();
  const std::vector<std::function<void(Statement&)>> changes = {
      [](Statement& t) { t.connector.nonce[15] ^= 1; },
      [](Statement& t) { t.acceptor.nonce[0] ^= 1; },
      [](Statement& t) { t.connector.incarnation[7] ^= 1; },
      [](Statement& t) { t.acceptor.incarnation[7] ^= 1; },
      [](Statement& t) { t.connector.address.ip[15] ^= 1; },
      [](Statement& t) { t.connector.address.port ^= 1; },
      [](Statement& t) { t.acceptor.address.ip[15] ^= 1; },
      [](Statement& t) { t.acceptor.address.port ^= 1; },
      [](Statement& t) { t.connector.address.index ^= 1; },
      [](Statement& t) { t.acceptor.address.index ^= 1; },
      [](Statement& t) { t.ticket ^= 1; },
      [](Statement& t) { std::swap(t.connector, t.acceptor); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Statement other = s;
    changes[i](other);
    EXPECT_NE(encode(other, Who::connector), encode(s, Who::connector)) << i;
  }
  EXPECT_NE(encode(s, Who::connector), encode(s, Who::acceptor)) << "nor back to whom it came from";
}

}  // namespace
}  // namespace aperture::wire
