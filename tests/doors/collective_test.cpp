// fi_collective(3) and fi_av_set(3): groups of several processes, and what is refused.
#include <gtest/gtest.h>

#include <numeric>

#include "doors/child.hpp"
#include "doors/collective.hpp"

namespace aperture::doors {
namespace {

// ---- one process --------------------------------------------------------------------------------

class Alone : public testing::Test {
 protected:
  Alone() : self(m.node.insert(m.node.name())) {}
  Member m;
  fi_addr_t self;
};

TEST_F(Alone, a_group_of_one_completes_by_itself) {
  const SetPtr set = m.set_of({self});
  const McPtr mc = m.join(set);
  const fi_addr_t group = fi_mc_addr(mc.get());
  EXPECT_EQ(m.run(fi_barrier, group), 0);
  uint32_t in = 7, out = 0;
  EXPECT_EQ(m.run(fi_allreduce, &in, size_t{1}, static_cast<void*>(nullptr), &out,
                  static_cast<void*>(nullptr), group, FI_UINT32, FI_SUM, uint64_t{0}),
            0);
  EXPECT_EQ(out, 7u);
  EXPECT_EQ(fi_close(&m.node.ep()->fid), -FI_EBUSY) << "it is a member";
}

TEST_F(Alone, sets_keep_their_order_and_follow_set_algebra) {
  Node other(collective_options());
  DOOR(fi_enable(other.ep()));
  const fi_addr_t second = m.node.insert(other.name());
  const SetPtr a = m.set_of({second});
  const SetPtr b = m.set_of({self});
  EXPECT_EQ(fi_av_set_union(a.get(), b.get()), 0);
  EXPECT_EQ(fi_av_set_insert(a.get(), self), -FI_EINVAL) << "the union has brought it";
  EXPECT_EQ(fi_av_set_insert(a.get(), 999), -FI_EINVAL) << "not in the address vector";
  EXPECT_EQ(fi_av_set_intersect(a.get(), b.get()), 0);
  EXPECT_EQ(fi_av_set_remove(a.get(), second), -FI_EINVAL) << "the intersection has dropped it";
  EXPECT_EQ(fi_av_set_diff(a.get(), b.get()), 0);
  EXPECT_EQ(fi_av_set_remove(a.get(), self), -FI_EINVAL) << "the difference is empty";
  fi_av_set_attr attr{};
  attr.flags = FI_UNIVERSE;
  attr.start_addr = attr.end_addr = FI_ADDR_NOTAVAIL;
  const SetPtr all = DOOR_MADE(fi_av_set, m.node.av(), &attr);
  EXPECT_EQ(fi_av_set_remove(all.get(), self), 0);
  EXPECT_EQ(fi_av_set_remove(all.get(), second), 0);
  EXPECT_EQ(fi_close(&m.node.av()->fid), -FI_EBUSY) << "sets are of it";
  attr = {};
  attr.end_addr = 1;
  EXPECT_EQ(code_of(fi_av_set, m.node.av(), &attr), -FI_EINVAL) << "a stride of 0";
  attr.stride = 1;
  attr.count = 1;
  EXPECT_EQ(code_of(fi_av_set, m.node.av(), &attr), -FI_EINVAL) << "more than count";
  attr.count = 2;
  EXPECT_EQ(code_of(fi_av_set, m.node.av(), &attr), 0);
  attr.comm_key_size = 1;
  EXPECT_EQ(code_of(fi_av_set, m.node.av(), &attr), -FI_ENOSYS);
}

TEST_F(Alone, what_is_no_membership_is_refused) {
  const SetPtr set = m.set_of({self});
  const SetPtr empty = m.set_of({});
  fi_addr_t addr = 0;
  DOOR(fi_av_set_addr(set.get(), &addr));
  fid_mc* mc = nullptr;
  fid_ep* const ep = m.node.ep();
  EXPECT_EQ(fi_join_collective(ep, addr + 8, set.get(), 0, &mc, &m), -FI_EINVAL);
  EXPECT_EQ(fi_join_collective(ep, FI_ADDR_NOTAVAIL, set.get(), 0, &mc, &m), -FI_ENOSYS);
  EXPECT_EQ(fi_join_collective(ep, addr, nullptr, 0, &mc, &m), -FI_EINVAL);
  EXPECT_EQ(fi_join_collective(ep, addr, set.get(), FI_SEND, &mc, &m), -FI_EBADFLAGS);
  DOOR(fi_av_set_addr(empty.get(), &addr));
  EXPECT_EQ(fi_join_collective(ep, addr, empty.get(), 0, &mc, &m), -FI_EINVAL);
  Node other(collective_options());
  DOOR(fi_enable(other.ep()));
  const SetPtr without = m.set_of({m.node.insert(other.name())});
  DOOR(fi_av_set_addr(without.get(), &addr));
  EXPECT_EQ(fi_join_collective(ep, addr, without.get(), 0, &mc, &m), -FI_EINVAL) << "not a member";
  EXPECT_EQ(mc, nullptr);
  Op op;
  EXPECT_EQ(fi_barrier(ep, 12345, &op), -FI_EINVAL);

  Options no_cap = collective_options(FI_MSG);
  Member plain(no_cap);
  const SetPtr own = plain.set_of({plain.node.insert(plain.node.name())});
  DOOR(fi_av_set_addr(own.get(), &addr));
  EXPECT_EQ(fi_join_collective(plain.node.ep(), addr, own.get(), 0, &mc, &m), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_barrier(plain.node.ep(), 12345, &op), -FI_EOPNOTSUPP);
  fi_av_set_attr attr{};
  attr.start_addr = attr.end_addr = FI_ADDR_NOTAVAIL;
  const SetPtr of_other = DOOR_MADE(fi_av_set, other.av(), &attr);
  DOOR(fi_av_set_insert(of_other.get(), other.insert(other.name())));
  DOOR(fi_av_set_addr(of_other.get(), &addr));
  EXPECT_EQ(fi_join_collective(other.ep(), addr, of_other.get(), 0, &mc, &m), -FI_ENOEQ);
}

TEST_F(Alone, what_a_group_cannot_do_is_refused_and_what_it_can_is_told) {
  const SetPtr set = m.set_of({self}, FI_BARRIER_SET | FI_ALLREDUCE_SET);
  const McPtr mc = m.join(set);
  const fi_addr_t group = fi_mc_addr(mc.get());
  double in = 1, out = 0;
  Op op;
  fid_ep* const ep = m.node.ep();
  const auto allreduce = [&](fi_datatype type, fi_op what, size_t count, uint64_t flags) {
    return fi_allreduce(ep, &in, count, nullptr, &out, nullptr, group, type, what, flags, &op);
  };
  EXPECT_EQ(allreduce(FI_DOUBLE, FI_BOR, 1, 0), -FI_EOPNOTSUPP);
  EXPECT_EQ(allreduce(FI_VOID, FI_SUM, 1, 0), -FI_EOPNOTSUPP);
  EXPECT_EQ(allreduce(FI_DOUBLE, FI_SUM, SIZE_MAX, 0), -FI_EMSGSIZE);
  EXPECT_EQ(allreduce(FI_DOUBLE, FI_SUM, 1, FI_FENCE), -FI_EBADFLAGS);
  EXPECT_EQ(fi_broadcast(ep, &in, 1, nullptr, group, self, FI_DOUBLE, 0, &op), -FI_EOPNOTSUPP)
      << "the set's flags have left it out";
  fi_collective_attr attr{};
  attr.op = FI_SUM;
  attr.datatype = FI_DOUBLE;
  EXPECT_EQ(fi_query_collective(m.node.domain(), FI_ALLREDUCE, &attr, 0), 0);
  EXPECT_EQ(attr.datatype_attr.size, sizeof(double));
  EXPECT_GE(attr.datatype_attr.count, 1u);
  EXPECT_GE(attr.max_members, 2u);
  attr.op = FI_CSWAP;
  EXPECT_EQ(fi_query_collective(m.node.domain(), FI_ALLREDUCE, &attr, 0), -FI_EOPNOTSUPP);
  attr.op = FI_NOOP;
  EXPECT_EQ(fi_query_collective(m.node.domain(), FI_BARRIER, &attr, 0), -FI_EOPNOTSUPP)
      << "a barrier has no datatype";
  attr.datatype = FI_VOID;
  EXPECT_EQ(fi_query_collective(m.node.domain(), FI_BARRIER, &attr, 0), 0);
  EXPECT_EQ(fi_query_collective(m.node.domain(), no_such_value<fi_collective_op>(77), &attr, 0),
            -FI_EOPNOTSUPP);
}

TEST_F(Alone, a_root_is_a_member) {
  const SetPtr set = m.set_of({self});
  const McPtr mc = m.join(set);
  const fi_addr_t group = fi_mc_addr(mc.get());
  uint64_t word = 5;
  Op op;
  for (const fi_addr_t root : {FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, self + 1}) {
    EXPECT_EQ(fi_broadcast(m.node.ep(), &word, 1, nullptr, group, root, FI_UINT64, 0, &op),
              -FI_EINVAL);
  }
  EXPECT_EQ(fi_broadcast(m.node.ep(), &word, 1, nullptr, group, self, FI_UINT64, 0, &op), 0);
  EXPECT_EQ(m.node.wait(&op).err, 0);
}

// Those of regions that have more than one flat range, which their owner looks at, too.
TEST(Described, buffers_of_a_collective_lie_in_a_region) {
  Options options = collective_options();
  options.mr_mode = FI_MR_LOCAL;
  options.threading = FI_THREAD_SAFE;
  Member m(options);
  const SetPtr set = m.set_of({m.node.insert(m.node.name())});
  const McPtr mc = m.join(set);
  uint64_t words[4] = {3, 0, 0, 0};
  const iovec pieces[2] = {{&words[0], 8}, {&words[2], 8}};
  fid_mr* raw = nullptr;
  DOOR(fi_mr_regv(m.node.domain(), pieces, 2, FI_SEND | FI_RECV, 0, 7, 0, &raw, nullptr));
  const Fid<fid_mr> mr(raw);
  void* const desc = fi_mr_desc(raw);
  Op op;
  const auto sum_into = [&](uint64_t& out, void* with) {
    return fi_allreduce(m.node.ep(), &words[0], 1, with, &out, with, fi_mc_addr(mc.get()),
                        FI_UINT64, FI_SUM, 0, &op);
  };
  EXPECT_EQ(sum_into(words[2], nullptr), -FI_EINVAL) << "no descriptor";
  EXPECT_EQ(sum_into(words[1], desc), -FI_EACCES) << "between the pieces";
  ASSERT_EQ(sum_into(words[2], desc), 0);
  EXPECT_EQ(m.node.wait(&op).err, 0);
  EXPECT_EQ(words[2], 3u);
}

// ---- several processes --------------------------------------------------------------------------

enum class Part : uint32_t { all_kinds, several_at_once, apart, mismatch, subgroups, lonely };

struct Cast {
  uint32_t rank = 0;
  uint32_t members = 0;
  Part part = Part::all_kinds;
};

struct Play {
  Member& m;
  const std::vector<fi_addr_t>& peers;
  uint32_t rank;
  uint32_t n;
  void* const none = nullptr;
  std::string wrong;

