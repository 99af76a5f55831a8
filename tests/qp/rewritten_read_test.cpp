// A peer rewrites a read while it is being answered: its request still lies in the ring, since the
// answer waits for room, and is looked at again when there is some. (hostile-inputs 38.)
#include "qp/attacked.hpp"

namespace aperture::qp::test {
namespace {

constexpr size_t kBytes = 900'000;  // more than the response ring has

class RewrittenRead : public Attacked {
 protected:
  RewrittenRead() : Attacked(kBytes, Rights::remote_read | Rights::remote_write) {
    request_ = peer().request_tx.cells.body();
    request(Op::read, whole(kBytes, 3), wire::kFirst | wire::kLast, memory_.address());
    poll();
    EXPECT_FALSE(a().qp->broken());
    EXPECT_GT(take_responses(), 1) << "a part of it has been answered";
  }
  // All of a read, in one request.
  wire::ReadFields whole(uint64_t len, uint64_t id) const { return {region_.key, len, 0, len, id}; }
  // What there is for the peer, which makes room.
  int take_responses() {
    ring::ChannelRx& rx = peer().response_rx;
    int taken = 0;
    for (; rx.cells.ready(); ++taken) {
      wire::SoundHead head;
      const uint32_t n_cells = wire::read_head(rx.cells.body(), head);
      if (n_cells == 0) return -1;
      if (head.op() == Op::read_data) {
        const auto f = wire::load_fields<wire::DataFields>(rx.cells.body());
        rx.free_bytes_before(ring::ByteReader::after(f.byte_pos.unchecked(), f.len.unchecked()));
      }
      rx.cells.advance(n_cells);
    }
    rx.publish_consumed();
    return taken;
  }

  // It is over, and the connection is not.
  void expect_end() {
    for (int i = 0; i < 20 && a().qp->lane()->request_rx.cells.pos() == 0; ++i) {
      poll();
      EXPECT_GT(take_responses(), 0);
    }
    EXPECT_FALSE(a().qp->broken());
    EXPECT_EQ(a().qp->lane()->request_rx.cells.pos(), 1u);
  }

  std::byte* request_ = nullptr;  // as it lies in the ring
};

// over a stream a record cannot be changed once it has arrived
INSTANTIATE_TEST_SUITE_P(links, RewrittenRead, kEachShared, link_name);

TEST_P(RewrittenRead, goes_on_as_it_was) {
  expect_end();
}

TEST_P(RewrittenRead, that_is_shorter_than_what_was_sent_ends_the_connection) {
  wire::store_fields(request_, whole(40'000, 3));
  poll();
  EXPECT_TRUE(a().qp->broken());
  EXPECT_TRUE(a().qp->needs_wind_up());
}

TEST_P(RewrittenRead, that_is_small_by_now_ends_the_connection_too) {
  wire::store_fields(request_, whole(8, 3));
  poll();
  EXPECT_TRUE(a().qp->broken());
  EXPECT_TRUE(memory_.all(7));
}

TEST_P(RewrittenRead, that_is_a_refused_check_by_now_leaves_nothing_for_the_next_read) {
  const Head check = Head::make(Op::check, wire::kFirst | wire::kLast, 0, memory_.address());
  std::memcpy(request_, &check, sizeof check);
  wire::store_fields(request_, wire::CheckFields{region_.key, 2 * kBytes, 0});
  poll();
  take_responses();
  request(Op::read, whole(kBytes, 4), wire::kFirst | wire::kLast, memory_.address());
  for (int i = 0; i < 20; ++i) {
    poll();
    take_responses();
  }
  EXPECT_FALSE(a().qp->broken());
  EXPECT_EQ(a().qp->lane()->request_rx.cells.pos(), 2u);
}

TEST_P(RewrittenRead, that_leaves_its_region_by_now_is_refused) {
  wire::store_fields(request_, whole(~uint64_t{0}, 3));
  expect_end();
}

}  // namespace
}  // namespace aperture::qp::test
