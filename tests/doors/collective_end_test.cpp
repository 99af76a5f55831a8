// fi_collective(3): members that leave, die or are missing, and what becomes of the others.
#include <gtest/gtest.h>

#include "doors/child.hpp"
#include "doors/collective.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kOffered = 40'000;  // words: its sender waits until it is taken

// ---- several members in one process -------------------------------------------------------------

// They know each other by rank, in one set each.
struct Circle {
  explicit Circle(size_t n, const Options& options = collective_options()) {
    for (size_t r = 0; r < n; ++r) members.push_back(std::make_unique<Member>(options));
    for (auto& m : members) {
      std::vector<fi_addr_t> all;
      for (auto& other : members) all.push_back(m->node.insert(other->node.name()));
      sets.push_back(m->set_of(all));
    }
  }
  McPtr begin_to_join(size_t rank) { return members[rank]->begin_to_join(sets[rank]); }
  int joined(size_t rank, const McPtr& mc) { return members[rank]->joined(mc.get()); }
  std::vector<McPtr> join() {
    std::vector<McPtr> groups;
    for (size_t r = 0; r < members.size(); ++r) groups.push_back(begin_to_join(r));
    for (size_t r = 0; r < members.size(); ++r) DOOR(joined(r, groups[r]));
    return groups;
  }
  Member& operator[](size_t rank) { return *members[rank]; }
  std::vector<std::unique_ptr<Member>> members;
  std::vector<SetPtr> sets;
};

// An allreduce of that many words, of which each member brings its own.
struct Sum {
  Sum(Member& of, const McPtr& mc, size_t count, uint64_t word)
      : member(of), in(count, word), out(count) {
    DOOR(post([&] {
      return fi_allreduce(of.node.ep(), in.data(), count, nullptr, out.data(), nullptr,
                          fi_mc_addr(mc.get()), FI_UINT64, FI_SUM, 0, &op);
    }));
  }
  int end() { return member.node.wait(&op).err; }
  Member& member;
  std::vector<uint64_t> in, out;
  Op op;
};

int close_now(McPtr& mc) {
  const int rc = fi_close(&mc->fid);
  if (rc == 0) static_cast<void>(mc.release());
  return rc;
}
// Refused only as long as messages are under way in the application's buffers.
bool close_in_time(McPtr& mc) {
  return pump_until([&] { return close_now(mc) == 0; }, 5000);
}

TEST(Leaving, what_a_peer_sends_a_member_that_has_left_comes_to_its_end) {
  for (const size_t count : {size_t{1}, kOffered}) {
    Circle circle(2);
    std::vector<McPtr> groups = circle.join();
    Sum first(circle[0], groups[0], count, 1);
    const int rc = close_now(groups[0]);
    EXPECT_TRUE(rc == 0 || rc == -FI_EBUSY) << rc;
    Sum second(circle[1], groups[1], count, 2);
    EXPECT_GE(second.end(), 0) << count << " words: it is still under way";
    EXPECT_GE(first.end(), 0);
    EXPECT_TRUE(rc == 0 || close_in_time(groups[0]));
    EXPECT_TRUE(close_in_time(groups[1]));
  }
}

TEST(Leaving, while_the_join_is_under_way_tells_all_who_wait) {
  Circle circle(4);
  McPtr left = circle.begin_to_join(0);
  ASSERT_EQ(close_now(left), 0);
  std::vector<McPtr> groups;
  for (size_t r = 1; r < 4; ++r) groups.push_back(circle.begin_to_join(r));
  for (size_t r = 1; r < 4; ++r) EXPECT_GT(circle.joined(r, groups[r - 1]), 0) << "member " << r;
}

// One whose call was refused is where the others are once it has heard of that.
TEST(Leaving, a_join_that_one_member_alone_has_called_is_made_up_for) {
  Circle circle(2);
  McPtr alone = circle.begin_to_join(1);
  pump_for(20);  // its messages are at the other
  ASSERT_EQ(close_now(alone), 0);
  McPtr behind = circle.begin_to_join(0);
  McPtr again = circle.begin_to_join(1);
  EXPECT_GT(circle.joined(0, behind), 0) << "that join was abandoned";
  ASSERT_EQ(close_now(behind), 0);
  behind = circle.begin_to_join(0);
  EXPECT_EQ(circle.joined(0, behind), 0);
  EXPECT_EQ(circle.joined(1, again), 0);
  Sum one(circle[0], behind, 1, 5), two(circle[1], again, 1, 6);
  EXPECT_EQ(one.end(), 0);
  EXPECT_EQ(two.end(), 0);
  EXPECT_EQ(one.out[0], 11u);
}