  void expect(bool holds, const char* what, int64_t detail = 0) {
    if (!holds && wrong.empty()) wrong = what + (" " + std::to_string(detail));
  }
  // Element i of what member r brings.
  static uint64_t brought(uint32_t r, size_t i) { return 1000 * (r + 1) + i; }
  std::vector<uint64_t> mine(size_t count) const {
    std::vector<uint64_t> v(count);
    for (size_t i = 0; i < count; ++i) v[i] = brought(rank, i);
    return v;
  }
  uint64_t sum(size_t i) const {
    uint64_t total = 0;
    for (uint32_t r = 0; r < n; ++r) total += brought(r, i);
    return total;
  }

  void reductions(fi_addr_t group, size_t count) {
    std::vector<uint64_t> in = mine(count), out(count);
    expect(m.run(fi_allreduce, in.data(), count, none, out.data(), none, group, FI_UINT64, FI_SUM,
                 uint64_t{0}) == 0,
           "allreduce");
    for (size_t i = 0; i < count; ++i) expect(out[i] == sum(i), "allreduce's element", int64_t(i));
    for (uint32_t root = 0; root < n; ++root) {
      std::vector<uint64_t> at_root(count);
      uint64_t* const result = rank == root ? at_root.data() : nullptr;
      expect(m.run(fi_reduce, in.data(), count, none, result, none, group, peers[root], FI_UINT64,
                   FI_MAX, uint64_t{0}) == 0,
             "reduce");
      for (size_t i = 0; result != nullptr && i < count; ++i)
        expect(result[i] == brought(n - 1, i), "reduce's element", int64_t(i));
    }
    in = mine(count * n);
    expect(m.run(fi_reduce_scatter, in.data(), count, none, out.data(), none, group, FI_UINT64,
                 FI_SUM, uint64_t{0}) == 0,
           "reduce_scatter");
    for (size_t i = 0; i < count; ++i)
      expect(out[i] == sum(rank * count + i), "reduce_scatter's element", int64_t(i));
  }

