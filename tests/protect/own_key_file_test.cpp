// The key file as its owner has it: its size, its seal, and memory that comes as it is needed.
#include "protect/own_key_file.hpp"

#include <sys/stat.h>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

uint64_t bytes_allocated(const OwnKeyFile& own) {
  struct stat now {};
  EXPECT_EQ(::fstat(own.fd(), &now), 0);
  return static_cast<uint64_t>(now.st_blocks) * 512;
}

TEST(OwnFile, bad_sizes_are_refused) {
  EXPECT_EQ(OwnKeyFile::make(0).error(), Errc::invalid);
  EXPECT_EQ(OwnKeyFile::make(OwnKeyFile::kMostRegions + 1).error(), Errc::invalid);
  EXPECT_TRUE(OwnKeyFile::make(OwnKeyFile::kMostRegions));
  EXPECT_TRUE(OwnKeyFile::make(1));
}

TEST(OwnFile, its_header_says_what_peers_need) {
  const OwnKeyFile own(*OwnKeyFile::make(1000));
  const KeyHeader& header = *own.layout().header;
  EXPECT_EQ(header.capacity, 1000u);
  EXPECT_EQ(header.size_bytes, own.size_bytes());
  EXPECT_EQ(header.self_address, reinterpret_cast<uint64_t>(&header));
  EXPECT_NE(header.nonce, OwnKeyFile(*OwnKeyFile::make(1000)).layout().header->nonce);
  EXPECT_EQ(own.layout().capacity, 1000u);
  EXPECT_EQ(own.layout().max_buckets, 2048u);
  Result<PeerKeyView> view =
      PeerKeyView::map(UniqueFd(::fcntl(own.fd(), F_DUPFD_CLOEXEC, 0)), own.size_bytes());
  EXPECT_TRUE(view);
}

TEST(OwnFile, has_memory_for_what_was_asked_for_and_not_for_all) {
  OwnKeyFile own(*OwnKeyFile::make(1u << 20));
  const uint64_t empty = bytes_allocated(own);
  EXPECT_LT(empty, 16'384u);
  ASSERT_TRUE(own.have_entries(1));
  const uint64_t first = bytes_allocated(own);
  EXPECT_GT(first, empty);
  EXPECT_TRUE(own.have_entries(1));
  EXPECT_EQ(bytes_allocated(own), first) << "it is there already";
  ASSERT_TRUE(own.have_entries(100'000));
  EXPECT_GE(bytes_allocated(own), 100'000 * sizeof(KeyEntry));
  EXPECT_LT(bytes_allocated(own), 110'000 * sizeof(KeyEntry));
  own.layout().entries[99'999].key = 1;  // no SIGBUS
  const uint64_t before = bytes_allocated(own);
  EXPECT_TRUE(own.have_buckets(kBucketsAtStart));
  EXPECT_EQ(bytes_allocated(own), before) << "those of the start were there";
  EXPECT_TRUE(own.have_buckets(50'000));
  EXPECT_GE(bytes_allocated(own), before + (50'000 - kBucketsAtStart) * sizeof(uint32_t));
  own.layout().buckets[49'999] = 0;
}

TEST(OwnFile, ends_where_it_was_made_to_end) {
  OwnKeyFile own(*OwnKeyFile::make(1500));
  EXPECT_EQ(own.have_entries(1501).error(), Errc::no_space);
  EXPECT_TRUE(own.have_entries(1500));
  EXPECT_EQ(own.have_entries(1501).error(), Errc::no_space);
  EXPECT_TRUE(own.have_buckets(own.layout().max_buckets));
  own.layout().entries[1499].key = 1;
  own.layout().buckets[own.layout().max_buckets - 1] = 0;
}

TEST(OwnFile, cannot_be_written_by_whoever_holds_the_descriptor) {
  const OwnKeyFile own(*OwnKeyFile::make(1000));
  const uint64_t word = 0;
  EXPECT_LT(::pwrite(own.fd(), &word, sizeof word, 0), 0);
  EXPECT_FALSE(Mapping::map_shared(own.fd(), own.size_bytes(), Mapping::Access::read_write));
  EXPECT_TRUE(is_sealed_and_at_least(own.fd(), own.size_bytes()));
}

}  // namespace
}  // namespace aperture::protect
