// Which indices are given, and how often the place is asked where others insert addresses.
#include "nic/address_table.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/clock.hpp"
#include "qp/completion.hpp"

namespace aperture::nic {
namespace {

Address at(uint16_t port) {
  return Address::v4(0x7f000001, port);
}

TEST(AddressTable, gives_indices_in_order_and_the_lowest_free_one_again) {
  AddressTable table;
  for (uint16_t i = 0; i < 200; ++i) EXPECT_EQ(*table.insert(at(i)), i);
  for (const uint64_t index : {150, 7, 70}) EXPECT_TRUE(table.remove(index));
  EXPECT_FALSE(table.remove(7));
  for (const uint64_t index : {7, 70, 150, 200}) EXPECT_EQ(*table.insert(at(1)), index);
  EXPECT_EQ(table.count(), 201u);
}

TEST(AddressTable, an_index_that_is_placed_leaves_those_before_it_free) {
  AddressTable table;
  EXPECT_TRUE(table.place(130, at(130)));
  EXPECT_EQ(table.size(), 131u);
  EXPECT_TRUE(table.place(64, at(64)));
  for (uint64_t index = 0; index < 130; ++index) {
    if (index == 64) continue;
    EXPECT_EQ(*table.insert(at(1)), index);
  }
  EXPECT_EQ(*table.insert(at(1)), 131u);
  EXPECT_EQ(*table.find(64), at(64));
}

// Many indices far apart: each is placed in a time that does not grow with their number.
TEST(AddressTable, a_million_scattered_indices_are_placed) {
  constexpr uint64_t kMost = 1u << 20;
  AddressTable table;
  for (uint64_t index = kMost; index > 0; index -= 2) ASSERT_TRUE(table.place(index - 1, at(9)));
  EXPECT_EQ(table.count(), kMost / 2);
  for (uint64_t index = 0; index < 1000; index += 2) ASSERT_EQ(*table.insert(at(8)), index);
}

// Counts how often it is asked, and has what the test inserts.
class Asked final : public AddressTable::Origin {
 public:
  explicit Asked(AddressTable& table) : table_(table) { table.set_origin(this); }
  void refresh() noexcept override {
    ++times;
    for (; known_ < inserted.size(); ++known_)
      EXPECT_TRUE(table_.place(known_, at(inserted[known_])));
  }
  uint64_t times = 0;
  std::vector<uint16_t> inserted;

 private:
  AddressTable& table_;
  size_t known_ = 0;
};

TEST(AddressOrigin, is_asked_each_time_for_what_the_application_names_and_is_not_there) {
  AddressTable table;
  Asked asked(table);
  for (uint64_t i = 1; i <= 1000; ++i) {
    EXPECT_EQ(table.find_fresh(0), nullptr);
    ASSERT_EQ(asked.times, i);
  }
  asked.inserted = {5};
  EXPECT_EQ(*table.find_fresh(0), at(5));
  const uint64_t before = asked.times;
  EXPECT_EQ(*table.find_fresh(0), at(5));
  EXPECT_EQ(asked.times, before);
}

TEST(AddressOrigin, is_asked_seldom_for_strangers) {
  AddressTable table;
  Asked asked(table);
  const uint64_t begun = now_ns();
  bool may_come = false;
  for (int i = 0; i < 100'000; ++i) {
    EXPECT_EQ(table.source_of(at(7), may_come), qp::kNoSource);
    EXPECT_TRUE(may_come);
  }
  const uint64_t ms = (now_ns() - begun) / AddressTable::kStrangerNs;
  EXPECT_GE(asked.times, AddressTable::kStrangersAtOnce);
  EXPECT_LE(asked.times, AddressTable::kStrangersAtOnce + ms + 1);
  asked.inserted = {7};
  const uint64_t give_up = now_ns() + 10'000'000'000;
  while (table.source_of(at(7), may_come) != 0 && now_ns() < give_up) continue;
  EXPECT_FALSE(may_come) << "it is found a little later";
}

TEST(AddressOrigin, is_asked_for_every_message_once_a_receive_waits_for_an_index_to_come) {
  AddressTable table;
  Asked asked(table);
  bool may_come = false;
  EXPECT_EQ(table.receive_from(0), 0u);
  for (int i = 0; i < 10 * static_cast<int>(AddressTable::kStrangersAtOnce); ++i)
    EXPECT_EQ(table.source_of(at(7), may_come), qp::kNoSource);
  asked.inserted = {7};
  EXPECT_EQ(table.source_of(at(7), may_come), 0u);
}

TEST(AddressOrigin, a_receive_names_the_lowest_index_of_an_address_that_was_inserted_elsewhere) {
  AddressTable table;
  Asked asked(table);
  asked.inserted = {4, 5, 4};
  EXPECT_EQ(table.receive_from(2), 0u);
  EXPECT_EQ(table.receive_from(1), 1u);
}

}  // namespace
}  // namespace aperture::nic
