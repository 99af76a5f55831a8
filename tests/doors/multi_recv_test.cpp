// FI_MULTI_RECV: one posted buffer, many messages. fi_msg(3), fi_cq(3), fi_endpoint(3),
// FI_OPT_MIN_MULTI_RECV.
#include <gtest/gtest.h>

#include "doors/side.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kMessage = FI_RECV | FI_MSG;
constexpr uint64_t kCaps = FI_MSG | FI_TAGGED | FI_RMA | FI_MULTI_RECV;

Options multi_options(size_t min_multi_recv = 0) {
  return {.caps = kCaps | FI_SOURCE, .counters = true, .min_multi_recv = min_multi_recv};
}

class MultiRecv : public testing::TestWithParam<Place> {
 protected:
  void open(const Options& options) {
    duo = make_duo(GetParam().topology, options, child_denying(GetParam().denied));
  }
  Side& to() { return *duo.second; }
  Side& from() { return *duo.first; }
  void post(uint32_t id, size_t size, uint64_t flags = FI_MULTI_RECV,
            fi_addr_t peer = FI_ADDR_UNSPEC) {
    to().ask({.ask = Ask::receive, .id = id, .addr = peer, .size = size, .flags = flags});
  }
  // The next completion of the receiving side that belongs to a receive.
  Reply next() {
    for (;;) {
      const Reply r = to().wait_any();
      if (r.completion.err != 0 || (r.completion.flags & FI_SEND) == 0) return r;
    }
  }
  bool holds(uint32_t id, uint64_t offset, size_t size, uint64_t seed) {
    return to().verify(id, size, seed, offset);
  }
  void send(uint32_t id, size_t size, uint64_t seed) { from().send(id, duo.to_second, size, seed); }
  Duo duo;
};
using DirectedMultiRecv = MultiRecv;

const auto kPlacesOfTwo = testing::Values(Place{"one_domain", Topology::one_domain},
                                          Place{"two_domains", Topology::two_domains},
                                          Place{"processes", Topology::two_processes},
                                          Place{"processes_denied", Topology::two_processes, true});
INSTANTIATE_TEST_SUITE_P(alone, MultiRecv, testing::Values(Place{"self", Topology::self}), kByName);
INSTANTIATE_TEST_SUITE_P(places, MultiRecv, kPlacesOfTwo, kByName);
INSTANTIATE_TEST_SUITE_P(places, DirectedMultiRecv, kPlacesOfTwo, kByName);

TEST_P(MultiRecv, messages_of_all_sizes_are_packed_and_the_last_releases) {
  open(multi_options(1000));
  size_t total = 0;
  for (const size_t size : few_sizes()) total += size;
  post(1, total + 999);
  post(2, 4096);
  std::map<uint64_t, size_t> place;  // offset -> which message
  size_t at = 0;
  for (uint32_t i = 0; i < few_sizes().size(); ++i) {
    const size_t size = few_sizes()[i];
    send(100 + i, size, seed_of(i));
    const Reply r = next();
    ASSERT_EQ(r.completion.err, 0);
    EXPECT_EQ(r.id, 1u);
    EXPECT_EQ(r.offset, at);
    EXPECT_EQ(r.completion.len, size);
    const bool last = i + 1 == few_sizes().size();
    EXPECT_EQ(r.completion.flags, last ? kMessage | FI_MULTI_RECV : kMessage) << size;
    EXPECT_EQ(r.completion.source, duo.to_first);
    EXPECT_TRUE(holds(1, at, size, seed_of(i))) << size;
    at += size;
  }
  send(50, 8, 8);
  const Reply r = next();
  EXPECT_EQ(r.id, 2u) << "the next buffer has its turn";
  EXPECT_EQ(r.offset, 0u);
  EXPECT_TRUE(to().counts_to(FI_RECV, few_sizes().size() + 1));
}

