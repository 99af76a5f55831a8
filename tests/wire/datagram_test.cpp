// Datagrams lie as drawn, nothing else decodes, and every process finds the same group.
#include "wire/datagram.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

namespace aperture::wire {
namespace {

DatagramHead some_head() {
  DatagramHead head;
  head.flags = kDatagramImm | kDatagramSolicited;
  head.length = Wild<uint16_t>(5);
  head.dest_qpn = Wild<uint32_t>(0x123400);
  head.traffic_class = 0xb8;
  head.src_qpn = Wild<uint32_t>(0x567800);
  head.qkey = Wild<uint32_t>(0x11223344);
  head.imm = 0xaabbccdd;
  return head;
}

std::vector<std::byte> bytes_of(const DatagramHead& head) {
  std::vector<std::byte> out(kDatagramHeaderBytes + head.length.unchecked());
  encode(head, std::span(out).first<kDatagramHeaderBytes>());
  return out;
}

Address group(std::initializer_list<uint8_t> first) {
  Address a;
  std::copy(first.begin(), first.end(), a.ip.begin());
  return a;
}

TEST(Datagram, lies_as_drawn) {
  const auto bytes = bytes_of(some_head());
  EXPECT_EQ(std::memcmp(bytes.data(), "APUD", 4), 0);
  const uint8_t expected[] = {1,    3,    5,    0,    0x00, 0x34, 0x12, 0xb8, 0x00, 0x78, 0x56, 0,
                              0x44, 0x33, 0x22, 0x11, 0xdd, 0xcc, 0xbb, 0xaa, 0,    0,    0,    0};
  EXPECT_EQ(std::memcmp(bytes.data() + 4, expected, sizeof expected), 0);
}

TEST(Datagram, comes_back_as_it_went) {
  for (const uint16_t length : {uint16_t{0}, uint16_t{1}, uint16_t{kDatagramMtu}}) {
    DatagramHead head = some_head();
    head.length = Wild<uint16_t>(length);
    const auto got = decode_datagram(bytes_of(head));
    ASSERT_TRUE(got);
    EXPECT_EQ(bytes_of(got.value()), bytes_of(head));
  }
  DatagramHead head = some_head();
  head.dest_qpn = Wild<uint32_t>(kMulticastQpn);
  head.group = Wild<uint32_t>(7);
  head.flags = 0;
  head.imm = 0;
  EXPECT_EQ(bytes_of(decode_datagram(bytes_of(head)).value()), bytes_of(head));
}

TEST(Datagram, of_another_length_does_not_decode) {
  const auto sound = bytes_of(some_head());
  for (size_t n = 0; n < sound.size(); ++n) {
    EXPECT_FALSE(decode_datagram(std::span(sound).first(n))) << n;
  }
  auto longer = sound;
  longer.push_back({});
  EXPECT_FALSE(decode_datagram(longer));
  DatagramHead huge = some_head();
  huge.length = Wild<uint16_t>(kDatagramMtu + 1);
  EXPECT_FALSE(decode_datagram(bytes_of(huge)));
}

TEST(Datagram, with_anything_that_must_not_be_does_not_decode) {
  const auto refuses = [](size_t at, uint8_t value) {
    auto bytes = bytes_of(some_head());
    bytes[at] = std::byte{value};
    return !decode_datagram(bytes).ok();
  };
  EXPECT_TRUE(refuses(0, 'B')) << "magic";
  EXPECT_TRUE(refuses(4, 2)) << "version";
  EXPECT_TRUE(refuses(5, 7)) << "a flag that there is not";
  EXPECT_TRUE(refuses(5, 2)) << "immediate data that is not announced";
  EXPECT_TRUE(refuses(15, 1)) << "a number of more than 24 bits";
  EXPECT_TRUE(refuses(24, 1)) << "a group, but for one queue pair";
  DatagramHead head = some_head();
  head.dest_qpn = Wild<uint32_t>(kMulticastQpn);
  EXPECT_FALSE(decode_datagram(bytes_of(head))) << "no group, but for one";
}

TEST(Group, is_what_ip_says_it_is) {
  EXPECT_TRUE(is_group(Address::v4(0xe0000001, 0)));
  EXPECT_TRUE(is_group(Address::v4(0xefffffff, 0)));
  EXPECT_FALSE(is_group(Address::v4(0xdfffffff, 0)));
  EXPECT_FALSE(is_group(Address::v4(0xf0000000, 0)));
  EXPECT_TRUE(is_group(group({0xff, 0x12, 0x40, 0x1b})));
  EXPECT_FALSE(is_group(group({0xfe, 0x80})));
  EXPECT_FALSE(is_group(Address{}));
}

TEST(Group, of_ipv4_is_itself_and_every_other_has_one_place) {
  const Address four = Address::v4(0xe1020304, 4791);
  EXPECT_EQ(group_on_ipv4(four), four);
  std::set<std::array<uint8_t, 16>> places;
  std::set<uint32_t> tags;
  for (uint8_t i = 0; i < 100; ++i) {
    const Address mgid = group({0xff, 0x12, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, i});
    const Address place = group_on_ipv4(mgid);
    EXPECT_TRUE(place.is_v4());
    EXPECT_EQ(place.ip[12], 239);
    EXPECT_EQ(place.ip[13] & 0xfc, 192);
    EXPECT_EQ(place, group_on_ipv4(mgid));
    EXPECT_NE(group_tag(mgid), 0u);
    places.insert(place.ip);
    tags.insert(group_tag(mgid));
  }
  EXPECT_GT(places.size(), 95u);
  EXPECT_EQ(tags.size(), 100u);
}

TEST(Group, keeps_its_place_between_versions) {
  const Address mgid = group({0xff, 0x12, 0x40, 0x1b});
  EXPECT_EQ(group_on_ipv4(mgid), Address::v4(0xefc00eca, 0));
  EXPECT_EQ(group_tag(mgid), 0xf19dab4fu);
}

TEST(Grh, says_where_it_came_from_in_network_order) {
  const auto grh = grh_of(some_head(), Address::v4(0x0a000001, 1), Address::v4(0x0a000002, 2));
  EXPECT_EQ(grh[0], std::byte{0x6b});
  EXPECT_EQ(grh[1], std::byte{0x80});
  EXPECT_EQ(grh[4], std::byte{0});
  EXPECT_EQ(grh[5], std::byte{12 + 8 + 4 + 8 + 4});
  EXPECT_EQ(grh[6], std::byte{0x1b});
  EXPECT_EQ(grh[18], std::byte{0xff});
  EXPECT_EQ(grh[20], std::byte{10});
  EXPECT_EQ(grh[23], std::byte{1});
  EXPECT_EQ(grh[39], std::byte{2});
}

}  // namespace
}  // namespace aperture::wire
