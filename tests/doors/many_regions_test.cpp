// Many regions at once, and none afterwards: the memory that they took is given back.
//
// APERTURE_REGIONS: how many (default 60,000; ./dev soak: a million).
#include "base/held_memory.hpp"
#include "doors/child.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

using test::HeldMemory;

constexpr int kWait_ms = 60000;

class ManyRegions : public testing::Test {
 protected:
  void SetUp() override {
    regions_.resize(test::many_regions());  // and touched
    open(1000);                             // whatever comes with the first ones
    close(1000);
    before_ = test::held_memory();
  }
  void open(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      // small pieces of one buffer
      ASSERT_EQ(fi_mr_reg(node_.domain(), memory_.data() + i % 4096 * 16, 64, kAllAccess, 0,
                          next_key_++, 0, &regions_[i], nullptr),
                0)
          << i;
    }
  }
  void close(size_t count) {
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(fi_close(&regions_[i]->fid), 0) << i;
  }

  Node node_{{.mr_mode = kBasicMr}};
  std::vector<uint8_t> memory_ = std::vector<uint8_t>(1 << 17);
  std::vector<fid_mr*> regions_;
  uint64_t next_key_ = uint64_t{1} << 32;
  HeldMemory before_;
};

TEST_F(ManyRegions, give_their_memory_back_when_they_are_closed) {
  for (int round = 0; round < 2; ++round) {
    open(regions_.size());
    const HeldMemory full = test::held_memory();
    close(regions_.size());
    test::expect_given_back(regions_.size(), before_, full);
  }
}

TEST_F(ManyRegions, a_thousand_at_a_time_never_take_more_than_a_thousand) {
  for (size_t done = 0; done < regions_.size(); done += 1000) {
    open(1000);
    close(1000);
  }
  const HeldMemory after = test::held_memory();
  EXPECT_LE(after.key_files, before_.key_files + (1 << 16));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(after.resident, before_.resident + (1 << 20));
#endif
}

// What a peer copies under, it has mapped: it reads the table of keys until it has gone.
DOOR_ROLE(reader_of_regions) {
  struct {
    Name name;
    Remote remote;
  } target;
  if (!control.get(&target)) return 1;
  Node node({.mr_mode = kBasicMr});
  const fi_addr_t to = node.insert(target.name);
  uint8_t bytes[8];
  const auto read = [&] {
    return node.run(fi_read, bytes, sizeof bytes, nullptr, to, target.remote.base,
                    target.remote.key);
  };
  for (char word = 0;;) {
    if (!control.put(read())) return 1;
    if (!control.get(&word)) return 1;
    if (word == 'x') return 0;
  }
}

TEST_F(ManyRegions, that_a_peer_could_reach_give_their_memory_back_when_it_has_gone) {
  Region region(node_, 4096);
  Child reader("reader_of_regions");
  const struct {
    Name name;
    Remote remote;
  } target{node_.name(), region.remote()};
  const auto has_read = [&] {
    int64_t code = -1;
    return pump_until([&] { return reader.control().ready(); }, kWait_ms) &&
           reader.control().get(&code, 0) && code == 0;
  };
  ASSERT_TRUE(reader.control().put(target));
  ASSERT_TRUE(has_read());
  before_ = test::held_memory();
  open(regions_.size());
  const HeldMemory full = test::held_memory();
  close(regions_.size());
  ASSERT_TRUE(reader.control().put('r'));
  ASSERT_TRUE(has_read()) << "by a key that is in force";
  ASSERT_TRUE(reader.control().put('x'));
  EXPECT_EQ(reader.join(), 0);
  test::expect_given_back(regions_.size(), before_, full);
  Child next("reader_of_regions");
  ASSERT_TRUE(next.control().put(target));
  int64_t code = -1;
  ASSERT_TRUE(pump_until([&] { return next.control().ready(); }, kWait_ms));
  ASSERT_TRUE(next.control().get(&code, 0));
  EXPECT_EQ(code, 0) << "who comes later is handed the table as it is now";
  ASSERT_TRUE(next.control().put('x'));
  EXPECT_EQ(next.join(), 0);
}

}  // namespace
}  // namespace aperture::doors
