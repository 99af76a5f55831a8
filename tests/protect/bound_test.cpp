// Regions that one endpoint alone reaches, and regions whose peers count from elsewhere than their
// first byte: neither needs a side record, and peers leave both to the owner.
#include <array>

#include "protect/descriptor.hpp"
#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

constexpr EndpointId kOne = 11;
constexpr EndpointId kOther = 12;
constexpr uint64_t kOrigin = 0x7000'0000'0123;

class Bound : public TableTest {
 protected:
  static RegionSpec bound_spec(EndpointId to = kOne) {
    RegionSpec spec = spec_with({.bound_to = to});
    return spec;
  }
  RegionSpec origin_spec(uint64_t origin = kOrigin) {
    RegionSpec spec = spec_with({.base = reinterpret_cast<uint64_t>(memory.data()),
                                 .length = memory.size(),
                                 .origin = origin});
    return spec;
  }
  Denial through(RegionHandle r, EndpointId id) const {
    return denial(ask_with({.key = r.key, .through = id}));
  }
  std::unique_ptr<PeerKeyView> view() {
    auto made = peer_view();
    made->set_copy_calls(&touched, &touched);
    return made;
  }
  static ssize_t touched(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                         unsigned long) {
    ADD_FAILURE() << "a peer touched it";
    return -1;
  }
  void expect_left_to_the_owner(RegionHandle r) {
    const auto peer = view();
    EXPECT_TRUE(peer->asks_owner(kPd, r.key));
    EXPECT_EQ(peer->would_refuse(kPd, r.key, 0, 8, Rights::remote_write), Denial::none);
    const auto slot = std::make_unique<AccessorSlot>();  // aligned, as the stack need not be
    uint64_t word = 0;
    const iovec local{&word, sizeof word};
    EXPECT_EQ(
        peer->write(::getpid(), *slot, DirectAsk{kPd, r.key, kBase, &local, 1}, nullptr).outcome,
        DirectResult::Outcome::through_ring);
    EXPECT_EQ(slot->pin.load(), 0u);
  }

  std::array<std::byte, 256> memory{};
};

TEST_F(Bound, one_endpoint_reaches_it_and_no_other) {
  const RegionHandle r = add(bound_spec());
  EXPECT_EQ(table->side(r), nullptr);
  EXPECT_EQ(through(r, kOne), Denial::none);
  EXPECT_EQ(through(r, kOther), Denial::wrong_endpoint);
  EXPECT_EQ(through(r, 0), Denial::wrong_endpoint);
  const RegionHandle plain = add();
  EXPECT_EQ(through(plain, kOther), Denial::none);
  EXPECT_EQ(through(plain, 0), Denial::none);
}

// What is bound to a queue pair is reached by what comes through that one, whatever its endpoint.
TEST_F(Bound, one_queue_pair_reaches_it_and_no_other_of_the_endpoint) {
  const RegionHandle r = add(bound_spec());
  AccessAsk ask = ask_with({.key = r.key, .through = kOther});
  EXPECT_EQ(denial(ask), Denial::wrong_endpoint);
  ask.peer = kOne;
  EXPECT_EQ(denial(ask), Denial::none);
  ask.peer = kOther;
  EXPECT_EQ(denial(ask), Denial::wrong_endpoint);
}

// A peer's invalidation: only of what is bound to where it comes from, and nothing else changes.
TEST_F(Bound, a_peer_ends_what_is_bound_to_its_endpoint_or_queue_pair) {
  for (const bool by_endpoint : {true, false}) {
    const RegionHandle r = add(bound_spec());
    AccessAsk ask = ask_of(r.key, ~uint64_t{0}, 0, Rights::none);
    (by_endpoint ? ask.through : ask.peer) = kOne;
    EXPECT_EQ(table->revocation().invalidate(ask), Denial::none);
    EXPECT_TRUE(table->entries().is_over(r));
    EXPECT_EQ(through(r, kOne), Denial::closed);
    EXPECT_EQ(table->revocation().invalidate(ask), Denial::closed) << "it was there once";
  }
}

// Its owner alone validates it, and yet it belongs to nobody in particular.
TEST_F(Bound, what_is_bound_to_none_is_reached_from_every_queue_pair) {
  RegionSpec spec = bound_spec();
  spec.bound_to = 0;
  spec.origin = 16 * kBase;
  const RegionHandle r = add(spec);
  EXPECT_EQ(denial(ask_with({.key = r.key, .addr = 16 * kBase, .peer = kOther, .through = kOne})),
            Denial::none);
}

