// One queue for both directions: what a peer answers comes after the completion of what it answers,
// as an acknowledgement comes before it on a wire. Programs that count completions depend on it.
#include <gtest/gtest.h>

#include <string>

#include "doors/child.hpp"
#include "doors/connected.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kLarge = 1 * kMiB;

struct Case {
  size_t size;
  uint64_t level;
  bool sleeping;
  bool denied;
  const char* name;
};

struct Asked {
  Name name;
  size_t size;
  int rounds;
};

Options options_of(bool sleeping) {
  return {.wait = sleeping ? FI_WAIT_UNSPEC : FI_WAIT_NONE};
}

}  // namespace

DOOR_ROLE(answers) {
  Asked asked;
  if (!control.get(&asked)) return 1;
  std::vector<uint8_t> bytes(kLarge);
  Node node(options_of(false));
  const fi_addr_t to = node.insert(asked.name);
  if (!control.put(Name(node.name()))) return 2;
  for (int i = 0; i < asked.rounds; ++i) {
    if (node.run(fi_recv, bytes.data(), asked.size, nullptr, FI_ADDR_UNSPEC) != 0) return 3;
    if (post([&] { return fi_inject(node.ep(), "a", 1, to); }) != 0) return 4;
  }
  char last = 0;  // what it has sent is taken before it ends
  return node.run(fi_recv, &last, 1, nullptr, FI_ADDR_UNSPEC) == 0 ? 0 : 5;
}

namespace {

class Answers : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Sends, Answers,
    testing::Values(Case{64, FI_TRANSMIT_COMPLETE, false, false, "small"},
                    Case{200, FI_TRANSMIT_COMPLETE, false, false, "of_several_cells"},
                    Case{5000, FI_TRANSMIT_COMPLETE, false, false, "of_the_byte_ring"},
                    Case{64, FI_DELIVERY_COMPLETE, false, false, "delivered"},
                    Case{64, FI_DELIVERY_COMPLETE, true, false, "delivered_asleep"},
                    Case{64, FI_DELIVERY_COMPLETE, false, true, "delivered_denied"},
                    Case{16384, FI_DELIVERY_COMPLETE, false, false, "middling"},
                    Case{kLarge, FI_TRANSMIT_COMPLETE, false, false, "large"},
                    Case{kLarge, FI_TRANSMIT_COMPLETE, true, false, "large_asleep"},
                    Case{kLarge, FI_TRANSMIT_COMPLETE, false, true, "large_denied"}),
    kByName);

TEST_P(Answers, complete_after_what_they_answer) {
  const Case c = GetParam();
  const int rounds = c.size > 100'000 ? 300 : 3000;
  std::vector<uint8_t> out(c.size, 7);
  char in = 0;
  Op sent, received;
  Node node(options_of(c.sleeping));
  Child peer("answers", child_denying(c.denied));
  ASSERT_TRUE(peer.control().put(Asked{node.name(), c.size, rounds}));
  Name name;
  ASSERT_TRUE(peer.control().get(&name, 20000));
  const fi_addr_t to = node.insert(name);
  const iovec iov{out.data(), out.size()};
  const fi_msg msg{
      .msg_iov = &iov, .desc = nullptr, .iov_count = 1, .addr = to, .context = &sent, .data = 0};
  int early = 0;
  for (int i = 0; i < rounds; ++i) {
    ASSERT_EQ(fi_recv(node.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &received), 0);
    ASSERT_EQ(node.post(fi_sendmsg, &msg, FI_COMPLETION | c.level), 0);
    const void* first = nullptr;
    for (int n = 0; n < 2; ++n) {
      Completion done;
      if (c.sleeping) {
        fi_cq_tagged_entry entry{};
        ASSERT_EQ(fi_cq_sread(node.cq(), &entry, 1, nullptr, 20000), 1);
        done.context = entry.op_context;
      } else {
        done = node.wait_any();
        ASSERT_EQ(done.err, 0);
      }
      if (n == 0) first = done.context;
    }
    if (first != &sent) ++early;
  }
  EXPECT_EQ(early, 0) << "of " << rounds;
  EXPECT_EQ(post([&] { return fi_inject(node.ep(), "l", 1, to); }), 0);
  pump_for(1);
  EXPECT_EQ(peer.join(), 0);
}

}  // namespace

DOOR_ROLE(answers_over_a_connection) {
  Asked asked;
  if (!control.get(&asked)) return 1;
  std::vector<uint8_t> bytes(kLarge);
  Station s;
  const Fid<fid_ep> ep = s.open();
  if (fi_connect(ep.get(), asked.name.data(), nullptr, 0) != 0) return 2;
  if (s.event().type != FI_CONNECTED) return 3;
  for (int i = 0; i < asked.rounds; ++i) {
    if (s.run_at(ep.get(), fi_recv, bytes.data(), asked.size, nullptr, 0) != 0) return 4;
    if (post([&] { return fi_inject(ep.get(), "a", 1, 0); }) != 0) return 5;
  }
  char last = 0;
  return s.run_at(ep.get(), fi_recv, &last, 1, nullptr, 0) == 0 ? 0 : 6;
}

namespace {

class ConnectedAnswers : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Sends, ConnectedAnswers,
    testing::Values(Case{64, FI_TRANSMIT_COMPLETE, false, false, "small"},
                    Case{200, FI_TRANSMIT_COMPLETE, false, false, "of_several_cells"},
                    Case{5000, FI_DELIVERY_COMPLETE, false, false, "of_the_byte_ring"},
                    Case{kLarge, FI_TRANSMIT_COMPLETE, false, false, "large"},
                    Case{kLarge, FI_DELIVERY_COMPLETE, false, true, "large_denied"}),
    kByName);

TEST_P(ConnectedAnswers, complete_after_what_they_answer) {
  const Case c = GetParam();
  const int rounds = c.size > 100'000 ? 200 : 2000;
  std::vector<uint8_t> out(c.size, 7);
  char in = 0;
  Op sent, received;
  Station s;
  const Fid<fid_pep> pep = s.passive();
  Child peer("answers_over_a_connection", child_denying(c.denied));
  ASSERT_TRUE(peer.control().put(Asked{name_of(&pep->fid), c.size, rounds}));
  const Fid<fid_ep> ep = accept_next(s, pep.get());
  s.expect(FI_CONNECTED, &ep->fid);
  const iovec iov{out.data(), out.size()};
  const fi_msg msg{.msg_iov = &iov, .iov_count = 1, .context = &sent};
  int early = 0;
  for (int i = 0; i < rounds; ++i) {
    ASSERT_EQ(fi_recv(ep.get(), &in, 1, nullptr, 0, &received), 0);
    ASSERT_EQ(post(fi_sendmsg, ep.get(), &msg, FI_COMPLETION | c.level), 0);
    ASSERT_TRUE(pump_until([&] { return s.done().size() == 2; }));
    for (const Completion& done : s.done()) ASSERT_EQ(done.err, 0);
    if (s.done().front().context != &sent) ++early;
    s.done().clear();
  }
  EXPECT_EQ(early, 0) << "of " << rounds;
  EXPECT_EQ(post([&] { return fi_inject(ep.get(), "l", 1, 0); }), 0);
  pump_for(1);
  EXPECT_EQ(peer.join(), 0);
}

}  // namespace
}  // namespace aperture::doors