TEST(Leaving, members_that_have_had_another_number_of_groups_agree_upon_the_next) {
  Circle circle(2);
  circle.join();
  circle.join();
  // another one comes to the address of the second
  const auto name = circle[1].node.name();
  circle.sets[1].reset();
  circle.members[1].reset();
  pump_for(20);
  Member reopened(collective_options(), name);
  const fi_addr_t first = reopened.node.insert(circle[0].node.name());
  const SetPtr set = reopened.set_of({first, reopened.node.insert(name)});
  McPtr here = circle.begin_to_join(0);
  McPtr there = reopened.begin_to_join(set);
  EXPECT_EQ(circle.joined(0, here), 0);
  EXPECT_EQ(reopened.joined(there.get()), 0);
  Sum one(circle[0], here, 1, 5), two(reopened, there, 1, 6);
  EXPECT_EQ(one.end(), 0);
  EXPECT_EQ(two.end(), 0);
  EXPECT_EQ(two.out[0], 11u);
}

TEST(Joining, several_groups_of_the_same_members_are_joined_at_once) {
  Circle circle(3);
  std::vector<McPtr> groups[3];
  for (auto& of_one : groups) {
    for (size_t r = 0; r < 3; ++r) of_one.push_back(circle.begin_to_join(r));
  }
  for (auto& of_one : groups) {
    for (size_t r = 0; r < 3; ++r) ASSERT_EQ(circle.joined(r, of_one[r]), 0);
  }
  for (size_t g = 3; g-- > 0;) {
    std::vector<std::unique_ptr<Sum>> sums;
    for (size_t r = 0; r < 3; ++r)
      sums.push_back(std::make_unique<Sum>(circle[r], groups[g][r], 1, g + 1));
    for (auto& sum : sums) {
      EXPECT_EQ(sum->end(), 0);
      EXPECT_EQ(sum->out[0], 3 * (g + 1));
    }
  }
}

TEST(Joining, a_member_that_is_named_twice_is_refused) {
  Circle circle(2);
  Member& m = circle[0];
  const SetPtr set = m.set_of({m.node.insert(m.node.name()), m.node.insert(m.node.name())});
  fi_addr_t addr = 0;
  DOOR(fi_av_set_addr(set.get(), &addr));
  fid_mc* mc = nullptr;
  EXPECT_EQ(fi_join_collective(m.node.ep(), addr, set.get(), 0, &mc, &m), -FI_EINVAL);
}

// ---- processes ----------------------------------------------------------------------------------

struct Fate {
  uint32_t rank = 0;
  uint32_t members = 0;
  uint32_t dies = 0;  // that rank
};

DOOR_ROLE(fated) {
  Fate fate;
  if (!control.get(&fate)) return 1;
  char said[200] = {};
  try {
    Member m;
    if (!control.put(Name(m.node.name()))) return 1;
    std::vector<fi_addr_t> peers;
    for (uint32_t r = 0; r < fate.members; ++r) {
      Name name;
      if (!control.get(&name)) return 1;
      peers.push_back(m.node.insert(name));
    }
    const SetPtr set = m.set_of(peers);
    McPtr mc = m.join(set);
    DOOR(m.run(fi_barrier, fi_mc_addr(mc.get())));
    control.put('j');
    char go = 0;
    control.get(&go);  // all are through the barrier
    if (fate.rank == fate.dies) _exit(0);
    Sum sum(m, mc, kOffered, 1);
    const int err = sum.end();
    if (err <= 0) {
      std::snprintf(said, sizeof said, "the allreduce ended with %d", err);
    } else if (!close_in_time(mc)) {
      std::snprintf(said, sizeof said, "the group cannot be closed");
    }
    control.put(said);
    control.get(&go);
  } catch (const DoorError& e) {
    std::snprintf(said, sizeof said, "%s", e.what());
    control.put(said);
  }
  return 0;
}

TEST(Dying, a_member_ends_what_all_others_have_under_way) {
  constexpr uint32_t kMembers = 4, kDies = 1;
  std::vector<std::unique_ptr<Child>> all;
  std::vector<Name> names(kMembers);
  for (uint32_t r = 0; r < kMembers; ++r) {
    all.push_back(std::make_unique<Child>("fated"));
    ASSERT_TRUE(all[r]->control().put(Fate{r, kMembers, kDies}));
  }
  for (uint32_t r = 0; r < kMembers; ++r) ASSERT_TRUE(all[r]->control().get(&names[r], 60000));
  for (auto& child : all) {
    for (const Name& name : names) ASSERT_TRUE(child->control().put(name));
  }
  char joined = 0;
  for (auto& child : all) ASSERT_TRUE(child->control().get(&joined, 60000));
  all[kDies]->control().put('g');
  EXPECT_EQ(all[kDies]->join(), 0);
  for (uint32_t r = 0; r < kMembers; ++r) {
    if (r != kDies) all[r]->control().put('g');
  }
  for (uint32_t r = 0; r < kMembers; ++r) {
    if (r == kDies) continue;
    char said[200] = {};
    ASSERT_TRUE(all[r]->control().get(&said, 60000)) << "member " << r;
    EXPECT_STREQ(said, "") << "member " << r;
  }
  for (uint32_t r = 0; r < kMembers; ++r) {
    if (r != kDies) all[r]->control().put('b');
  }
}

}  // namespace
}  // namespace aperture::doors