TEST_F(Bound, a_peer_ends_nothing_else) {
  const RegionHandle bound = add(bound_spec());
  const RegionHandle plain = add();
  AccessAsk ask = ask_with({.key = bound.key, .need = Rights::none, .through = kOther});
  EXPECT_EQ(table->revocation().invalidate(ask), Denial::wrong_endpoint);
  ask.peer = kOther;
  EXPECT_EQ(table->revocation().invalidate(ask), Denial::wrong_endpoint);
  ask.through = kOne;
  ask.key = Wild<uint64_t>(plain.key);
  EXPECT_EQ(table->revocation().invalidate(ask), Denial::no_window);
  ask.key = Wild<uint64_t>(bound.key ^ plain.key ^ 1);
  EXPECT_EQ(table->revocation().invalidate(ask), Denial::unknown_key);
  ask.key = Wild<uint64_t>(bound.key);
  ask.pd += 1;
  EXPECT_EQ(table->revocation().invalidate(ask), Denial::wrong_domain);
  EXPECT_EQ(through(bound, kOne), Denial::none);
  EXPECT_EQ(through(plain, kOther), Denial::none);
  EXPECT_FALSE(table->entries().is_over(bound));
}

TEST_F(Bound, every_chunk_is_asked_for_through_that_endpoint) {
  const RegionHandle r = add(bound_spec());
  AccessAsk ask = ask_with({.key = r.key, .through = kOne});
  LookupHint hint;
  const RegionRef ref = granted(ask, &hint);
  EXPECT_EQ(denial(ask, &hint), Denial::none);
  ask.through = kOther;
  EXPECT_EQ(denial(ask, &hint), Denial::wrong_endpoint) << "a hint is no leave";
  EXPECT_EQ(table->access().recheck(ask, ref).denial(), Denial::wrong_endpoint);
  ask.through = kOne;
  EXPECT_EQ(table->access().recheck(ask, ref).denial(), Denial::none);
  close(r);
  EXPECT_EQ(table->access().recheck(ask, ref).denial(), Denial::closed);
  EXPECT_EQ(denial(ask), Denial::closed);
}

TEST_F(Bound, is_revoked_at_once_in_its_own_life) {
  RegionSpec spec = bound_spec();
  spec.requested_key = 5;
  const RegionHandle old = add(spec);
  EXPECT_TRUE(table->revocation().revoke_bound(old));
  EXPECT_EQ(through(old, kOne), Denial::closed);
  EXPECT_EQ(table->entries().regions(), 0u);
  EXPECT_EQ(table->revocation().revoke_bound(old).error(), Errc::no_entry);
  EXPECT_EQ(table->revocation().revoke_bound({}).error(), Errc::no_entry);
  RegionHandle beyond = old;
  beyond.index = 0xffffffff;
  EXPECT_EQ(table->revocation().revoke_bound(beyond).error(), Errc::no_entry);
  const RegionHandle next = add(spec);
  EXPECT_EQ(next.index, old.index);
  EXPECT_EQ(table->revocation().revoke_bound(old).error(), Errc::no_entry);
  EXPECT_EQ(through(next, kOne), Denial::none);
  ASSERT_TRUE(table->revocation().begin(next));
  EXPECT_EQ(through(next, kOne), Denial::revoking);
  EXPECT_TRUE(table->revocation().revoke_bound(next)) << "what was begun is ended";
  EXPECT_EQ(through(next, kOne), Denial::closed);
}

TEST_F(Bound, right_and_range_are_validated_as_ever) {
  const RegionHandle r = add(bound_spec());
  AccessAsk ask = ask_with({.key = r.key, .len = kLength, .through = kOne});
  EXPECT_EQ(denial(ask), Denial::none);
  ask.len = Wild<uint64_t>(kLength + 1);
  EXPECT_EQ(denial(ask), Denial::out_of_range);
  ask.len = Wild<uint64_t>(8);
  ask.addr = Wild<uint64_t>(kBase - 1);
  EXPECT_EQ(denial(ask), Denial::out_of_range);
  ask.addr = Wild<uint64_t>(kBase);
  ask.need = Rights::remote_atomic;
  EXPECT_EQ(denial(ask), Denial::missing_right);
  ask.need = Rights::remote_write;
  ask.pd = kOtherPd;
  EXPECT_EQ(denial(ask), Denial::wrong_domain);
}

