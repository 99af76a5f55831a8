// Intrusive list, object pool, spare blocks, map of numbers, and copies through an iovec.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/iov.hpp"
#include "base/list.hpp"
#include "base/number_map.hpp"
#include "base/pool.hpp"
#include "base/spare_blocks.hpp"
#include "base/untouched_array.hpp"

namespace aperture {
namespace {

struct Item : ListHook {
  int n = 0;
};

TEST(List, keeps_order_and_removes_from_anywhere) {
  List<Item> list;
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.pop_front(), nullptr);
  Item items[4];
  for (int i = 0; i < 4; ++i) items[i].n = i;
  list.push_back(&items[1]);
  list.push_back(&items[2]);
  list.push_front(&items[0]);
  list.push_back(&items[3]);
  list.remove(&items[2]);
  EXPECT_FALSE(items[2].linked());
  EXPECT_EQ(list.front(), &items[0]);
  EXPECT_EQ(list.after(&items[0]), &items[1]);
  EXPECT_EQ(list.after(&items[1]), &items[3]);
  EXPECT_EQ(list.after(&items[3]), nullptr);
  list.push_back(&items[2]);
  for (const int expected : {0, 1, 3, 2}) EXPECT_EQ(list.pop_front()->n, expected);
  EXPECT_TRUE(list.empty());
}

TEST(Pool, hands_out_as_many_as_its_limit_and_takes_them_back) {
  Pool<int> pool(3, 70);
  int* taken[71] = {};
  for (int i = 0; i < 70; ++i) {
    taken[i] = pool.take();
    ASSERT_NE(taken[i], nullptr) << i;
    *taken[i] = i;
  }
  EXPECT_EQ(pool.take(), nullptr);
  EXPECT_EQ(pool.out(), 70u);
  for (int i = 0; i < 70; ++i) EXPECT_EQ(*taken[i], i);  // all different objects
  pool.give(taken[5]);
  EXPECT_EQ(pool.take(), taken[5]);
  for (int i = 0; i < 70; ++i) pool.give(taken[i]);
  EXPECT_EQ(pool.out(), 0u);
}

TEST(Pool, beyond_what_was_planned_takes_few_chunks) {
  constexpr int kObjects = 100'000;
  Pool<int> pool(64, 1u << 24);
  std::vector<int*> taken(kObjects);
  int chunks = 0;
  for (int i = 0; i < kObjects; ++i) {
    taken[i] = pool.take();
    ASSERT_NE(taken[i], nullptr) << i;
    chunks += i == 0 || taken[i] != taken[i - 1] + 1;
  }
  EXPECT_LE(chunks, 40);
  for (int* each : taken) pool.give(each);
}

struct Counted {
  Counted() { ++made; }
  ~Counted() { ++gone; }
  alignas(64) int number = 7;
  static inline int made = 0, gone = 0;
};

TEST(Pool, makes_an_object_when_it_is_first_taken_and_ends_those_alone) {
  {
    Pool<Counted> pool(1000, 2000);
    EXPECT_EQ(Counted::made, 0);
    Counted* const first = pool.take();
    Counted* const second = pool.take();
    EXPECT_EQ(Counted::made, 2);
    EXPECT_EQ(second, first + 1);
    EXPECT_EQ(pool.out(), 2u);
    second->number = 8;
    pool.give(second);
    EXPECT_EQ(pool.take(), second);  // the last that came back, with its last contents
    EXPECT_EQ(second->number, 8);
    EXPECT_EQ(Counted::made, 2);
    pool.give(second);
    pool.give(first);
    EXPECT_EQ(pool.out(), 0u);
    for (int i = 0; i < 1001; ++i) ASSERT_EQ(pool.take()->number, i == 1 ? 8 : 7) << i;
    EXPECT_EQ(Counted::made, 1001);
    EXPECT_EQ(pool.out(), 1001u);
    EXPECT_EQ(Counted::gone, 0);
  }
  EXPECT_EQ(Counted::gone, 1001);
}

// How many pages of those bytes are in memory.
size_t touched(const std::byte* from, size_t bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(from) + page - 1) & ~(page - 1);
  const size_t pages = (bytes - page) / page;
  std::vector<unsigned char> seen(pages);
  EXPECT_EQ(::mincore(reinterpret_cast<void*>(begin), pages * page, seen.data()), 0);
  return static_cast<size_t>(std::count_if(seen.begin(), seen.end(), [](auto c) { return c & 1; }));
}

