// The codecs of first contact: what is written is what is read, and every neighbour of it is
// refused.
#include "wire/hello.hpp"

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/value_of.hpp"
#include "wire/same_fields.hpp"

namespace aperture::wire {
namespace {

using aperture::test::value_of;
using test::expect_same;

Id128 id(uint8_t seed) {
  Id128 out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(seed + 7 * i);
  return out;
}

Proof proof(uint8_t seed) {
  Proof out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(seed + 5 * i);
  return out;
}

Hello some_hello() {
  Hello h;
  h.boot_id = id(1);
  h.net_ns = 0x0102030405060708;
  h.incarnation = id(2);
  h.nonce = id(3);
  h.source = Address::v4(0x7f000001, 4000);
  h.destination = Address::v4(0x0a000002, 65535);
  h.source.index = 17;
  h.destination.index = 255;
  for (size_t k = 0; k < h.key_tag.size(); ++k) h.key_tag[k] = static_cast<std::byte>(0xe0 + k);
  for (size_t k = 0; k < h.meeting_tag.size(); ++k) {
    h.meeting_tag[k] = static_cast<std::byte>(0xd0 + k);
  }
  return h;
}

Answer some_answer() {
  Answer a;
  a.verdict = Verdict::offered;
  a.boot_id = id(4);
  a.net_ns = 9;
  a.incarnation = id(5);
  a.nonce = id(6);
  a.socket_name = id(7);
  a.ticket = 0xfedcba9876543210;
  return a;
}

Open some_open() {
  Open o;
  o.nonce = id(8);
  o.ticket = Wild<uint64_t>(11);
  o.source = Address::v4(1, 2);
  o.destination = Address::v4(3, 4);
  o.source.index = 5;
  o.destination.index = 6;
  o.lane = Wild<uint32_t>(5);
  o.segment = Wild<uint32_t>(6);
  o.domain = Wild<uint32_t>(7);
  o.engine = Wild<uint64_t>(8);
  o.key_file_bytes = Wild<uint64_t>(1 << 20);
  o.attempt = Wild<uint32_t>(10);
  o.proof = proof(1);
  return o;
}

// Each length but the right one, and each bit that has no meaning set: refused. The reserved bytes
// lie in these ranges.
template <typename Bytes, typename Decode>
void expect_neighbours_refused(const Bytes& good, size_t size, Decode decode,
                               const std::vector<std::pair<size_t, size_t>>& reserved) {
  std::vector<std::byte> longer(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
  longer.push_back(std::byte{0});
  for (size_t n = 0; n <= longer.size(); ++n) {
    EXPECT_EQ(decode({longer.data(), n}).ok(), n == size) << n;
  }
  for (const auto& [from, to] : reserved) {
    for (size_t bit = from * 8; bit < to * 8; ++bit) {
      std::vector<std::byte> bad(longer.begin(), longer.end() - 1);
      bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_FALSE(decode(bad).ok()) << "byte " << bit / 8 << " bit " << bit % 8;
    }
  }
}

// A bit says whether frames have checksums, and the others of its byte say nothing.
template <typename Message, typename Decode, typename Bit>
void expect_bit_of_checksums(Decode decode, Bit bit_of) {
  for (const bool has : {false, true}) {
    Message message;
    bit_of(message) = has;
    PeerPacket packet = encode(message);
    auto back = decode(packet.view());
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(bit_of(back.value()), has);
    for (unsigned bit = 1; bit < 8; ++bit) {
      packet.bytes[2] ^= static_cast<std::byte>(1u << bit);
      EXPECT_FALSE(decode(packet.view()).ok()) << "bit " << bit;
      packet.bytes[2] ^= static_cast<std::byte>(1u << bit);
    }
  }
}

TEST(Hello, is_read_as_it_was_written) {
  const Hello h = some_hello();
  expect_same(value_of(decode_hello(encode(h))), h, &Hello::boot_id, &Hello::net_ns,
              &Hello::incarnation, &Hello::nonce, &Hello::source, &Hello::destination,
              &Hello::key_tag, &Hello::meeting_tag);
}

TEST(Hello, lies_on_the_wire_as_drawn) {
  const auto bytes = encode(some_hello());
  EXPECT_EQ(std::memcmp(bytes.data(), "APERTURE", 8), 0);
  EXPECT_EQ(bytes[8], std::byte{10});
  EXPECT_EQ(bytes[12], std::byte{128});
  EXPECT_EQ(bytes[32], std::byte{8});
  EXPECT_EQ(bytes[39], std::byte{1});
  EXPECT_EQ(bytes[88], std::byte{4000 & 0xff});
  EXPECT_EQ(bytes[89], std::byte{4000 >> 8});
  EXPECT_EQ(bytes[108], std::byte{17});
  EXPECT_EQ(bytes[109], std::byte{255});
  EXPECT_EQ(bytes[112], std::byte{0xe0});
  EXPECT_EQ(bytes[120], std::byte{0xd0});
}

// Its length may be another too, so it is known before all of it is there.
TEST(Hello, of_another_version_is_known_by_its_first_bytes) {
  auto bytes = encode(some_hello());
  EXPECT_FALSE(is_of_another_version(bytes));
  bytes[8] = std::byte{kVersion - 1};
  for (size_t n = 0; n <= bytes.size(); ++n) {
    EXPECT_EQ(is_of_another_version(std::span(bytes).first(n)), n >= 11) << n;
  }
  bytes[10] = std::byte{2};
  EXPECT_FALSE(is_of_another_version(bytes)) << "an answer";
}

TEST(Hello, neighbours_are_refused) {
  expect_neighbours_refused(encode(some_hello()), kHelloBytes, decode_hello, {{0, 16}});
}

TEST(Hello, indices_have_nine_bits) {
  Hello h = some_hello();
  h.source.index = 511;
  h.destination.index = 256;
  auto bytes = encode(h);
  const Hello back = value_of(decode_hello(bytes));
  EXPECT_EQ(back.source.index, 511);
  EXPECT_EQ(back.destination.index, 256);
  for (const size_t high : {size_t{110}, size_t{111}}) {
    for (unsigned bit = 1; bit < 8; ++bit) {
      auto bad = bytes;
      bad[high] ^= static_cast<std::byte>(1u << bit);
      EXPECT_FALSE(decode_hello(bad).ok()) << high << " bit " << bit;
    }
  }
}

TEST(Hello, of_another_version_is_told_apart_from_rubbish) {
  auto bytes = encode(some_hello());
  bytes[8] = std::byte{1};
  EXPECT_EQ(decode_hello(bytes).error(), Errc::not_supported);
  bytes[0] = std::byte{0};
  EXPECT_EQ(decode_hello(bytes).error(), Errc::protocol);
}

TEST(Hello, without_ports_is_refused) {
  Hello h = some_hello();
  h.source.port = 0;
  EXPECT_FALSE(decode_hello(encode(h)).ok());
  h = some_hello();
  h.destination.port = 0;
  EXPECT_FALSE(decode_hello(encode(h)).ok());
}

TEST(Hello, rubbish_is_seen_from_its_first_byte) {
  const auto bytes = encode(some_hello());
  for (size_t n = 0; n <= bytes.size(); ++n) EXPECT_TRUE(may_become_hello({bytes.data(), n}));
  const std::string_view http = "GET / HTTP/1.1";
  EXPECT_FALSE(may_become_hello(std::as_bytes(std::span(http.substr(0, 1)))));
  EXPECT_FALSE(may_become_hello(std::as_bytes(std::span(http))));
}

TEST(Answer, is_read_as_it_was_written) {
  Answer a = some_answer();
  for (const Verdict verdict : {Verdict::offered, Verdict::meets}) {
    a.verdict = verdict;
    expect_same(value_of(decode_answer(encode(a))), a, &Answer::verdict, &Answer::boot_id,
                &Answer::net_ns, &Answer::incarnation, &Answer::nonce, &Answer::socket_name,
                &Answer::ticket);
  }
}

TEST(Answer, neighbours_are_refused) {
  expect_neighbours_refused(encode(some_answer()), kAnswerBytes, decode_answer,
                            {{0, 11}, {12, 16}});
}

TEST(Answer, of_every_verdict_but_those_known_is_refused) {
  for (int v = 0; v < 256; ++v) {
    auto bytes = encode(some_answer());
    std::fill(bytes.begin() + 56, bytes.end(), std::byte{0});  // only an offer offers anything
    bytes[11] = static_cast<std::byte>(v);
    EXPECT_EQ(decode_answer(bytes).ok(), v >= 1 && v <= 8) << v;
  }
}

TEST(Answer, that_offers_nothing_names_nothing) {
  Answer a = some_answer();
  a.verdict = Verdict::crossing;
  EXPECT_FALSE(decode_answer(encode(a)).ok());
  a.nonce = {};
  a.socket_name = {};
  EXPECT_FALSE(decode_answer(encode(a)).ok());
  a.ticket = 0;
  EXPECT_TRUE(decode_answer(encode(a)).ok());
}

TEST(Hello, and_answer_are_never_taken_for_each_other) {
  auto hello = encode(some_hello());
  EXPECT_FALSE(decode_answer({hello.data(), kAnswerBytes}).ok());
  std::vector<std::byte> answer(kHelloBytes);
  const auto bytes = encode(some_answer());
  std::copy(bytes.begin(), bytes.end(), answer.begin());
  EXPECT_FALSE(decode_hello(answer).ok());
}

TEST(Join, is_read_as_it_was_written_and_neighbours_are_refused) {
  Join j;
  j.nonce = id(1);
  j.incarnation = id(2);
  j.pid_ns = 3;
  j.start_time = Wild<uint64_t>(4);
  j.time_ns = 5;
  for (const bool barriers : {false, true}) {
    for (const bool denied : {false, true}) {
      j.heavy_barriers = barriers;
      j.direct_denied = denied;
      expect_same(value_of(decode_join(encode_join(j).view())), j, &Join::nonce, &Join::incarnation,
                  &Join::pid_ns, &Join::start_time, &Join::time_ns, &Join::heavy_barriers,
                  &Join::direct_denied);
    }
  }
  EXPECT_FALSE(decode_joined(encode_join(j).view()).ok());
  EXPECT_FALSE(decode_join(encode_joined(j).view()).ok());
  expect_neighbours_refused(encode_join(j).bytes, kJoinBytes, decode_join, {{3, 8}, {1, 2}});
  PeerPacket p = encode_join(j);
  p.bytes[2] = std::byte{4};  // a bit without a meaning
  EXPECT_FALSE(decode_join(p.view()).ok());
}

TEST(Open, is_read_as_it_was_written_and_neighbours_are_refused) {
  const Open o = some_open();
  expect_same(value_of(decode_open(encode(o).view())), o, &Open::nonce, &Open::ticket,
              &Open::source, &Open::destination, &Open::lane, &Open::segment, &Open::domain,
              &Open::engine, &Open::key_file_bytes, &Open::attempt, &Open::proof);
  expect_neighbours_refused(encode(o).bytes, kOpenBytes, decode_open, {{0, 2}, {3, 8}});
}

TEST(Accept, is_read_as_it_was_written_and_neighbours_are_refused) {
  Accept a;
  a.attempt = Wild<uint32_t>(1);
  a.domain = Wild<uint32_t>(2);
  a.engine = Wild<uint64_t>(3);
  a.key_file_bytes = Wild<uint64_t>(4);
  a.proof = proof(2);
  expect_same(value_of(decode_accept(encode(a).view())), a, &Accept::attempt, &Accept::domain,
              &Accept::engine, &Accept::key_file_bytes, &Accept::proof);
  expect_neighbours_refused(encode(a).bytes, kAcceptBytes, decode_accept, {{0, 2}, {3, 8}});
}

TEST(Checksums, are_asked_for_and_promised_by_one_bit) {
  expect_bit_of_checksums<Open>(decode_open, [](Open& o) -> bool& { return o.checksums; });
  expect_bit_of_checksums<Accept>(decode_accept, [](Accept& a) -> bool& { return a.checksums; });
  expect_bit_of_checksums<Connect>(decode_connect,
                                   [](Connect& c) -> bool& { return c.open.checksums; });
  expect_bit_of_checksums<Connected>(decode_connected,
                                     [](Connected& c) -> bool& { return c.accept.checksums; });
}

TEST(Reject, is_read_as_it_was_written_and_unknown_reasons_are_refused) {
  Reject r;
  r.attempt = Wild<uint32_t>(77);
  for (uint32_t why = 0; why < 10; ++why) {
    r.why = static_cast<Why>(why);
    const auto back = decode_reject(encode(r).view());
    EXPECT_EQ(back.ok(), why >= 1 && why <= 7) << why;
    if (!back.ok()) continue;
    expect_same(back.value(), r, &Reject::attempt, &Reject::why);
  }
  r.why = Why::crossing;
  expect_neighbours_refused(encode(r).bytes, kRejectBytes, decode_reject, {{0, 8}});
}

TEST(LaneClose, is_read_as_it_was_written_and_neighbours_are_refused) {
  LaneClose c;
  c.segment = Wild<uint32_t>(5);
  c.lane = Wild<uint32_t>(6);
  for (const bool of_sender : {false, true}) {
    c.of_sender = of_sender;
    expect_same(value_of(decode_lane_close(encode(c).view())), c, &LaneClose::segment,
                &LaneClose::lane, &LaneClose::of_sender);
  }
  expect_neighbours_refused(encode(c).bytes, kLaneCloseBytes, decode_lane_close, {{0, 2}, {3, 8}});
}

PrivateData some_private(uint32_t size) {
  PrivateData data;
  data.size = size;
  for (uint32_t i = 0; i < size; ++i) data.bytes[i] = static_cast<std::byte>(i + 1);
  return data;
}

TEST(Connect, is_read_as_it_was_written_and_neighbours_are_refused) {
  for (const uint32_t size : {0u, 1u, 255u, 256u}) {
    const Connect c{some_open(), some_private(size)};
    const auto back = value_of(decode_connect(encode(c).view()));
    EXPECT_EQ(back.open.source.port, c.open.source.port);
    EXPECT_EQ(back.open.source.index, 0) << "an endpoint that connects has none";
    EXPECT_EQ(back.open.proof, c.open.proof);
    EXPECT_EQ(back.open.attempt.unchecked(), c.open.attempt.unchecked());
    EXPECT_EQ(back.data.size, size);
    EXPECT_EQ(back.data.bytes, c.data.bytes);
  }
  expect_neighbours_refused(
      encode(Connect{some_open(), {}}).bytes, kConnectBytes, decode_connect,
      {{0, 2}, {3, 8}, {102, 104}, {kOpenBytes, kConnectBytes}});  // no data: zeros
}

TEST(Connected, is_read_as_it_was_written_and_neighbours_are_refused) {
  Connected c;
  c.accept.attempt = Wild<uint32_t>(3);
  c.accept.engine = Wild<uint64_t>(4);
  c.accept.proof = proof(3);
  c.data = some_private(100);
  const auto back = value_of(decode_connected(encode(c).view()));
  EXPECT_EQ(back.accept.attempt.unchecked(), 3u);
  EXPECT_EQ(back.accept.engine.unchecked(), 4u);
  EXPECT_EQ(back.accept.proof, c.accept.proof);
  EXPECT_EQ(back.data.bytes, c.data.bytes);
  c.data = {};
  expect_neighbours_refused(encode(c).bytes, kConnectedBytes, decode_connected,
                            {{0, 2}, {3, 8}, {kAcceptBytes + 4, kConnectedBytes}});
}

TEST(Refuse, is_read_as_it_was_written_and_neighbours_are_refused) {
  Refuse r;
  r.attempt = Wild<uint32_t>(3);
  r.data = some_private(256);
  const auto back = value_of(decode_refuse(encode(r).view()));
  EXPECT_EQ(back.attempt.unchecked(), 3u);
  EXPECT_EQ(back.data.bytes, r.data.bytes);
  r.data = {};
  expect_neighbours_refused(encode(r).bytes, kRefuseBytes, decode_refuse,
                            {{0, 8}, {16, kRefuseBytes}});
}

TEST(Withdraw, is_read_as_it_was_written_and_neighbours_are_refused) {
  Withdraw w;
  w.attempt = Wild<uint32_t>(8);
  const auto back = value_of(decode_withdraw(encode(w).view()));
  EXPECT_EQ(back.attempt.unchecked(), 8u);
  expect_neighbours_refused(encode(w).bytes, kWithdrawBytes, decode_withdraw, {{0, 8}, {12, 16}});
}

TEST(PeerMessage, of_an_unknown_kind_is_refused) {
  for (int kind = 0; kind < 256; ++kind) {
    PeerPacket p = encode(some_open());
    p.bytes[0] = static_cast<std::byte>(kind);
    EXPECT_EQ(peer_message(p.view()).ok(), kind == 3) << kind;
  }
}

TEST(Id128, are_equal_only_if_every_bit_is) {
  const Id128 a = id(9);
  EXPECT_TRUE(equal_in_constant_time(a, a));
  for (size_t i = 0; i < a.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      Id128 b = a;
      b[i] = static_cast<uint8_t>(b[i] ^ (1 << bit));
      EXPECT_FALSE(equal_in_constant_time(a, b));
    }
  }
}

TEST(SocketName, spells_the_bits) {
  Id128 bits{};
  bits[0] = 0xab;
  bits[15] = 0x0f;
  const auto name = socket_name(bits);
  EXPECT_EQ(std::string_view(name.data(), name.size()),
            "aperture.ab00000000000000000000000000000f");
}

TEST(SocketName, is_known_from_what_only_looks_like_one) {
  const auto of_bits = socket_name(id(0));
  const std::string good(of_bits.data(), of_bits.size());
  EXPECT_TRUE(is_socket_name(good));
  for (const std::string& bad :
       {std::string(), good + "0", good.substr(1), good.substr(0, good.size() - 1),
        "Aperture." + good.substr(9), good.substr(0, 9) + "/" + good.substr(10),
        good.substr(0, 40) + "F", good.substr(0, 40) + std::string(1, '\0')}) {
    EXPECT_FALSE(is_socket_name(bad)) << bad;
  }
}

}  // namespace
}  // namespace aperture::wire