  void moves(fi_addr_t group, size_t count) {
    std::vector<uint64_t> one = mine(count), all(count * n);
    for (uint32_t root = 0; root < n; ++root) {
      std::vector<uint64_t> buf = one;
      expect(m.run(fi_broadcast, buf.data(), count, none, group, peers[root], FI_UINT64,
                   uint64_t{0}) == 0,
             "broadcast");
      for (size_t i = 0; i < count; ++i)
        expect(buf[i] == brought(root, i), "broadcast's element", int64_t(i));
      uint64_t* const gathered = rank == root ? all.data() : nullptr;
      expect(m.run(fi_gather, one.data(), count, none, gathered, none, group, peers[root],
                   FI_UINT64, uint64_t{0}) == 0,
             "gather");
      if (gathered != nullptr) expect_parts(all, count, "gather's element");
      std::vector<uint64_t> whole = mine(count * n), part(count);
      expect(m.run(fi_scatter, rank == root ? whole.data() : nullptr, count, none, part.data(),
                   none, group, peers[root], FI_UINT64, uint64_t{0}) == 0,
             "scatter");
      for (size_t i = 0; i < count; ++i)
        expect(part[i] == brought(root, rank * count + i), "scatter's element", int64_t(i));
    }
    std::fill(all.begin(), all.end(), 0);
    expect(m.run(fi_allgather, one.data(), count, none, all.data(), none, group, FI_UINT64,
                 uint64_t{0}) == 0,
           "allgather");
    expect_parts(all, count, "allgather's element");
    std::vector<uint64_t> to_each = mine(count * n);
    expect(m.run(fi_alltoall, to_each.data(), count, none, all.data(), none, group, FI_UINT64,
                 uint64_t{0}) == 0,
           "alltoall");
    expect_crossed(all, count);
    all = to_each;
    expect(m.run(fi_alltoall, all.data(), count, none, all.data(), none, group, FI_UINT64,
                 uint64_t{0}) == 0,
           "alltoall in place");
    expect_crossed(all, count);
  }
  void expect_crossed(const std::vector<uint64_t>& all, size_t count) {
    for (uint32_t r = 0; r < n; ++r) {
      for (size_t i = 0; i < count; ++i)
        expect(all[r * count + i] == brought(r, rank * count + i), "alltoall's element",
               int64_t(i));
    }
  }
  void expect_parts(const std::vector<uint64_t>& all, size_t count, const char* what) {
    for (uint32_t r = 0; r < n; ++r) {
      for (size_t i = 0; i < count; ++i)
        expect(all[r * count + i] == brought(r, i), what, int64_t(r));
    }
  }