TEST(UntouchedArray, takes_no_page_but_for_what_is_stored) {
  struct Large {
    uint64_t number = 7;
    uint64_t other[7] = {};
  };
  constexpr size_t kCount = 1 << 20;  // malloc asks the system for so much
  UntouchedArray<Large> array(kCount);
  EXPECT_EQ(array.size(), kCount);
  const auto* const from = reinterpret_cast<const std::byte*>(&array[0]);
  EXPECT_LE(touched(from, kCount * sizeof(Large)), 2u);  // AddressSanitizer fills a page of it
  array[kCount / 2] = {};
  EXPECT_LE(touched(from, kCount * sizeof(Large)), 514u);  // a huge page
  array[0].number = 1;
  array[kCount - 1].number = 2;
  UntouchedArray<Large> other(2);
  other[1].number = 3;
  array.swap(other);
  EXPECT_EQ(array.size(), 2u);
  EXPECT_EQ(array[1].number, 3u);
  const UntouchedArray<Large> moved = std::move(other);
  EXPECT_EQ(moved[0].number, 1u);
  EXPECT_EQ(moved[kCount - 1].number, 2u);
}

TEST(NumberMap, finds_what_was_set_and_nothing_else) {
  NumberMap<int> map;
  int one = 1, other = 2;
  EXPECT_EQ(map.find(0), nullptr);
  map.remove(7);
  map.set(0, one);
  map.set(0xffffffff, other);
  EXPECT_EQ(map.find(0), &one);
  EXPECT_EQ(map.find(0xffffffff), &other);
  EXPECT_EQ(map.find(1), nullptr);
  map.set(0, other);
  EXPECT_EQ(map.find(0), &other);
  EXPECT_EQ(map.size(), 2u);
  map.remove(0);
  map.remove(0);
  EXPECT_EQ(map.find(0), nullptr);
  EXPECT_EQ(map.find(0xffffffff), &other);
  EXPECT_EQ(map.size(), 1u);
}

// Few numbers, so that chains of probes form, wrap around the end, and lose their middle.
TEST(NumberMap, does_as_a_std_map_does) {
  std::mt19937 random(3);
  for (const uint32_t numbers : {24u, 400u, 1u << 24}) {
    std::vector<int> objects(64);
    NumberMap<int> map;
    std::map<uint32_t, int*> model;
    for (int step = 0; step < 20'000; ++step) {
      const auto number = static_cast<uint32_t>(random() % numbers);
      if (random() % 2 == 0 && model.size() < 300) {
        int& object = objects[random() % objects.size()];
        map.set(number, object);
        model[number] = &object;
      } else {
        map.remove(number);
        model.erase(number);
      }
      const auto asked = static_cast<uint32_t>(random() % numbers);
      const auto at = model.find(asked);
      ASSERT_EQ(map.find(asked), at == model.end() ? nullptr : at->second);
      ASSERT_EQ(map.size(), model.size());
    }
    for (const auto& [number, object] : model) EXPECT_EQ(map.find(number), object);
  }
}

TEST(Iov, gather_and_scatter_begin_anywhere) {
  char a[] = "abc";
  char b[] = "";
  char c[] = "defgh";
  const iovec iov[] = {{a, 3}, {b, 0}, {c, 5}};
  EXPECT_EQ(iov_bytes(iov, 3), 8u);
  for (uint64_t offset = 0; offset <= 8; ++offset) {
    for (uint64_t len = 0; offset + len <= 8; ++len) {
      char out[9] = {};
      gather(out, iov, 3, offset, len);
      EXPECT_EQ(std::string(out, len), std::string("abcdefgh").substr(offset, len));
    }
  }
  scatter(iov, 3, 2, "XYZ", 3);
  EXPECT_STREQ(a, "abX");
  EXPECT_STREQ(c, "YZfgh");
}

TEST(Iov, stops_at_the_end_of_the_iovec) {
  char a[] = "abc";
  const iovec iov[] = {{a, 3}};
  char out[8] = "-------";
  gather(out, iov, 1, 2, 100);
  EXPECT_STREQ(out, "c------");
  gather(out, iov, 1, 100, 5);
  EXPECT_STREQ(out, "c------");
}

TEST(SpareBlocks, hands_out_what_came_back_last_and_keeps_a_few) {
  SpareBlocks blocks(48);
  std::vector<void*> out;
  for (int i = 0; i < 200; ++i) {
    out.push_back(blocks.take());
    std::memset(out.back(), i, 48);
  }
  // all of them apart: each still holds what was written
  for (int i = 0; i < 200; ++i) {
    const auto* bytes = static_cast<const unsigned char*>(out[i]);
    EXPECT_EQ(std::count(bytes, bytes + 48, static_cast<unsigned char>(i)), 48) << i;
  }
  for (void* block : out) blocks.give(block);  // more than it keeps: the rest is freed (ASan)
#if !defined(__SANITIZE_ADDRESS__)
  void* one = blocks.take();
  void* other = blocks.take();
  EXPECT_NE(one, other);
  blocks.give(one);
  EXPECT_EQ(blocks.take(), one);
  blocks.give(one);
  blocks.give(other);
#endif
}

}  // namespace
}  // namespace aperture