TEST_F(Bound, the_next_life_of_its_entry_is_anybodys) {
  make(1);
  RegionSpec spec = bound_spec();
  spec.requested_key = 5;
  close(add(spec));
  spec.bound_to = 0;
  const RegionHandle next = add(spec);
  EXPECT_EQ(through(next, kOther), Denial::none);
  EXPECT_FALSE(view()->asks_owner(kPd, next.key));
  ASSERT_TRUE(table->add_side(next));
  EXPECT_EQ(through(next, kOther), Denial::none);
}

TEST_F(Bound, peers_leave_it_to_the_owner) {
  expect_left_to_the_owner(add(bound_spec()));
}

TEST_F(Bound, watchers_and_commits_find_no_side_record) {
  const RegionHandle r = add(bound_spec());
  table->access().note_write({r.index, r.generation});
  EXPECT_EQ(table->access().commit(ask_with({.key = r.key, .through = kOne})),
            Denial::not_persistent);
}

TEST_F(Bound, its_side_record_keeps_the_endpoint) {
  const RegionHandle r = add(bound_spec());
  ASSERT_TRUE(table->add_side(r));
  EXPECT_EQ(through(r, kOne), Denial::none);
  EXPECT_EQ(through(r, kOther), Denial::wrong_endpoint);
}

TEST_F(Bound, the_sentence_names_both_endpoints) {
  const RegionHandle r = add(bound_spec());
  AccessAsk ask = ask_with({.key = r.key, .through = kOther});
  const std::string text = explain(table->access(), ask, denial(ask));
  EXPECT_NE(text.find("bound to endpoint 11 while endpoint 12"), std::string::npos) << text;
  ask.through = kOne;
  const std::string fine = explain(table->access(), ask, Denial::missing_right);
  EXPECT_EQ(fine.find("bound to endpoint"), std::string::npos) << fine;
}

TEST_F(Bound, its_descriptor_is_for_its_range_and_endpoint) {
  RegionSpec spec = bound_spec();
  spec.rights = Rights::send;
  const RegionHandle r = add(spec);
  LocalAsk ask{kPd, descriptor_of(r), kBase, kLength, Rights::send, kOne};
  const auto validate = [&] {
    const LocalAnswer answer = check_local(table->own_file().layout(), ask);
    if (answer.denial != Denial::none || answer.beside.generation == 0) return answer.denial;
    return check_beside(*table, answer.beside, ask);
  };
  EXPECT_EQ(validate(), Denial::none);
  ask.through = kOther;
  EXPECT_EQ(validate(), Denial::wrong_endpoint);
  ask.through = 0;
  EXPECT_EQ(validate(), Denial::none) << "a shared receive";
  ask.len = kLength + 1;
  EXPECT_EQ(validate(), Denial::out_of_range);
  const RegionHandle beside{r.index, r.generation, r.key, r.birth};
  ask.len = kLength;
  close(r);
  EXPECT_EQ(check_beside(*table, beside, ask), Denial::closed);
}

TEST_F(Bound, origin_is_where_peers_count_from) {
  const RegionHandle r = add(origin_spec());
  EXPECT_EQ(table->side(r), nullptr);
  const auto at = [&](uint64_t addr, uint64_t len) { return denial(ask_of(r.key, addr, len)); };
  EXPECT_EQ(at(kOrigin, memory.size()), Denial::none);
  EXPECT_EQ(at(kOrigin - 1, 1), Denial::out_of_range);
  EXPECT_EQ(at(kOrigin, memory.size() + 1), Denial::out_of_range);
  EXPECT_EQ(at(kOrigin + memory.size(), 0), Denial::none);
  EXPECT_EQ(at(kOrigin + memory.size() + 1, 0), Denial::out_of_range);
  EXPECT_EQ(at(kOrigin + 1, ~uint64_t{0}), Denial::out_of_range);
  EXPECT_EQ(at(reinterpret_cast<uint64_t>(memory.data()), 8), Denial::out_of_range);
  EXPECT_EQ(at(0, 8), Denial::out_of_range);
  RegionRef ref;
  {
    const Checked granted = table->access().check(ask_of(r.key, kOrigin + 100, 8));
    ASSERT_TRUE(granted);
    EXPECT_EQ(granted.grant().data(), memory.data() + 100);
    EXPECT_EQ(granted.grant().size(), 8u);
    ref = granted.grant().region();
  }
  const Checked again = table->access().recheck(ask_of(r.key, kOrigin + 248, 8), ref);
  ASSERT_TRUE(again);
  EXPECT_EQ(again.grant().data(), memory.data() + 248);
  EXPECT_EQ(table->access().recheck(ask_of(r.key, kOrigin + 249, 8), ref).denial(),
            Denial::out_of_range);
}

