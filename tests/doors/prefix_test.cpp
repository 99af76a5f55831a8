// FI_MSG_PREFIX: fi_getinfo(3), fi_msg(3), fi_cq(3). Where the application has offered it, every
// buffer of a datagram endpoint begins with space that is no part of the message.
#include <gtest/gtest.h>

#include "doors/dgram.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kMode = FI_CONTEXT | FI_CONTEXT2 | FI_MSG_PREFIX;

Info info_of(const std::function<void(fi_info&)>& change) {
  Info hints = make_hints(dgram_options(FI_MSG, kMode));
  change(*hints);
  fi_info* info = nullptr;
  if (fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints.get(), &info) != 0) return nullptr;
  return Info(info);
}

TEST(PrefixInfo, is_granted_to_datagrams_whose_application_offers_it) {
  const Info with = info_of([](fi_info&) {});
  ASSERT_NE(with, nullptr);
  for (const uint64_t mode : {with->mode, with->tx_attr->mode, with->rx_attr->mode})
    EXPECT_TRUE(mode & FI_MSG_PREFIX);
  EXPECT_GT(with->ep_attr->msg_prefix_size, 0u);
  EXPECT_EQ(with->ep_attr->msg_prefix_size % 8, 0u);
  EXPECT_EQ(with->ep_attr->max_msg_size, kDatagramBytes);
  const auto has_none = [](const Info& info) {
    return info != nullptr && info->ep_attr->msg_prefix_size == 0 &&
           ((info->mode | info->tx_attr->mode | info->rx_attr->mode) & FI_MSG_PREFIX) == 0;
  };
  EXPECT_TRUE(has_none(info_of([](fi_info& h) { h.mode &= ~FI_MSG_PREFIX; })));
  EXPECT_TRUE(has_none(info_of([](fi_info& h) { h.tx_attr->mode = FI_CONTEXT; })));
  EXPECT_TRUE(has_none(info_of([](fi_info& h) { h.caps |= FI_MULTI_RECV; })))
      << "one buffer for many messages has no prefix for each";
  EXPECT_TRUE(has_none(info_of([](fi_info& h) { h.ep_attr->type = FI_EP_RDM; })));
  EXPECT_TRUE(has_none(info_of([](fi_info& h) { h.ep_attr->type = FI_EP_MSG; })));
}

TEST(PrefixInfo, a_size_that_is_asked_for_is_met_or_refused) {
  EXPECT_NE(info_of([](fi_info& h) { h.ep_attr->msg_prefix_size = 8; }), nullptr);
  EXPECT_EQ(info_of([](fi_info& h) { h.ep_attr->msg_prefix_size = 4096; }), nullptr);
  EXPECT_EQ(info_of([](fi_info& h) {
              h.mode &= ~FI_MSG_PREFIX;
              h.ep_attr->msg_prefix_size = 8;
            }),
            nullptr);
}

TEST(PrefixInfo, an_endpoint_has_it_in_both_directions_or_none) {
  Node host(dgram_options());
  Info info = info_of([](fi_info&) {});
  info->rx_attr->mode &= ~FI_MSG_PREFIX;
  EXPECT_EQ(code_of(fi_endpoint, host.domain(), info.get()), -FI_EINVAL);
  info->tx_attr->mode &= ~FI_MSG_PREFIX;
  EXPECT_EQ(code_of(fi_endpoint, host.domain(), info.get()), 0);
  Node reliable;
  reliable.info()->tx_attr->mode |= FI_MSG_PREFIX;
  reliable.info()->rx_attr->mode |= FI_MSG_PREFIX;
  EXPECT_EQ(code_of(fi_endpoint, reliable.domain(), reliable.info()), -FI_EINVAL);
}

class Prefix : public testing::Test {
 protected:
  // A message behind a prefix that is full of something.
  std::vector<uint8_t> message(size_t size, uint64_t seed) const {
    std::vector<uint8_t> bytes(prefix + size, 0xee);
    fill(std::span(bytes).subspan(prefix), seed);
    return bytes;
  }
  NodePair p{dgram_options(FI_MSG, kMode)};
  const size_t prefix = p.a.prefix_bytes();
  Op op;
};

TEST_F(Prefix, counts_in_lengths_and_is_left_alone) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{200}, kDatagramBytes}) {
    SCOPED_TRACE(size);
    const auto from = message(size, seed_of(size));
    Receiving r(p.b, prefix + kDatagramBytes);
    ASSERT_EQ(p.a.run(fi_send, from.data(), from.size(), nullptr, p.to_b), 0);
    const Completion c = r.wait();
    ASSERT_EQ(c.err, 0);
    EXPECT_EQ(c.len, prefix + size);
    EXPECT_TRUE(r.holds(size, seed_of(size), prefix));
    EXPECT_EQ(from, message(size, seed_of(size)));
  }
}

