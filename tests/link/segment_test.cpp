// The shared segment: lanes are given, used again clean, and run out; what is not a sound segment
// is not mapped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/value_of.hpp"
#include "link/shm/segment.hpp"

namespace aperture::link::shm {
namespace {

using test::value_of;

UniqueFd copy_of(int fd) {
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
}

TEST(Segment, has_so_many_lanes_and_no_more) {
  auto segment = value_of(Segment::create());
  for (uint32_t i = 0; i < kLanes; ++i) ASSERT_TRUE(segment->reserve_lane().ok()) << i;
  EXPECT_EQ(segment->reserve_lane().error(), Errc::no_space);
  segment->release_lane(3);
  EXPECT_EQ(value_of(segment->reserve_lane()), 3u);
}

TEST(Segment, lane_that_is_used_again_is_clean) {
  auto segment = value_of(Segment::create());
  auto index = value_of(segment->reserve_lane());
  {
    auto lane = value_of(segment->open_lane(index, {}));
    lane->request_tx.cells.publish(1);
  }
  segment->release_lane(index);
  index = value_of(segment->reserve_lane());
  auto other = value_of(Segment::attach(copy_of(segment->fd())));
  auto lane = value_of(other->open_lane(index, {}));
  EXPECT_FALSE(lane->request_rx.cells.ready()) << "a mark of its last life";
}

TEST(Segment, lane_index_of_a_peer_is_checked) {
  auto segment = value_of(Segment::create());
  EXPECT_EQ(segment->open_lane(kLanes, {}).error(), Errc::protocol);
  EXPECT_EQ(segment->open_lane(~0u, {}).error(), Errc::protocol);
}

TEST(Segment, lane_keeps_the_memory_that_it_lies_in) {
  auto segment = value_of(Segment::create());
  auto index = value_of(segment->reserve_lane());
  auto lane = value_of(segment->open_lane(index, {}));
  segment = nullptr;
  lane->request_tx.cells.publish(1);  // would fault if the mapping had gone
  EXPECT_EQ(lane->request_tx.cells.pos(), 1u);
}

TEST(Segment, hostile_39_cannot_be_shrunk_or_grown_by_anybody) {
  auto segment = value_of(Segment::create());
  const int fd = segment->fd();
  EXPECT_NE(::ftruncate(fd, 4096), 0);
  EXPECT_NE(::ftruncate(fd, off_t{1} << 40), 0);
  EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1) << "no seal can be added to starve us";
}

TEST(Segment, hostile_39_file_that_is_short_unsealed_or_not_ours_is_not_attached) {
  auto segment = value_of(Segment::create());
  const off_t size = ::lseek(segment->fd(), 0, SEEK_END);

  EXPECT_EQ(Segment::attach(value_of(make_sealed_memfd("short", 4096))).error(), Errc::protocol);

  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), size), 0);
  EXPECT_EQ(Segment::attach(std::move(unsealed)).error(), Errc::protocol);

  auto empty = value_of(make_sealed_memfd("empty", static_cast<size_t>(size)));
  EXPECT_EQ(Segment::attach(std::move(empty)).error(), Errc::protocol) << "no header";

  EXPECT_EQ(Segment::attach(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC))).error(),
            Errc::protocol);
  EXPECT_TRUE(Segment::attach(copy_of(segment->fd())).ok());
}

TEST(Segment, hostile_42_what_is_given_to_a_peer_holds_nothing_of_ours) {
  auto segment = value_of(Segment::create());
  value_of(segment->reserve_lane());
  const auto size = static_cast<size_t>(::lseek(segment->fd(), 0, SEEK_END));
  auto mapped = value_of(Mapping::map_shared(segment->fd(), size, Mapping::Access::read_only));
  // behind the header there is nothing but zeros; a hole need not be looked at, it has no pages
  const std::byte* bytes = mapped.data();
  const off_t data = ::lseek(segment->fd(), 4096, SEEK_DATA);
  for (off_t at = data; at >= 0 && at < static_cast<off_t>(size); ++at) {
    ASSERT_EQ(bytes[at], std::byte{0}) << at;
    if (at % 4096 == 4095) at = ::lseek(segment->fd(), at + 1, SEEK_DATA) - 1;
    if (at < 0) break;
  }
}

}  // namespace
}  // namespace aperture::link::shm
