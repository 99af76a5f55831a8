// What queue pairs of both families do alike since they share transport/, of which each once had a
// manner of its own: docs/adr/0004. tests/qp/twin_test.cpp is the other half.
#include <sys/mman.h>

#include "base/out_of_memory.hpp"
#include "ib/pair.hpp"
#include "link/hostile.hpp"
#include "transport/looks.hpp"

namespace aperture::ib::test {
namespace {

using Pieces = OverEachLink;
INSTANTIATE_TEST_SUITE_P(Links, Pieces, kEachLink, link_name);

TEST_P(Pieces, are_taken_up_to_the_length_that_is_ever_sent_and_no_longer) {
  Pair pair(GetParam());
  pair.a->bring_up();
  pair.lanes.make(pair.a->domain, pair.b->domain);
  link::Lane& peer = *pair.lanes.lane_b;
  ASSERT_TRUE(peer.prepare_request_bytes());
  pair.a->qp->attach(std::move(pair.lanes.lane_a));
  const auto write_piece = [&](uint32_t len) {
    wire::store_rc(peer.request_tx.cells.body(),
                   {static_cast<uint8_t>(wire::RcOp::write_bytes), 0, 0, 0},
                   wire::RcWriteBytes{pair.a->address(), 0, pair.a->key(), len, 0, len});
    link::test::publish(peer.request_tx, 1);
    for (int i = 0; i < 20; ++i) pair.a->poll();
  };
  pair.a->memory[0] = std::byte{7};
  write_piece(static_cast<uint32_t>(peer.piece_bytes));
  EXPECT_EQ(pair.a->qp->state(), QpState::rts);
  EXPECT_EQ(pair.a->memory[0], std::byte{0});
  write_piece(static_cast<uint32_t>(peer.piece_bytes) + 1);
  EXPECT_EQ(pair.a->qp->state(), QpState::err);
}

// A page that can be taken away, registered at one end.
class Page {
 public:
  explicit Page(Side& at) : key_(static_cast<uint32_t>(at.add(at_, kSize, kEverything).key)) {}
  ~Page() { ::munmap(at_, kSize); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  void take_away() { EXPECT_EQ(::mprotect(at_, kSize, PROT_NONE), 0); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(at_); }
  uint32_t key() const { return key_; }

 private:
  static constexpr size_t kSize = 4096;

  void* const at_ =
      ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const uint32_t key_;
};

// The target sleeps, so that copies are direct ones.
class Faults : public testing::TestWithParam<SendOp> {
 protected:
  Faults() {
    pair_.settle();
    pair_.b->qp->fall_asleep(ring::kUnnumbered);
  }
  // How an access between the two pages ends.
  Wc end_of_it() {
    const Sge local{here_.address(), 1000, here_.key()};
    EXPECT_TRUE(pair_.a->post(Side::work(GetParam(), 1, there_.address(), there_.key()), {local}));
    EXPECT_TRUE(pair_.until([&] { return !pair_.a->send_cq.empty(); }));
    return Side::take(pair_.a->send_cq);
  }

  ConnectedPair pair_{LinkKind::direct};
  Page here_{*pair_.a}, there_{*pair_.b};
};
INSTANTIATE_TEST_SUITE_P(Operations, Faults, testing::Values(SendOp::write, SendOp::read),
                         [](const auto& op) {
                           return std::string(op.param == SendOp::read ? "read" : "write");
                         });

TEST_P(Faults, of_a_direct_copy_are_local_errors_if_the_memory_here_is_gone) {
  here_.take_away();
  EXPECT_EQ(end_of_it().status, loc_prot_err);
  ASSERT_NE(pair_.a->given_back, nullptr);
  EXPECT_EQ(pair_.a->given_back->request_tx.cells.pos(), 0u) << "the ring has had a part in it";
}

TEST_P(Faults, of_a_direct_copy_are_refused_by_the_owner_if_its_memory_is_gone) {
  there_.take_away();
  const Wc wc = end_of_it();
  EXPECT_EQ(wc.status, rem_access_err);
  EXPECT_EQ(wc.vendor_err, static_cast<uint32_t>(protect::Denial::not_backed));
}

TEST(Attaching, without_memory_for_it_ends_what_was_posted_with_an_error) {
  Pair pair(LinkKind::shm);
  pair.a->bring_up();
  ASSERT_TRUE(pair.a->post(SendOp::send, 1, 0, 8));
  ASSERT_TRUE(pair.a->post(SendOp::send, 2, 0, 8));
  pair.lanes.make(pair.a->domain, pair.b->domain);
  aperture::test::out_of_memory = true;
  pair.a->qp->attach(std::move(pair.lanes.lane_a));
  aperture::test::out_of_memory = false;
  EXPECT_NE(pair.a->given_back, nullptr);
  EXPECT_EQ(ends_of(pair.a->send_cq), (Ends{retry_exc_err, wr_flush_err}));
}

TEST(Looks, at_what_only_time_moves_come_every_so_many_polls) {
  ConnectedPair pair(LinkKind::shm);
  transport::test::expect_looks_every_so_many_polls(*pair.a->qp, pair.b->qp->lane()->request_tx);
}

}  // namespace
}  // namespace aperture::ib::test