  void all_kinds(fi_addr_t group) {
    for (const size_t count :
         {size_t{1}, size_t{100}, size_t{40'000}}) {  // in cells, bytes, offers
      expect(m.run(fi_barrier, group) == 0, "barrier");
      reductions(group, count);
      moves(group, count);
    }
    float in = static_cast<float>(rank) + 0.5F, out = 0;
    expect(m.run(fi_allreduce, &in, size_t{1}, none, &out, none, group, FI_FLOAT, FI_MIN,
                 uint64_t{0}) == 0 &&
               out == 0.5F,
           "a minimum of floats");
  }

  // Without waiting in between; a completion of each, and each has its own result.
  void several_at_once(fi_addr_t group) {
    constexpr size_t kMany = 32;
    std::vector<uint64_t> in(kMany), out(kMany);
    std::vector<Op> ops(kMany);
    for (size_t i = 0; i < kMany; ++i) {
      in[i] = brought(rank, i);
      expect(post([&] {
               return fi_allreduce(m.node.ep(), &in[i], 1, nullptr, &out[i], nullptr, group,
                                   FI_UINT64, FI_SUM, 0, &ops[i]);
             }) == 0,
             "posting");
    }
    for (size_t i = kMany; i-- > 0;) {
      const Completion c = m.node.wait(&ops[i]);
      expect(c.err == 0 && (c.flags & FI_COLLECTIVE) != 0, "a completion", c.err);
      expect(out[i] == sum(i), "a result", int64_t(i));
    }
  }

  // The application's receives from anybody see nothing of it, nor do its counters of messages.
  void apart(fi_addr_t group) {
    char plain = 0, tagged = 0;
    Op on_plain, on_tagged;
    DOOR(fi_recv(m.node.ep(), &plain, 1, nullptr, FI_ADDR_UNSPEC, &on_plain));
    DOOR(fi_trecv(m.node.ep(), &tagged, 1, nullptr, FI_ADDR_UNSPEC, 0, ~uint64_t{0}, &on_tagged));
    reductions(group, 100);
    moves(group, 100);
    expect(m.node.quiet(), "a receive has met a message of the group");
    expect(fi_cntr_read(m.node.rx_cntr()) == 0, "the counter of receives has moved");
    expect(m.run(fi_barrier, group) == 0, "barrier");
    const uint32_t next = (rank + 1) % n;
    DOOR(m.node.post(fi_inject, "p", size_t{1}, peers[next]));
    DOOR(m.node.post(fi_tinject, "t", size_t{1}, peers[next], uint64_t{5}));
    expect(m.node.wait(&on_plain).err == 0 && plain == 'p', "the application's message");
    expect(m.node.wait(&on_tagged).err == 0 && tagged == 't', "the application's tagged message");
    expect(m.run(fi_barrier, group) == 0, "barrier");
  }

  void mismatch(fi_addr_t group) {
    uint64_t in[2] = {1, 2}, out[2] = {};
    const int64_t got = m.run(fi_allreduce, in, size_t{rank == 0 ? 2u : 1u}, none, out, none, group,
                              FI_UINT64, FI_SUM, uint64_t{0});
    expect(got == FI_EINVAL, "a mismatch of counts", got);
  }

  // Groups of the even ones, of the odd ones and of all, all at once; and the same members twice.
  void subgroups(const SetPtr& everybody, fi_addr_t all) {
    std::vector<fi_addr_t> half;
    for (uint32_t r = rank % 2; r < n; r += 2) half.push_back(peers[r]);
    const SetPtr set = m.set_of(half);
    const McPtr mc = m.join(set);
    const McPtr twin = m.join(everybody);
    uint64_t one = 1, in_half = 0, in_all = 0, in_twin = 0;
    Op ops[3];
    const auto begin = [&](fi_addr_t group, uint64_t& out, Op& op) {
      DOOR(post([&] {
        return fi_allreduce(m.node.ep(), &one, 1, nullptr, &out, nullptr, group, FI_UINT64, FI_SUM,
                            0, &op);
      }));
    };
    if (rank % 2 == 0) {
      begin(all, in_all, ops[0]);
      begin(fi_mc_addr(mc.get()), in_half, ops[1]);
      begin(fi_mc_addr(twin.get()), in_twin, ops[2]);
    } else {
      begin(fi_mc_addr(twin.get()), in_twin, ops[2]);
      begin(fi_mc_addr(mc.get()), in_half, ops[1]);
      begin(all, in_all, ops[0]);
    }
    for (Op& op : ops) expect(m.node.wait(&op).err == 0, "one of three");
    expect(in_all == n && in_twin == n, "all of them", int64_t(in_all));
    expect(in_half == half.size(), "half of them", int64_t(in_half));
    expect(m.run(fi_barrier, all) == 0, "the last barrier");
  }
};

DOOR_ROLE(member) {
  Cast cast;
  if (!control.get(&cast)) return 1;
  Member m;
  if (!control.put(Name(m.node.name()))) return 1;
  std::vector<fi_addr_t> peers;
  for (uint32_t r = 0; r < cast.members; ++r) {
    Name name;
    if (!control.get(&name)) return 1;
    peers.push_back(m.node.insert(name));
  }
  char said[200] = {};
  try {
    const SetPtr set = m.set_of(peers);
    const McPtr mc = m.join(set);
    const fi_addr_t group = fi_mc_addr(mc.get());
    Play play{m, peers, cast.rank, cast.members, nullptr, {}};
    switch (cast.part) {
      case Part::all_kinds: play.all_kinds(group); break;
      case Part::several_at_once: play.several_at_once(group); break;
      case Part::apart: play.apart(group); break;
      case Part::mismatch: play.mismatch(group); break;
      case Part::subgroups: play.subgroups(set, group); break;
      case Part::lonely:
        if (cast.rank != 0) _exit(0);  // without a word
        play.expect(m.run(fi_barrier, group) > 0, "a barrier with one that is gone");
        break;
    }
    std::snprintf(said, sizeof said, "%s", play.wrong.c_str());
    control.put(said);
    char bye = 0;
    control.get(&bye);  // nobody closes before all are done
  } catch (const DoorError& e) {
    std::snprintf(said, sizeof said, "%s", e.what());
    control.put(said);
  }
  return 0;
}

void perform(Part part, uint32_t members, uint32_t speakers = ~0u) {
  std::vector<std::unique_ptr<Child>> all;
  for (uint32_t r = 0; r < members; ++r) {
    all.push_back(std::make_unique<Child>("member"));
    ASSERT_TRUE(all.back()->control().put(Cast{r, members, part}));
  }
  std::vector<Name> names(members);
  for (uint32_t r = 0; r < members; ++r) ASSERT_TRUE(all[r]->control().get(&names[r], 60000));
  for (auto& child : all) {
    for (const Name& name : names) ASSERT_TRUE(child->control().put(name));
  }
  for (uint32_t r = 0; r < std::min(members, speakers); ++r) {
    char said[200] = {};
    ASSERT_TRUE(all[r]->control().get(&said, 60000)) << "member " << r;
    EXPECT_STREQ(said, "") << "member " << r;
  }
  for (auto& child : all) child->control().put('b');
  for (uint32_t r = 0; r < std::min(members, speakers); ++r) EXPECT_EQ(all[r]->join(), 0);
}

class Together : public testing::TestWithParam<uint32_t> {};

TEST_P(Together, every_collective_gives_every_member_its_result) {
  perform(Part::all_kinds, GetParam());
}
TEST_P(Together, several_are_under_way_at_once) {
  perform(Part::several_at_once, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Members, Together, testing::Values(2, 3, 5));

TEST(Groups, groups_within_groups_do_not_meet) {
  perform(Part::subgroups, 4);
}
TEST(Groups, nothing_of_it_is_seen_by_the_applications_receives_and_counters) {
  perform(Part::apart, 3);
}
TEST(Groups, members_that_differ_in_count_are_told) {
  perform(Part::mismatch, 2);
}
TEST(Groups, a_member_that_dies_ends_what_waits_for_it) {
  perform(Part::lonely, 2, 1);
}

}  // namespace
}  // namespace aperture::doors
