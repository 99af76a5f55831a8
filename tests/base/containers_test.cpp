// The intrusive list, the object pool, and copies through an iovec.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/iov.hpp"
#include "base/list.hpp"
#include "base/pool.hpp"

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

}  // namespace
}  // namespace aperture