TEST_F(Prefix, may_lie_apart_from_its_payload) {
  std::vector<uint8_t> space(prefix);
  Guarded from(300, seed_of(3)), to(300);
  const iovec in[2] = {{space.data(), prefix}, {to.data(), 300}};
  const iovec out[3] = {{space.data(), prefix}, {from.data(), 100}, {from.data() + 100, 200}};
  Op receive;
  ASSERT_EQ(p.b.post(fi_recvv, in, nullptr, size_t{2}, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(p.a.run(fi_sendv, out, nullptr, size_t{3}, p.to_b), 0);
  const Completion c = p.b.wait(&receive);
  ASSERT_EQ(c.err, 0);
  EXPECT_EQ(c.len, prefix + 300);
  EXPECT_FALSE(first_difference(to.span(), seed_of(3)));
  EXPECT_TRUE(to.intact());
}

TEST_F(Prefix, that_is_split_or_missing_is_refused) {
  std::vector<uint8_t> bytes(prefix + 8);
  fid_ep* ep = p.a.ep();
  for (const size_t len : {size_t{0}, size_t{8}, prefix - 1}) {
    SCOPED_TRACE(len);
    EXPECT_EQ(fi_send(ep, bytes.data(), len, nullptr, p.to_b, &op), -FI_EINVAL);
    EXPECT_EQ(fi_inject(ep, bytes.data(), len, p.to_b), -FI_EINVAL);
    EXPECT_EQ(fi_senddata(ep, bytes.data(), len, nullptr, 1, p.to_b, &op), -FI_EINVAL);
    EXPECT_EQ(fi_injectdata(ep, bytes.data(), len, 1, p.to_b), -FI_EINVAL);
    EXPECT_EQ(fi_recv(ep, bytes.data(), len, nullptr, 0, &op), -FI_EINVAL);
    const iovec split[2] = {{bytes.data(), len}, {bytes.data() + len, bytes.size() - len}};
    const fi_msg msg{split, nullptr, 2, p.to_b, &op, 0};
    EXPECT_EQ(fi_sendv(ep, split, nullptr, 2, p.to_b, &op), -FI_EINVAL);
    EXPECT_EQ(fi_recvv(ep, split, nullptr, 2, FI_ADDR_UNSPEC, &op), -FI_EINVAL);
    EXPECT_EQ(fi_sendmsg(ep, &msg, 0), -FI_EINVAL);
    EXPECT_EQ(fi_recvmsg(ep, &msg, 0), -FI_EINVAL);
  }
  EXPECT_EQ(fi_send(ep, nullptr, 0, nullptr, p.to_b, &op), -FI_EINVAL);
  EXPECT_EQ(fi_sendv(ep, nullptr, nullptr, 0, p.to_b, &op), -FI_EINVAL);
  EXPECT_EQ(fi_recvv(ep, nullptr, nullptr, 0, FI_ADDR_UNSPEC, &op), -FI_EINVAL);
  EXPECT_TRUE(p.a.quiet());
}

TEST_F(Prefix, counts_against_no_limit) {
  const auto largest = message(kDatagramBytes, 1);
  const auto too_large = message(kDatagramBytes + 1, 1);
  EXPECT_EQ(p.a.run(fi_send, largest.data(), largest.size(), nullptr, p.to_b), 0);
  EXPECT_EQ(fi_send(p.a.ep(), too_large.data(), too_large.size(), nullptr, p.to_b, &op),
            -FI_EMSGSIZE);
  const size_t injected = p.a.info()->tx_attr->inject_size;
  EXPECT_EQ(fi_inject(p.a.ep(), largest.data(), prefix + injected, p.to_b), 0);
  EXPECT_EQ(fi_inject(p.a.ep(), largest.data(), prefix + injected + 1, p.to_b), -FI_EMSGSIZE);
}

TEST_F(Prefix, counts_in_the_lengths_of_a_truncated_message) {
  const auto from = message(200, 1);
  Receiving r(p.b, prefix + 50);
  ASSERT_EQ(p.a.run(fi_send, from.data(), from.size(), nullptr, p.to_b), 0);
  const Completion c = r.wait();
  EXPECT_EQ(c.err, FI_ETRUNC);
  EXPECT_EQ(c.len, prefix + 50);
  EXPECT_EQ(c.olen, 150u);
  EXPECT_TRUE(r.holds(50, 1, prefix));
}

TEST_F(Prefix, is_an_affair_of_each_side) {
  Node plain(dgram_options());
  const fi_addr_t to_plain = p.a.insert(plain.name());
  const fi_addr_t to_b = plain.insert(p.b.name());
  const auto from = message(100, 5);
  Receiving without(plain, 100), with(p.b, prefix + 100);
  ASSERT_EQ(p.a.run(fi_send, from.data(), from.size(), nullptr, to_plain), 0);
  EXPECT_EQ(without.wait().len, 100u);
  EXPECT_TRUE(without.holds(100, 5));
  ASSERT_EQ(plain.run(fi_send, from.data() + prefix, size_t{100}, nullptr, to_b), 0);
  EXPECT_EQ(with.wait().len, prefix + 100);
  EXPECT_TRUE(with.holds(100, 5, prefix));
}

}  // namespace
}  // namespace aperture::doors