TEST_F(Bound, origin_may_lie_anywhere_that_does_not_wrap) {
  const uint64_t last = ~uint64_t{0} - (memory.size() - 1);
  const RegionHandle top = add(origin_spec(last));
  EXPECT_EQ(denial(ask_of(top.key, last, memory.size())), Denial::none);
  EXPECT_EQ(denial(ask_of(top.key, last, memory.size() + 1)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(top.key, 0, 1)), Denial::out_of_range);
  EXPECT_EQ(table->add(origin_spec(last + 1)).error(), Errc::invalid);
  RegionSpec both = origin_spec();
  both.zero_based = true;
  EXPECT_EQ(table->add(both).error(), Errc::invalid);
  RegionSpec empty = origin_spec(~uint64_t{0});
  empty.length = 0;
  const RegionHandle nothing = add(empty);
  EXPECT_EQ(denial(ask_of(nothing.key, ~uint64_t{0}, 0)), Denial::none);
  EXPECT_EQ(denial(ask_of(nothing.key, ~uint64_t{0}, 1)), Denial::out_of_range);
}

TEST_F(Bound, peers_leave_an_origin_to_the_owner_but_not_the_usual_ones) {
  expect_left_to_the_owner(add(origin_spec()));
  const RegionHandle usual = add(origin_spec(reinterpret_cast<uint64_t>(memory.data())));
  EXPECT_FALSE(view()->asks_owner(kPd, usual.key));
  EXPECT_EQ(denial(ask_of(usual.key, reinterpret_cast<uint64_t>(memory.data()), 8)), Denial::none);
  const RegionHandle offsets = add(origin_spec(0));
  EXPECT_FALSE(view()->asks_owner(kPd, offsets.key));
  EXPECT_EQ(denial(ask_of(offsets.key, 0, memory.size())), Denial::none);
  EXPECT_EQ(denial(ask_of(offsets.key, 1, memory.size())), Denial::out_of_range);
}

TEST_F(Bound, origin_and_endpoint_go_together) {
  RegionSpec spec = origin_spec();
  spec.bound_to = kOne;
  const RegionHandle r = add(spec);
  AccessAsk ask = ask_of(r.key, kOrigin, 8);
  EXPECT_EQ(denial(ask), Denial::wrong_endpoint);
  ask.through = kOne;
  EXPECT_EQ(denial(ask), Denial::none);
  ask.addr = Wild<uint64_t>(spec.base);
  EXPECT_EQ(denial(ask), Denial::out_of_range);
}

TEST_F(Bound, origin_of_several_buffers_is_that_of_the_first) {
  auto side = side_over(memory.data() + 128, 64);
  side->segments.push_back({memory.data(), 64, std::nullopt});
  RegionSpec spec = origin_spec();
  spec.length = 128;
  const RegionHandle r = add(spec, std::move(side));
  EXPECT_EQ(place_of(ask_of(r.key, kOrigin + 64, 64)), memory.data());
}

TEST_F(Bound, commit_reaches_what_lies_behind_an_origin) {
  const RegionHandle r = add(origin_spec());
  Result<SideRecord*> side = table->add_side(r);
  ASSERT_TRUE(side);
  (*side)->persistent = true;
  EXPECT_EQ(table->access().commit(ask_of(r.key, kOrigin, memory.size())), Denial::none);
  EXPECT_EQ(table->access().commit(ask_of(r.key, kOrigin + 1, memory.size())),
            Denial::out_of_range);
}

TEST_F(Bound, the_sentence_counts_as_peers_do) {
  const RegionHandle r = add(origin_spec(0x10000));
  const auto say = [&](const AccessAsk& ask) { return explain(table->access(), ask, denial(ask)); };
  const std::string before = say(ask_of(r.key, 0xfff0, 8));
  EXPECT_NE(before.find("the key names 0x10000..0x100ff (256 bytes)"), std::string::npos) << before;
  EXPECT_NE(before.find("begins 16 byte(s) before it"), std::string::npos) << before;
  const std::string past = say(ask_of(r.key, 0x100fc, 8));
  EXPECT_NE(past.find("ends 4 byte(s) past its end"), std::string::npos) << past;
}

}  // namespace
}  // namespace aperture::protect
