// libfabric's datagrams lie as drawn, and nothing else decodes.
#include "wire/message_datagram.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace aperture::wire {
namespace {

MessageHead some_head() {
  MessageHead head;
  head.flags = kMessageData;
  head.length = Wild<uint16_t>(5);
  head.group = Wild<uint32_t>(0x11223344);
  head.group_port = Wild<uint16_t>(0x5566);
  head.data = 0x0102030405060708;
  return head;
}

std::vector<std::byte> bytes_of(const MessageHead& head) {
  std::vector<std::byte> out(kMessageHeaderBytes + head.length.unchecked(), std::byte{0xee});
  encode(head, std::span(out).first<kMessageHeaderBytes>());
  return out;
}

TEST(MessageDatagram, lies_as_drawn) {
  const auto bytes = bytes_of(some_head());
  EXPECT_EQ(std::memcmp(bytes.data(), "APFD", 4), 0);
  const uint8_t expected[] = {1, 1, 5, 0, 0x44, 0x33, 0x22, 0x11, 0x66, 0x55,
                              0, 0, 8, 7, 6,    5,    4,    3,    2,    1};
  EXPECT_EQ(std::memcmp(bytes.data() + 4, expected, sizeof expected), 0);
}

TEST(MessageDatagram, comes_back_as_it_went) {
  for (const uint16_t length : {uint16_t{0}, uint16_t{1}, uint16_t{kDatagramMtu}}) {
    for (const bool plain : {false, true}) {
      MessageHead head = plain ? MessageHead{} : some_head();
      head.length = Wild<uint16_t>(length);
      const auto got = decode_message_datagram(bytes_of(head));
      ASSERT_TRUE(got);
      EXPECT_EQ(bytes_of(got.value()), bytes_of(head));
    }
  }
}

TEST(MessageDatagram, of_another_length_does_not_decode) {
  const auto sound = bytes_of(some_head());
  for (size_t n = 0; n < sound.size(); ++n) {
    EXPECT_FALSE(decode_message_datagram(std::span(sound).first(n))) << n;
  }
  auto longer = sound;
  longer.push_back({});
  EXPECT_FALSE(decode_message_datagram(longer));
  MessageHead huge = some_head();
  huge.length = Wild<uint16_t>(kDatagramMtu + 1);
  EXPECT_FALSE(decode_message_datagram(bytes_of(huge)));
}

TEST(MessageDatagram, with_anything_that_must_not_be_does_not_decode) {
  const auto refuses = [](size_t at, uint8_t value) {
    auto bytes = bytes_of(some_head());
    bytes[at] = std::byte{value};
    return !decode_message_datagram(bytes).ok();
  };
  EXPECT_TRUE(refuses(3, 'U')) << "the magic of a verbs queue pair's datagram";
  EXPECT_TRUE(refuses(4, 2)) << "version";
  EXPECT_TRUE(refuses(5, 3)) << "a flag that there is not";
  EXPECT_TRUE(refuses(5, 0)) << "data that is not announced";
  EXPECT_TRUE(refuses(14, 1)) << "reserved";
  EXPECT_TRUE(refuses(15, 1)) << "reserved";
  MessageHead head = some_head();
  head.group = Wild<uint32_t>(0);
  EXPECT_FALSE(decode_message_datagram(bytes_of(head))) << "a group's port, but for one endpoint";
}

TEST(MessageDatagram, is_none_of_a_verbs_queue_pair) {
  std::vector<std::byte> verbs(kDatagramHeaderBytes);
  encode(DatagramHead{}, std::span(verbs).first<kDatagramHeaderBytes>());
  EXPECT_FALSE(decode_message_datagram(verbs));
  EXPECT_FALSE(decode_datagram(bytes_of(some_head())));
}

}  // namespace
}  // namespace aperture::wire
