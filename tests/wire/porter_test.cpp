// The codecs of the porter's messages: what is written is what is read, and every neighbour of it
// is refused.
#include "wire/porter.hpp"

#include <bit>
#include <functional>
#include <vector>

#include "base/value_of.hpp"
#include "wire/same_fields.hpp"

namespace aperture::wire {
namespace {

using aperture::test::value_of;
using test::expect_same;

const PorterHello kHello{3, 7471, Wild<uint16_t>(40000)};
const PorterAnswer kAnswer{PorterVerdict::busy};
const PorterNote kNote{Wild<uint16_t>(0x1234)};

struct Kind {
  const char* name;
  PorterBytes bytes;
  std::function<Errc(std::span<const std::byte>)> decode;
};

std::vector<Kind> all() {
  return {
      {"hello", encode(kHello), [](auto b) { return decode_porter_hello(b).error(); }},
      {"answer", encode(kAnswer), [](auto b) { return decode_porter_answer(b).error(); }},
      {"note", encode(kNote), [](auto b) { return decode_porter_note(b).error(); }},
  };
}

TEST(WirePorter, lies_as_drawn) {
  const uint8_t hello[] = {'A', 'P', 'E', 'R', 'T',  'P',  'H',  0,
                           1,   0,   3,   0,   0x2f, 0x1d, 0x40, 0x9c};
  EXPECT_EQ(encode(kHello), std::bit_cast<PorterBytes>(hello));
  const uint8_t answer[] = {'A', 'P', 'E', 'R', 'T', 'P', 'A', 0, 1, 0, 3, 0, 0, 0, 0, 0};
  EXPECT_EQ(encode(kAnswer), std::bit_cast<PorterBytes>(answer));
  const uint8_t note[] = {'A', 'P', 'E', 'R', 'T', 'P', 'N', 0, 1, 0, 0, 0, 0x34, 0x12, 0, 0};
  EXPECT_EQ(encode(kNote), std::bit_cast<PorterBytes>(note));
}

TEST(WirePorter, what_is_written_is_read) {
  expect_same(value_of(decode_porter_hello(encode(kHello))), kHello, &PorterHello::space,
              &PorterHello::port, &PorterHello::from);
  expect_same(value_of(decode_porter_answer(encode(kAnswer))), kAnswer, &PorterAnswer::verdict);
  expect_same(value_of(decode_porter_note(encode(kNote))), kNote, &PorterNote::from);
}

TEST(WirePorter, nothing_is_read_as_another) {
  for (const Kind& written : all()) {
    for (const Kind& read : all()) {
      const bool same = written.name == read.name;
      EXPECT_EQ(read.decode(written.bytes), same ? Errc::ok : Errc::protocol)
          << written.name << " as " << read.name;
    }
  }
}

TEST(WirePorter, another_length_magic_or_version_is_refused) {
  for (const Kind& kind : all()) {
    SCOPED_TRACE(kind.name);
    for (size_t n = 0; n < kPorterBytes; ++n) {
      EXPECT_EQ(kind.decode(std::span(kind.bytes).first(n)), Errc::protocol);
    }
    std::vector<std::byte> longer(kind.bytes.begin(), kind.bytes.end());
    longer.push_back({});
    EXPECT_EQ(kind.decode(longer), Errc::protocol);
    for (size_t i = 0; i < 10; ++i) {
      PorterBytes changed = kind.bytes;
      changed[i] ^= std::byte{0x10};
      EXPECT_EQ(kind.decode(changed), i < 8 ? Errc::protocol : Errc::not_supported) << i;
    }
  }
}

TEST(WirePorter, values_that_mean_nothing_are_refused) {
  const auto hello = [](auto change) {
    PorterHello h = kHello;
    change(h);
    return decode_porter_hello(encode(h)).error();
  };
  EXPECT_EQ(hello([](PorterHello& h) { h.space = kPortSpaces; }), Errc::protocol);
  EXPECT_EQ(hello([](PorterHello& h) { h.port = 0; }), Errc::protocol);
  EXPECT_EQ(hello([](PorterHello& h) { h.from = Wild<uint16_t>(0); }), Errc::protocol);
  EXPECT_EQ(decode_porter_note(encode(PorterNote{})).error(), Errc::protocol);
  for (const uint8_t verdict : {uint8_t{0}, uint8_t{4}, uint8_t{255}}) {
    EXPECT_EQ(decode_porter_answer(encode(PorterAnswer{PorterVerdict{verdict}})).error(),
              Errc::protocol);
  }
  for (const Kind& kind : all()) {
    for (size_t i = 10; i < kPorterBytes; ++i) {
      if (kind.bytes[i] != std::byte{0} || (kind.bytes == encode(kHello) && i != 11)) continue;
      PorterBytes changed = kind.bytes;
      changed[i] = std::byte{1};
      EXPECT_EQ(kind.decode(changed), Errc::protocol) << kind.name << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace aperture::wire