TEST_P(MultiRecv, takes_many_at_once_and_large_ones_among_them) {
  open(multi_options(301 * kKiB));
  constexpr uint32_t kMessages = 60;
  const size_t sizes[] = {8, 3000, 300 * kKiB, 100, 20000};
  size_t total = 0;
  for (uint32_t i = 0; i < kMessages; ++i) total += sizes[i % 5];
  for (uint32_t b = 0; b < 8; ++b) post(b, total / 3 + 300 * kKiB);
  for (uint32_t i = 0; i < kMessages; ++i) send(1000 + i, sizes[i % 5] + i / 5, seed_of(i));
  std::map<uint32_t, int> releases;
  std::vector<bool> seen(kMessages);
  for (uint32_t n = 0; n < kMessages; ++n) {
    const Reply r = next();
    ASSERT_EQ(r.completion.err, 0);
    ASSERT_EQ(releases[r.id], 0) << "a message after the release";
    if ((r.completion.flags & FI_MULTI_RECV) != 0) ++releases[r.id];
    bool known = false;
    for (uint32_t i = 0; i < kMessages && !known; ++i) {
      if (seen[i] || r.completion.len != sizes[i % 5] + i / 5) continue;
      seen[i] = known = holds(r.id, r.offset, r.completion.len, seed_of(i));
    }
    ASSERT_TRUE(known) << n << " len " << r.completion.len;
  }
  EXPECT_TRUE(to().counts_to(FI_RECV, kMessages));
}

