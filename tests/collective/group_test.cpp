// ComingAndGoing whose members leave at any time.
#include "collective/group.hpp"

#include <gtest/gtest.h>

#include <optional>

#include "collective/carried.hpp"

namespace aperture::collective {
namespace {

Address address_of(uint32_t rank) {
  return Address::v4(0x7f000001, static_cast<uint16_t>(1000 + rank));
}

// All of them are members of the same groups, one at a time.
class ComingAndGoing : public testing::TestWithParam<uint32_t> {
 protected:
  static constexpr uint32_t kSeeds = 60;
  void begin(uint32_t seed) {
    leave_all();
    world.reset();
    world.emplace(GetParam(), seed);
    groups.resize(world->size());
  }
  void TearDown() override { leave_all(); }

  void join(uint32_t r) {
    std::vector<Address> addresses;
    std::vector<uint64_t> indices;
    for (uint32_t i = 0; i < world->size(); ++i) {
      addresses.push_back(address_of(i));
      indices.push_back(i);
    }
    groups[r] = std::make_unique<Group>();
    groups[r]->members = *members_of(addresses, indices, address_of(r));
    (*world)[r].is_told = false;
    (*world)[r].runner().join(*groups[r], (*world)[r]);
  }
  bool try_to_leave(uint32_t r) {
    if (groups[r] != nullptr && !(*world)[r].runner().leave(*groups[r])) return false;
    groups[r].reset();
    return true;
  }
  void leave(uint32_t r) {
    for (int i = 0; !try_to_leave(r) && i < 100; ++i) world->settle();
    EXPECT_EQ(groups[r], nullptr) << "its buffers are in use for ever";
  }
  void leave_all() {
    for (uint32_t r = 0; r < groups.size(); ++r) leave(r);
    groups.clear();
  }
  bool has_joined(uint32_t r) const { return groups[r] != nullptr && groups[r]->is_joined; }
  bool all_have_joined() const {
    return std::all_of(groups.begin(), groups.end(), [&](const auto& g) {
      return g != nullptr && g->is_joined && g->key == groups[0]->key;
    });
  }
  // As programs do that are told of a failure, or find that the others are not there.
  bool join_all() {
    for (int round = 0; round < 60; ++round) {
      for (uint32_t r = 0; r < world->size(); ++r) {
        const bool waits = groups[r] != nullptr && !(*world)[r].is_told;
        if (waits) continue;
        leave(r);
        join(r);
      }
      world->settle();
      if (all_have_joined()) return true;
    }
    return false;
  }

  std::optional<Carried> world;
  std::vector<std::unique_ptr<Group>> groups;
};
INSTANTIATE_TEST_SUITE_P(Of, ComingAndGoing, testing::Values(1, 2, 3, 4, 5));

TEST_P(ComingAndGoing, is_joined_in_the_end_whoever_left_before) {
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    begin(seed);
    for (int i = 0; i < 100; ++i) {
      const uint32_t r = world->draw(world->size());
      if (groups[r] == nullptr) {
        join(r);
      } else if (world->draw(3) == 0) {
        leave(r);
      }
      for (uint32_t n = world->draw(30); n > 0; --n) world->step();
    }
    ASSERT_TRUE(join_all());
    EXPECT_EQ(groups.front()->number, groups.back()->number);
    world->settle();
    EXPECT_TRUE(world->is_empty());
  }
}

// While no other has called, or when all are joined.
TEST_P(ComingAndGoing, is_joined_in_the_end_by_one_that_dies_and_comes_back_at_its_address) {
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    begin(seed);
    for (int i = 0; i < 4; ++i) {
      const uint32_t r = world->draw(world->size());
      if (groups[r] == nullptr) join(r);
      for (uint32_t n = world->draw(30); n > 0; --n) world->step();
      leave(r);
      world->replace(r);
      ASSERT_TRUE(join_all()) << i;
      EXPECT_EQ(groups.front()->number, groups.back()->number);
      for (uint32_t other = 0; world->draw(2) == 0 && other < world->size(); ++other) leave(other);
      world->settle();
    }
  }
}

TEST_P(ComingAndGoing, leaves_nothing_behind_of_what_is_given_up) {
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    for (const size_t words : {size_t{1}, 2 * Carried::kShort}) {
      SCOPED_TRACE(seed);
      begin(seed);
      ASSERT_TRUE(join_all());
      std::vector<std::vector<uint64_t>> in, out;
      for (uint32_t r = 0; r < world->size(); ++r) {
        in.emplace_back(words * world->size(), r + 1);
        out.emplace_back(words * world->size());
      }
      for (uint32_t r = 0; r < world->size(); ++r) {
        auto* const from = reinterpret_cast<std::byte*>(in[r].data());
        auto* const to = reinterpret_cast<std::byte*>(out[r].data());
        const Place at = groups[r]->members.place();
        const size_t bytes = 8 * words;
        const Reduction sum{transport::AtomicOp::sum, transport::AtomicType::uint64};
        (*world)[r].is_told = false;
        (*world)[r].runner().begin(*groups[r],
                                   seed % 3 == 0   ? plan_allreduce(at, from, to, bytes, sum)
                                   : seed % 3 == 1 ? plan_alltoall(at, from, to, bytes)
                                                   : plan_allgather(at, from, to, bytes),
                                   (*world)[r]);
        for (uint32_t n = world->draw(40); n > 0; --n) world->step();
        if (world->draw(4) == 0) try_to_leave(world->draw(r + 1));
      }
      world->settle();
      for (uint32_t r = 0; r < world->size(); ++r) EXPECT_TRUE((*world)[r].is_told) << r;
      EXPECT_TRUE(world->is_empty());
      for (uint32_t r = 0; r < world->size(); ++r) EXPECT_TRUE(try_to_leave(r)) << r;
    }
  }
}

}  // namespace
}  // namespace aperture::collective
