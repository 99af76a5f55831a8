// The owner's steps of a remote write and read: the whole is checked first, each piece again.
#include "transport/remote_access.hpp"

#include <cstring>
#include <vector>

#include "base/clock.hpp"
#include "link/lane_pair.hpp"

namespace aperture::transport {
namespace {

using link::test::LanePair;
using link::test::LinkKind;
using protect::Denial;
using protect::Rights;

constexpr protect::DomainId kDomain = 3;
constexpr uint64_t kSize = 100'000;

class Steps : public testing::Test {
 protected:
  Steps() : pair_(LinkKind::shm), memory_(kSize + 64, std::byte{9}) {
    pair_.make(1, kDomain);
    lane_.attach(std::move(pair_.lane_b));
    other_.attach(std::move(pair_.lane_a));
    region_ = add();
  }
  protect::RegionHandle add() {
    protect::RegionSpec spec;
    spec.pd = kDomain;
    spec.base = address();
    spec.length = kSize;
    spec.rights = Rights::remote_read | Rights::remote_write;
    return *pair_.keys->add(spec);
  }
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory_.data()); }
  protect::AccessAsk ask(uint64_t len, Rights need = Rights::remote_write) const {
    protect::AccessAsk a;
    a.pd = kDomain;
    a.key = Wild<uint64_t>(region_.key);
    a.addr = Wild<uint64_t>(address());
    a.len = Wild<uint64_t>(len);
    a.need = need;
    return a;
  }
  Denial write(uint64_t whole, uint64_t at, const std::vector<std::byte>& from) {
    BytesIn piece(from.data(), from.size(), from.size(), nullptr);
    return access_.write_piece(ask(whole), at, piece);
  }
  void close() { ASSERT_TRUE(pair_.keys->revocation().revoke(region_, now_ns() + 1'000'000'000)); }

  LanePair pair_;
  std::vector<std::byte> memory_;
  protect::RegionHandle region_;
  LaneEnd lane_, other_;
  RemoteAccess access_{pair_.keys->access()};
};

TEST_F(Steps, a_write_in_pieces_that_leaves_its_region_as_a_whole_changes_nothing) {
  const std::vector<std::byte> from(1000, std::byte{1});
  access_.begin_range();
  EXPECT_EQ(write(kSize + 1, 0, from), Denial::out_of_range);
  EXPECT_EQ(memory_[0], std::byte{9});
}

TEST_F(Steps, a_write_in_pieces_lands_where_it_should_and_not_beside_it) {
  const std::vector<std::byte> from(1000, std::byte{1});
  access_.begin_range();
  for (uint64_t at = 0; at < kSize; at += 1000) {
    ASSERT_EQ(write(kSize, at, from), Denial::none);
  }
  for (uint64_t i = 0; i < kSize; ++i) ASSERT_EQ(memory_[i], std::byte{1});
  for (uint64_t i = kSize; i < memory_.size(); ++i) ASSERT_EQ(memory_[i], std::byte{9});
}

TEST_F(Steps, a_region_closed_between_two_pieces_refuses_the_second) {
  const std::vector<std::byte> from(1000, std::byte{1});
  access_.begin_range();
  ASSERT_EQ(write(kSize, 0, from), Denial::none);
  close();
  EXPECT_EQ(write(kSize, 1000, from), Denial::closed);
  EXPECT_EQ(memory_[1000], std::byte{9});
}

TEST_F(Steps, a_long_read_streams_waits_for_room_and_goes_on_where_it_was) {
  for (uint64_t i = 0; i < kSize; ++i) memory_[i] = static_cast<std::byte>(i * 7);
  const protect::AccessAsk whole = ask(kSize, Rights::remote_read);
  uint64_t room = lane_->response_tx.bytes.size();
  uint64_t pos = 0;
  // all room but for one piece is taken
  while (room > 2 * kPieceBytes) {
    ASSERT_EQ(lane_.payload().put_response_bytes(kPieceBytes, pos, [](std::byte*) { return true; }),
              Put::done);
    room -= kPieceBytes;
  }
  access_.begin_range();
  ASSERT_EQ(access_.check_whole(whole), Denial::none);
  std::vector<std::byte> got(kSize);
  Denial denial = Denial::none;
  struct Record {
    uint64_t offset, at, n;
  };
  const auto record = [&](std::byte* body, uint64_t offset, uint64_t at, uint32_t n) {
    const Record r{offset, at, n};
    std::memcpy(body, &r, sizeof r);
  };
  const auto take = [&](const std::byte* body) {
    Record r;
    std::memcpy(&r, body, sizeof r);
    const BytesIn in =
        other_.payload().take_bytes(other_->response_rx, Wild(r.at), r.n, kPieceBytes);
    EXPECT_TRUE(bool(in));
    std::memcpy(got.data() + r.offset, in.from(), r.n);
    other_.payload().done_with(other_->response_rx, in);
    return 1u;
  };
  const auto stream = [&] { return access_.stream_read(lane_, whole, 0, kSize, denial, record); };
  EXPECT_EQ(stream(), RemoteAccess::Streamed::turn_over);  // a piece is what one poll moves
  RemoteAccess::Streamed said;
  do {
    said = stream();
  } while (said == RemoteAccess::Streamed::turn_over);
  EXPECT_EQ(said, RemoteAccess::Streamed::no_room);
  EXPECT_TRUE(access_.is_streaming());
  for (int i = 0; i < 100 && access_.is_streaming(); ++i) {
    other_.take_responses(take);
    stream();
  }
  while (other_.take_responses(take)) {
  }
  EXPECT_FALSE(access_.is_streaming());
  EXPECT_EQ(denial, Denial::none);
  EXPECT_EQ(std::memcmp(got.data(), memory_.data(), kSize), 0);
}

TEST_F(Steps, a_read_whose_region_closes_in_its_middle_is_refused_once) {
  const protect::AccessAsk whole = ask(kSize, Rights::remote_read);
  access_.begin_range();
  ASSERT_EQ(access_.check_whole(whole), Denial::none);
  close();
  Denial denial = Denial::none;
  EXPECT_EQ(access_.stream_read(lane_, whole, 0, kSize, denial, [](auto...) {}),
            RemoteAccess::Streamed::denied);
  EXPECT_FALSE(other_->response_rx.cells.ready());
  EXPECT_EQ(denial, Denial::closed);
  EXPECT_FALSE(access_.is_streaming());
}

}  // namespace
}  // namespace aperture::transport
