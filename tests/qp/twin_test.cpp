// What queue pairs of both families do alike since they share transport/, of which each once had a
// manner of its own: docs/adr/0004. tests/ib/twin_test.cpp is the other half.
#include <sys/mman.h>

#include "base/out_of_memory.hpp"
#include "qp/attacked.hpp"
#include "transport/looks.hpp"

namespace aperture::qp::test {
namespace {

class Pieces : public Attacked {
 protected:
  Pieces() : Attacked(64 * 1024, Rights::remote_write) {}

  void write_piece(uint64_t len) {
    request(Op::write_bytes, wire::WriteBytesFields{region_.key, len, 0, 0, len}, wire::kFirst,
            memory_.address());
    for (int i = 0; i < 20; ++i) a().poll();
  }
};
INSTANTIATE_TEST_SUITE_P(Links, Pieces, link::test::kEachLink, link::test::link_name);

TEST_P(Pieces, are_taken_up_to_the_length_that_is_ever_sent_and_no_longer) {
  ASSERT_TRUE(peer().prepare_request_bytes());
  write_piece(peer().piece_bytes);
  EXPECT_FALSE(a().qp->broken());
  EXPECT_FALSE(memory_.all(7));
  write_piece(peer().piece_bytes + 1);
  EXPECT_TRUE(a().qp->broken());
}

// A page that can be taken away.
class Page {
 public:
  Page() = default;
  ~Page() { ::munmap(at_, kSize); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  void take_away() { EXPECT_EQ(::mprotect(at_, kSize, PROT_NONE), 0); }
  std::byte* data() const { return static_cast<std::byte*>(at_); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(at_); }

  static constexpr size_t kSize = 4096;

 private:
  void* const at_ =
      ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
};

// The target sleeps, so that copies are direct ones.
class Faults : public testing::Test {
 protected:
  Faults() {
    pair_.attach();
    pair_.b->qp->fall_asleep(ring::kUnnumbered);
  }
  // How an access between the two pages ends.
  CompletionError end_of(WqeKind kind) {
    const iovec local{here_.data(), kLen};
    const RemoteRange range{there_.address(), kLen, region_.key};
    EXPECT_TRUE(pair_.a->rma(kind, local, range, 1));
    EXPECT_TRUE(pair_.until([&] { return !pair_.a->tx_cq.empty(); }));
    if (!pair_.a->tx_cq.error_first()) {
      ADD_FAILURE() << "a success";
      return {};
    }
    return pair_.a->tx_cq.pop_error();
  }
  protect::RegionHandle add_region() {
    return *pair_.keys->add({.pd = pair_.b->domain,
                             .base = there_.address(),
                             .length = Page::kSize,
                             .rights = Rights::remote_read | Rights::remote_write});
  }

  static constexpr uint64_t kLen = 1000;
  Pair pair_{LinkKind::direct};
  Page here_, there_;
  protect::RegionHandle region_ = add_region();
};

TEST_F(Faults, of_a_direct_copy_are_local_errors_if_the_memory_here_is_gone) {
  here_.take_away();
  EXPECT_EQ(end_of(WqeKind::write).err, Errc::bad_buffer);
  EXPECT_EQ(end_of(WqeKind::read).err, Errc::bad_buffer);
}

TEST_F(Faults, of_a_direct_copy_are_refused_by_the_owner_if_its_memory_is_gone) {
  there_.take_away();
  for (const WqeKind kind : {WqeKind::write, WqeKind::read}) {
    const CompletionError e = end_of(kind);
    EXPECT_EQ(e.err, Errc::access_denied);
    EXPECT_EQ(e.vendor, static_cast<uint32_t>(protect::Denial::not_backed));
  }
}

TEST(Attaching, without_memory_for_it_ends_what_was_posted_with_an_error) {
  Pair pair(LinkKind::shm);
  const auto data = pattern(8, 1);
  const iovec iov = iov_of(data);
  ASSERT_TRUE(pair.a->send(iov, 1));
  aperture::test::out_of_memory = true;
  pair.a->qp->attach(std::move(pair.lane_a));
  aperture::test::out_of_memory = false;
  ASSERT_TRUE(pair.until([&] { return pair.a->qp->needs_wind_up(); }, true, false));
  EXPECT_EQ(pair.a->qp->ending().why(), Errc::no_memory);
  pair.a->qp->finish(Errc::shut_down);
  EXPECT_EQ(take_end(pair.a->tx_cq), Errc::no_memory);
  EXPECT_TRUE(pair.a->tx_cq.empty());
}

TEST(Looks, at_what_only_time_moves_come_every_so_many_polls) {
  Pair pair(LinkKind::shm);
  pair.attach();
  transport::test::expect_looks_every_so_many_polls(*pair.a->qp, pair.b->qp->lane()->request_tx);
}

}  // namespace
}  // namespace aperture::qp::test
