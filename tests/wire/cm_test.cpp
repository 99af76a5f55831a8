// The codecs of connection management: what is written is what is read, and every neighbour of it
// is refused.

#include <cstring>
#include <functional>
#include <vector>

#include "base/value_of.hpp"
#include "wire/same_fields.hpp"

namespace aperture::wire {
namespace {

using aperture::test::value_of;
using test::expect_same;

using Bytes = std::vector<std::byte>;

template <size_t N>
void fill(std::array<uint8_t, N>& data, uint8_t seed) {
  for (size_t i = 0; i < N; ++i) data[i] = static_cast<uint8_t>(seed + 3 * i);
}

Req some_req() {
  Req r;
  r.source = Address::v4(0x7f000001, 40000);
  r.destination = Address::v4(0x0a000002, 65535);
  r.qpn = Wild<uint32_t>(0xfedcba);
  r.psn = Wild<uint32_t>(0x123456);
  r.ece = {Wild<uint32_t>(0x15b3), Wild<uint32_t>(0xdeadbeef)};
  r.responder_resources = Wild<uint8_t>(16);
  r.initiator_depth = Wild<uint8_t>(255);
  r.flow_control = true;
  r.retry_count = Wild<uint8_t>(7);
  r.rnr_retry_count = Wild<uint8_t>(6);
  r.srq = true;
  fill(r.data, 1);
  return r;
}

Rep some_rep() {
  Rep r;
  r.qpn = Wild<uint32_t>(1);
  r.psn = Wild<uint32_t>(0xffffff);
  r.ece = {Wild<uint32_t>(1), Wild<uint32_t>(2)};
  r.responder_resources = Wild<uint8_t>(3);
  r.initiator_depth = Wild<uint8_t>(4);
  r.flow_control = true;
  r.rnr_retry_count = Wild<uint8_t>(7);
  r.srq = true;
  fill(r.data, 2);
  return r;
}

Rej some_rej() {
  Rej r;
  r.reason = Wild<uint32_t>(28);
  fill(r.data, 3);
  return r;
}

SidrReq some_sidr_req() {
  SidrReq r;
  r.request_id = Wild<uint64_t>(0x0123456789abcdef);
  fill(r.data, 4);
  return r;
}

SidrRep some_sidr_rep() {
  SidrRep r;
  r.request_id = Wild<uint64_t>(0xfedcba9876543210);
  r.qpn = Wild<uint32_t>(0x77);
  r.qkey = Wild<uint32_t>(0x01234567);
  r.ece = {Wild<uint32_t>(3), Wild<uint32_t>(4)};
  r.status = Wild<uint32_t>(2);
  fill(r.data, 5);
  return r;
}

struct Kind {
  const char* name;
  CmPacket packet;
  std::function<Errc(std::span<const std::byte>)> decode;
};

std::vector<Kind> all() {
  return {
      {"req", encode(some_req()), [](auto b) { return decode_req(b).error(); }},
      {"rep", encode(some_rep()), [](auto b) { return decode_rep(b).error(); }},
      {"rej", encode(some_rej()), [](auto b) { return decode_rej(b).error(); }},
      {"sidr_req", encode(some_sidr_req()), [](auto b) { return decode_sidr_req(b).error(); }},
      {"sidr_rep", encode(some_sidr_rep()), [](auto b) { return decode_sidr_rep(b).error(); }},
  };
}

Bytes bytes_of(const CmPacket& p) {
  return {p.bytes.begin(), p.bytes.begin() + p.size};
}

TEST(WireCm, lies_as_drawn) {
  const Bytes req = bytes_of(encode(some_req()));
  const uint8_t drawn[] = {0xba, 0xdc, 0xfe, 0,  0x56, 0x34, 0x12, 0, 0xb3, 0x15, 0, 0, 0xef,
                           0xbe, 0xad, 0xde, 16, 255,  1,    7,    6, 1,    0,    0, 1, 4};
  EXPECT_EQ(std::memcmp(req.data() + 52, drawn, sizeof drawn), 0);
  const Bytes rep = bytes_of(encode(some_rep()));
  const uint8_t answer[] = {1, 0, 0, 0, 0xff, 0xff, 0xff, 0, 1, 0, 0, 0, 2,
                            0, 0, 0, 3, 4,    1,    7,    1, 0, 0, 0, 2, 5};
  EXPECT_EQ(std::memcmp(rep.data() + 16, answer, sizeof answer), 0);
  const Bytes sidr = bytes_of(encode(some_sidr_rep()));
  const uint8_t resolved[] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0x77, 0,
                              0,    0,    0x67, 0x45, 0x23, 1,    3,    0,    0,    0,
                              4,    0,    0,    0,    2,    0,    0,    0,    5,    8};
  EXPECT_EQ(std::memcmp(sidr.data() + 16, resolved, sizeof resolved), 0);
}

TEST(WireCm, req_goes_there_and_back) {
  const Req want = some_req();
  expect_same(value_of(decode_req(encode(want).view())), want, &Req::source, &Req::destination,
              &Req::qpn, &Req::psn, &Req::ece, &Req::responder_resources, &Req::initiator_depth,
              &Req::flow_control, &Req::retry_count, &Req::rnr_retry_count, &Req::srq, &Req::data);
}

TEST(WireCm, rep_goes_there_and_back) {
  const Rep want = some_rep();
  expect_same(value_of(decode_rep(encode(want).view())), want, &Rep::qpn, &Rep::psn, &Rep::ece,
              &Rep::responder_resources, &Rep::initiator_depth, &Rep::flow_control,
              &Rep::rnr_retry_count, &Rep::srq, &Rep::data);
}

TEST(WireCm, rejections_and_resolutions_go_there_and_back) {
  const Rej rej = some_rej();
  EXPECT_EQ(rej.reason.unchecked(), 28u);
  expect_same(value_of(decode_rej(encode(rej).view())), rej, &Rej::reason, &Rej::data);
  const SidrReq req = some_sidr_req();
  expect_same(value_of(decode_sidr_req(encode(req).view())), req, &SidrReq::request_id,
              &SidrReq::data);
  const SidrRep rep = some_sidr_rep();
  expect_same(value_of(decode_sidr_rep(encode(rep).view())), rep, &SidrRep::request_id,
              &SidrRep::qpn, &SidrRep::qkey, &SidrRep::ece, &SidrRep::status, &SidrRep::data);
}

TEST(WireCm, bare_messages_are_their_heads) {
  for (const CmKind kind : {CmKind::mra, CmKind::rtu, CmKind::dreq, CmKind::drep}) {
    const CmPacket p = encode_bare(kind);
    EXPECT_EQ(p.size, kCmHeadBytes);
    EXPECT_EQ(value_of(decode_cm_head(p.view())), kind);
  }
}

TEST(WireCm, any_other_length_is_refused) {
  for (const Kind& kind : all()) {
    Bytes bytes = bytes_of(kind.packet);
    EXPECT_EQ(kind.decode(bytes), Errc::ok) << kind.name;
    bytes.push_back(std::byte{0});
    EXPECT_EQ(kind.decode(bytes), Errc::protocol) << kind.name;
    for (size_t n = 0; n < kind.packet.size; ++n) {
      EXPECT_EQ(kind.decode(kind.packet.view().first(n)), Errc::protocol) << kind.name << n;
    }
  }
}

TEST(WireCm, a_head_with_any_bit_wrong_is_refused) {
  for (const Kind& kind : all()) {
    for (size_t bit = 0; bit < kCmHeadBytes * 8; ++bit) {
      Bytes bytes = bytes_of(kind.packet);
      bytes[bit / 8] ^= std::byte(1 << bit % 8);
      EXPECT_NE(kind.decode(bytes), Errc::ok) << kind.name << " bit " << bit;
    }
  }
}

TEST(WireCm, another_version_is_told_from_rubbish) {
  Bytes bytes = bytes_of(encode_bare(CmKind::mra));
  bytes[8] = std::byte{2};
  EXPECT_EQ(decode_cm_head(bytes).error(), Errc::not_supported);
  bytes[0] ^= std::byte{1};
  EXPECT_EQ(decode_cm_head(bytes).error(), Errc::protocol);
}

TEST(WireCm, a_message_of_another_kind_is_refused) {
  const auto kinds = all();
  for (const Kind& a : kinds) {
    for (const Kind& b : kinds) {
      if (&a != &b) {
        EXPECT_EQ(a.decode(b.packet.view()), Errc::protocol);
      }
    }
  }
}

TEST(WireCm, fields_beyond_their_bits_are_refused) {
  struct Case {
    size_t kind, at;
    uint8_t value;
  };
  const Case cases[] = {
      {0, 55, 1},  // QPN of 25 bits
      {0, 59, 1},  // PSN
      {0, 63, 1},  // ECE vendor
      {0, 70, 2},  // flow control
      {0, 71, 8},  // retry count
      {0, 72, 8},  // RNR retry count
      {0, 73, 2},  // SRQ
      {0, 74, 1}, {0, 75, 1}, {1, 19, 1}, {1, 23, 1}, {1, 27, 1}, {1, 34, 2},
      {1, 35, 8}, {1, 36, 2}, {1, 37, 1}, {1, 39, 1}, {2, 18, 1},  // a reason of 17 bits
      {4, 27, 1}, {4, 35, 1}, {4, 41, 1},                          // a status of 9 bits
  };
  const auto kinds = all();
  for (const Case& c : cases) {
    Bytes bytes = bytes_of(kinds[c.kind].packet);
    bytes[c.at] = std::byte{c.value};
    EXPECT_EQ(kinds[c.kind].decode(bytes), Errc::protocol) << kinds[c.kind].name << ' ' << c.at;
  }
}

TEST(WireCm, a_rejection_without_reason_is_refused) {
  Rej rej = some_rej();
  rej.reason = Wild<uint32_t>(0);
  EXPECT_EQ(decode_rej(encode(rej).view()).error(), Errc::protocol);
}

}  // namespace
}  // namespace aperture::wire