TEST_P(MultiRecv, unexpected_messages_are_packed_too) {
  open(multi_options());
  const size_t sizes[] = {8, 0, 5000, 100000, 64};
  for (uint32_t i = 0; i < 5; ++i) send(10 + i, sizes[i], seed_of(i));
  pump_for(20);
  post(1, 200000);
  uint64_t place[5];
  uint64_t at = 0;
  for (uint32_t i = 0; i < 5; at += sizes[i++]) place[i] = at;
  for (uint32_t n = 0; n < 5; ++n) {
    const Reply r = next();
    ASSERT_EQ(r.completion.err, 0);
    bool known = false;
    for (uint32_t i = 0; i < 5; ++i)
      known = known || (r.offset == place[i] && r.completion.len == sizes[i]);
    EXPECT_TRUE(known) << r.offset << " " << r.completion.len;
  }
  for (uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(holds(1, place[i], sizes[i], seed_of(i))) << i;
}

TEST_P(MultiRecv, what_does_not_fit_is_truncated_and_releases_the_buffer_once) {
  for (const size_t size : {size_t{100}, size_t{100000}}) {
    open(multi_options(50));
    post(1, size + 50);
    send(10, size, 1);
    EXPECT_EQ(next().completion.flags, kMessage) << "50 are left: that is enough";
    send(11, size, 2);
    const Reply r = next();
    EXPECT_EQ(r.completion.err, FI_ETRUNC);
    EXPECT_EQ(r.completion.len, 50u);
    EXPECT_EQ(r.completion.olen, size - 50);
    EXPECT_EQ(r.completion.flags, kMessage | FI_MULTI_RECV);
    EXPECT_TRUE(holds(1, 0, size, 1));
    EXPECT_TRUE(holds(1, size, 50, 2)) << "what fitted, and the canaries";
    post(2, size);
    send(12, size, 3);
    EXPECT_EQ(next().id, 2u);
    duo = Duo{};
  }
}

TEST_P(MultiRecv, cancel_gives_one_error_that_releases_the_buffer) {
  open(multi_options());
  post(1, 1000);
  send(10, 8, 1);
  EXPECT_EQ(next().completion.flags, kMessage);
  to().cancel(1);
  const Reply r = next();
  EXPECT_EQ(r.completion.err, FI_ECANCELED);
  EXPECT_EQ(r.completion.flags, kMessage | FI_MULTI_RECV);
  EXPECT_EQ(r.id, 1u);
  EXPECT_THROW(to().cancel(1), DoorError) << "it is not there any more";
  post(2, 1000);
  send(11, 8, 2);
  EXPECT_EQ(next().id, 2u);
}

TEST_P(DirectedMultiRecv, buffers_take_messages_of_their_peer_only) {
  Options options = multi_options();
  options.caps |= FI_DIRECTED_RECV;
  open(options);
  if (to().node() == nullptr) {
    post(1, 1000, FI_MULTI_RECV, duo.to_first);
    send(10, 8, 1);
    EXPECT_EQ(next().id, 1u);
    return;
  }
  const fi_addr_t itself = to().insert(to().node()->name());
  post(1, 1000, FI_MULTI_RECV, itself);
  post(2, 1000, FI_MULTI_RECV, duo.to_first);
  send(10, 8, 1);
  EXPECT_EQ(next().id, 2u);
  to().send(11, itself, 8, 2);
  EXPECT_EQ(next().id, 1u);
}

TEST_P(MultiRecv, selective_completion_leaves_the_release_and_what_asks_for_it) {
  Options options = multi_options(1);
  options.split_cq = true;
  options.cq_flags = FI_SELECTIVE_COMPLETION;
  open(options);
  post(1, 24);
  post(2, 24, FI_MULTI_RECV | FI_COMPLETION);
  for (uint32_t i = 0; i < 5; ++i) send(10 + i, 8, seed_of(i));
  const Reply r = next();
  EXPECT_EQ(r.id, 1u);
  EXPECT_EQ(r.completion.flags, uint64_t{FI_MULTI_RECV}) << "of no message";
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(holds(1, 8 * i, 8, seed_of(i)));
  for (uint32_t i = 0; i < 2; ++i) {
    const Reply m = next();
    EXPECT_EQ(m.id, 2u);
    EXPECT_EQ(m.completion.flags, kMessage);
  }
  EXPECT_TRUE(to().counts_to(FI_RECV, 5)) << "counters count them all";
}

TEST_P(MultiRecv, by_default_of_the_endpoint) {
  Options options = multi_options(8);
  options.rx_op_flags = FI_MULTI_RECV;
  open(options);
  to().receive(1, 16);
  send(10, 8, 1);
  send(11, 8, 2);
  EXPECT_EQ(next().completion.flags, kMessage);
  EXPECT_EQ(next().completion.flags, kMessage | FI_MULTI_RECV);
  EXPECT_TRUE(holds(1, 8, 8, 2));
  // the flags of a call replace the defaults
  post(2, 100, FI_COMPLETION);
  to().receive(3, 100);
  send(12, 8, 3);
  EXPECT_EQ(next().id, 2u);
  send(13, 8, 4);
  EXPECT_EQ(next().id, 3u);
  // tagged receives have no such flag
  to().tagged_receive(4, 100, 7);
  from().tagged_send(14, duo.to_second, 8, 5, 7);
  EXPECT_EQ(next().completion.flags, FI_RECV | FI_TAGGED);
}

TEST(MultiRecvCalls, the_option_is_kept_and_checked) {
  Options options = multi_options(4321);
  Node node(options);
  size_t value = 0, len = sizeof value;
  ASSERT_EQ(fi_getopt(&node.ep()->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &len), 0);
  EXPECT_EQ(value, 4321u);
  EXPECT_EQ(len, sizeof value);
  uint32_t narrow = 5;
  EXPECT_EQ(fi_setopt(&node.ep()->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &narrow, 4),
            -FI_EINVAL);
  EXPECT_EQ(fi_setopt(&node.ep()->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, nullptr, 8),
            -FI_EINVAL);
  len = 3;
  EXPECT_EQ(fi_getopt(&node.ep()->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &len),
            -FI_ETOOSMALL);
}

TEST(MultiRecvCalls, a_change_of_the_option_is_for_buffers_posted_later) {
  Node node(multi_options(8));
  const fi_addr_t self = node.insert(node.name());
  uint8_t memory[64];
  iovec iov{memory, 64};
  Op early, late;
  fi_msg m{&iov, nullptr, 1, FI_ADDR_UNSPEC, &early, 0};
  ASSERT_EQ(fi_recvmsg(node.ep(), &m, FI_MULTI_RECV), 0);
  size_t larger = 60;
  ASSERT_EQ(fi_setopt(&node.ep()->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &larger, 8), 0);
  m.context = &late;
  ASSERT_EQ(fi_recvmsg(node.ep(), &m, FI_MULTI_RECV), 0);
  ASSERT_EQ(node.post(fi_inject, "12345678", 8, self), 0);
  EXPECT_EQ(node.wait(&early).flags, kMessage) << "56 of 64 are left";
  for (int i = 0; i < 7; ++i) {
    ASSERT_EQ(node.post(fi_inject, "12345678", 8, self), 0);
    EXPECT_EQ(node.wait(&early).flags, i == 6 ? kMessage | FI_MULTI_RECV : kMessage);
  }
  ASSERT_EQ(node.post(fi_inject, "12345678", 8, self), 0);
  EXPECT_EQ(node.wait(&late).flags, kMessage | FI_MULTI_RECV) << "56 are less than 60";
}

TEST(MultiRecvCalls, what_is_no_single_buffer_or_not_asked_for_is_refused) {
  Node node(multi_options());
  uint8_t memory[64];
  iovec iov[2] = {{memory, 32}, {memory + 32, 32}};
  Op op;
  fi_msg m{iov, nullptr, 2, FI_ADDR_UNSPEC, &op, 0};
  EXPECT_EQ(fi_recvmsg(node.ep(), &m, FI_MULTI_RECV), -FI_EINVAL);
  m.iov_count = 0;
  EXPECT_EQ(fi_recvmsg(node.ep(), &m, FI_MULTI_RECV), -FI_EINVAL);
  iov[0].iov_base = nullptr;
  m.iov_count = 1;
  EXPECT_EQ(fi_recvmsg(node.ep(), &m, FI_MULTI_RECV), -FI_EINVAL);
  iov[0].iov_base = memory;
  EXPECT_EQ(fi_recvmsg(node.ep(), &m, FI_MULTI_RECV | FI_PEEK), -FI_EBADFLAGS);
  fi_msg_tagged t{iov, nullptr, 1, FI_ADDR_UNSPEC, 1, 0, &op, 0};
  EXPECT_EQ(fi_trecvmsg(node.ep(), &t, FI_MULTI_RECV), -FI_EBADFLAGS);
  EXPECT_TRUE(node.quiet());
  Node without;
  EXPECT_EQ(fi_recvmsg(without.ep(), &m, FI_MULTI_RECV), -FI_EBADFLAGS);
  EXPECT_TRUE(without.quiet());
}

TEST(MultiRecvCalls, the_capability_is_told_and_narrowed) {
  Options options = multi_options();
  EXPECT_NE(get_info(options)->caps & FI_MULTI_RECV, 0u);
  EXPECT_NE(get_info(options)->rx_attr->caps & FI_MULTI_RECV, 0u);
  EXPECT_EQ(get_info(options)->tx_attr->caps & FI_MULTI_RECV, 0u);
  options.caps = FI_MSG;
  EXPECT_EQ(get_info(options)->caps & FI_MULTI_RECV, 0u);
  options.rx_op_flags = FI_MULTI_RECV;
  EXPECT_THROW(get_info(options), DoorError) << "a default that the endpoint could not honour";
}

TEST(MultiRecvCalls, closing_the_endpoint_leaves_its_buffer_alone) {
  auto memory = std::make_unique<Guarded>(1000);
  NodePair p(multi_options());
  iovec iov{memory->data(), 1000};
  Op op;
  fi_msg m{&iov, nullptr, 1, FI_ADDR_UNSPEC, &op, 0};
  ASSERT_EQ(fi_recvmsg(p.b.ep(), &m, FI_MULTI_RECV), 0);
  ASSERT_EQ(p.a.post(fi_inject, "1", 1, p.to_b), 0);
  EXPECT_EQ(p.b.wait(&op).flags, kMessage);
  p.b.close_endpoint();
  if (on_aperture()) EXPECT_TRUE(p.b.quiet()) << "no completions reported";
  (void)fi_inject(p.a.ep(), "2", 1, p.to_b);
  pump_for(5);
  EXPECT_EQ(memory->data()[1], 0u);
}

}  // namespace
}  // namespace aperture::doors
