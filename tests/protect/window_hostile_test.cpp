// Memory windows under hostile hands: inputs 17 to 23, as far as this room goes.
#include "protect/window_fixture.hpp"

namespace aperture::protect {
namespace {

class HostileWindow : public WindowTest {};
class HostileAnyWindow : public WindowOfType {};
INSTANTIATE_TEST_SUITE_P(types, HostileAnyWindow, testing::ValuesIn(kTypes));
class HostileType2Window : public WindowOfType {};
INSTANTIATE_TEST_SUITE_P(types, HostileType2Window, testing::ValuesIn(kType2));

TEST_F(HostileWindow, hostile_17_a_bind_outside_the_region_is_refused) {
  struct Case {
    uint64_t addr, length;
    A answer;
  };
  const Case cases[] = {
      {kBase, kLength, A::done},
      {kBase + kLength - 1, 1, A::done},
      {kBase - 1, 1, A::out_of_range},
      {kBase - 1, kLength, A::out_of_range},
      {kBase, kLength + 1, A::out_of_range},
      {kBase + 1, kLength, A::out_of_range},
      {kBase + kLength, 1, A::out_of_range},
      {kBase + kLength + 1, 1, A::out_of_range},
      {kBase + 1, ~uint64_t{0}, A::out_of_range},
      {kBase, uint64_t{1} << 32, A::out_of_range},
      {~uint64_t{0}, 2, A::out_of_range},
      {0, 8, A::out_of_range},
      {0, ~uint64_t{0}, A::out_of_range},
  };
  for (const WindowType type : kTypes) {
    for (const Case& c : cases) {
      use(type);
      WindowBind bind = good();
      bind.addr = c.addr;
      bind.length = c.length;
      if (c.answer == A::done) {
        EXPECT_EQ(window->bind(bind), A::done);
        EXPECT_EQ(reach(bind.key, kQp, c.addr, c.length), Denial::none);
      } else {
        expect_refused(bind, c.answer);
      }
    }
  }
}

TEST_P(HostileAnyWindow, hostile_17_bind_to_a_region_that_does_not_allow_it) {
  const BindableRegion plain = region(Rights::local_write | kWrite | kRead | kAtomic);
  WindowBind bind = good();
  bind.region = &plain;
  expect_refused(bind, A::not_bindable);
  bind.region = &mr;
  EXPECT_EQ(window->bind(bind), A::done);
}

TEST_P(HostileAnyWindow, hostile_17_writable_over_a_region_without_local_write_is_refused) {
  const BindableRegion read_only = region(Rights::bind_window);
  for (const Rights rights : {kWrite, kAtomic, kWrite | kRead, kAtomic | kRead}) {
    WindowBind bind = good();
    bind.region = &read_only;
    bind.rights = rights;
    expect_refused(bind, A::not_writable);
  }
  WindowBind bind = good();
  bind.region = &read_only;
  bind.rights = kRead;
  EXPECT_EQ(window->bind(bind), A::done);
  EXPECT_EQ(reach(bind.key, kQp, kBase + 1024, 8, kRead), Denial::none);
  EXPECT_EQ(reach(bind.key), Denial::missing_right);
}

TEST_P(HostileAnyWindow, hostile_17_bind_to_a_region_that_is_gone) {
  BindableRegion gone = region(kBindable);
  ASSERT_TRUE(table->revocation().begin(gone.entry));
  WindowBind bind = good();
  bind.region = &gone;
  expect_refused(bind, A::no_region);
  ASSERT_TRUE(table->revocation().poll(gone.entry));
  expect_refused(bind, A::no_region);
  bind.region = nullptr;
  expect_refused(bind, A::no_region);
}

TEST_P(HostileType2Window, hostile_18_type_2_bind_when_it_is_bound) {
  const uint32_t key = bind_now();
  expect_refused(good(), A::already_bound);
  WindowBind same = good();
  same.key = key;
  expect_refused(same, A::already_bound);
  EXPECT_EQ(reach(key), Denial::none) << "as it was";
}

TEST_P(HostileType2Window, hostile_18_a_type_2_bind_to_no_bytes_is_refused) {
  WindowBind bind = good();
  bind.length = 0;
  expect_refused(bind, A::no_length);
  EXPECT_EQ(reach(bind.key, kQp, kBase + 1024, 0), Denial::unknown_key);
  const uint32_t key = bind_now();
  bind = good();
  bind.length = 0;
  expect_refused(bind, A::no_length);
  EXPECT_EQ(reach(key), Denial::none) << "type 2 is not unbound so";
}

TEST_P(HostileAnyWindow, hostile_18_a_bind_over_domains_is_refused) {
  const BindableRegion theirs = region(kBindable, kOtherPd);
  WindowBind bind = good();
  bind.pd = kOtherPd;
  expect_refused(bind, A::other_domain);
  bind = good();
  bind.region = &theirs;
  expect_refused(bind, A::region_domain);
  bind.pd = kOtherPd;
  expect_refused(bind, A::other_domain);
  EXPECT_EQ(window->close(), A::done);
  use(GetParam(), kOtherPd);
  bind = good();
  bind.region = &theirs;
  EXPECT_EQ(window->bind(bind), A::done);
  EXPECT_EQ(reach(bind.key), Denial::wrong_domain);
  EXPECT_EQ(reach(bind.key, kQp, kBase + 1024, 8, kWrite, kOtherPd), Denial::none);
}

TEST_P(HostileType2Window, hostile_19_type_2_through_another_queue_pair_is_refused) {
  const uint32_t key = bind_now();
  EXPECT_EQ(reach(key, kOtherQp), Denial::wrong_endpoint);
  EXPECT_EQ(reach(key, 0), Denial::wrong_endpoint);
  EXPECT_EQ(reach(key, kQp, kBase + 1024, 8, kWrite, kOtherPd), Denial::wrong_domain);
  EXPECT_EQ(window->invalidate(key, kPd, kOtherQp), A::other_endpoint);
  EXPECT_EQ(window->invalidate(key, kOtherPd, kQp), A::other_domain);
  EXPECT_EQ(window->invalidate(key, kOtherPd, kOtherQp), A::other_domain);
  EXPECT_EQ(reach(key), Denial::none) << "nothing of that touched it";
  EXPECT_EQ(count.bound, 1u);
  EXPECT_EQ(window->invalidate(key, kPd, kQp), A::done);
}

TEST_P(HostileAnyWindow, hostile_20_use_after_invalidate_unbind_and_dealloc) {
  const uint32_t key = bind_now();
  const uint64_t generation = generation_of_key(key);
  AccessAsk ask = ask_with({.key = key, .addr = kBase + 1024, .through = kQp});
  LookupHint hint;
  EXPECT_EQ(denial(ask, &hint), Denial::none);
  if (GetParam() == WindowType::type_1) {
    WindowBind none = good();
    none.length = 0;
    EXPECT_EQ(window->bind(none), A::done);
  } else {
    EXPECT_EQ(window->invalidate(key, kPd, kQp), A::done);
  }
  EXPECT_EQ(denial(ask, &hint), Denial::closed);
  EXPECT_EQ(reach(key), Denial::closed);
  const uint32_t next = bind_now();
  EXPECT_NE(generation_of_key(next), generation);
  EXPECT_EQ(denial(ask, &hint), Denial::closed) << "bound anew over the same bytes";
  EXPECT_EQ(window->close(), A::done);
  EXPECT_EQ(reach(next), Denial::closed);
  EXPECT_NE(window->bind(good()), A::done);
}

// The middle of a long operation, for which the owner asks again.
TEST_F(HostileWindow, hostile_20_the_next_chunk_after_an_invalidate) {
  use(WindowType::type_2b);
  const uint32_t key = bind_now();
  const AccessAsk ask = ask_with({.key = key, .addr = kBase + 1024, .len = 2048, .through = kQp});
  const RegionRef ref = granted(ask);
  EXPECT_EQ(table->access().recheck(ask, ref).denial(), Denial::none);
  EXPECT_EQ(window->invalidate(key, kPd, kQp), A::done);
  EXPECT_EQ(table->access().recheck(ask, ref).denial(), Denial::closed);
  WindowBind same = good();
  same.key = key;
  EXPECT_EQ(window->bind(same), A::done) << "the consumer repeats his key";
  EXPECT_EQ(table->access().recheck(ask, ref).denial(), Denial::closed)
      << "another life all the same";
}

// What identifies a QP here is drawn once; its number on the wire may come back.
TEST_F(HostileWindow, hostile_21_a_queue_pair_that_is_gone_and_its_successor) {
  use(WindowType::type_2b);
  const EndpointId first = new_endpoint_id();
  WindowBind bind = good();
  bind.through = first;
  ASSERT_EQ(window->bind(bind), A::done);
  EXPECT_EQ(reach(bind.key, first), Denial::none);
  const EndpointId successor = new_endpoint_id();
  EXPECT_NE(successor, first);
  EXPECT_EQ(reach(bind.key, successor), Denial::wrong_endpoint);
  EXPECT_EQ(window->invalidate(bind.key, kPd, successor), A::other_endpoint);
  EXPECT_TRUE(window->is_bound()) << "2B outlives its QP";
  EXPECT_EQ(window->close(), A::done) << "until it is deallocated";
  EXPECT_EQ(count.bound, 0u);
}

TEST_P(HostileAnyWindow, hostile_22_none_of_255_old_keys_comes_back) {
  std::vector<uint32_t> keys;
  std::set<uint64_t> generations;
  for (int i = 0; i < 256; ++i) {
    if (GetParam() != WindowType::type_1 && i > 0) {
      ASSERT_EQ(window->invalidate(keys.back(), kPd, kQp), A::done);
    }
    const uint32_t key = bind_now();
    for (const uint32_t old : keys) {
      ASSERT_NE(old, key);
      ASSERT_NE(reach(old), Denial::none) << "bind " << i;
    }
    ASSERT_EQ(reach(key), Denial::none);
    EXPECT_TRUE(generations.insert(generation_of_key(key)).second);
    keys.push_back(key);
  }
  EXPECT_EQ(keys.size(), 256u);
  if (GetParam() != WindowType::type_1) {
    ASSERT_EQ(window->invalidate(keys.back(), kPd, kQp), A::done);
  }
  // 8 bits wrap here, which is inherent
  EXPECT_EQ(bind_now(), keys.front());
  EXPECT_TRUE(generations.insert(generation_of_key(keys.front())).second);
}

TEST_F(HostileWindow, hostile_22_announced_keys_pass_over_the_one_in_force) {
  use(WindowType::type_1);
  const uint32_t key = bind_now();
  std::set<uint32_t> announced;
  for (int i = 0; i < 600; ++i) announced.insert(window->next_key());
  EXPECT_EQ(announced.size(), 255u);
  EXPECT_EQ(announced.count(key), 0u);
  WindowBind same = good();
  same.key = key;
  expect_refused(same, A::key_in_force);
  EXPECT_EQ(reach(key), Denial::none);
}

TEST_P(HostileAnyWindow, hostile_23_a_region_knows_of_its_windows) {
  EXPECT_EQ(count.bound, 0u);
  bind_now();
  EXPECT_EQ(count.bound, 1u);
  EXPECT_EQ(window->close(), A::done);
  EXPECT_EQ(count.bound, 0u);
}

TEST_F(HostileWindow, hostile_23_only_a_bound_window_of_type_2_is_invalidated_by_key) {
  WindowSet set;
  use(WindowType::type_1);
  const uint32_t type_1_key = bind_now();
  set.add(*window);
  second = make_window(WindowType::type_2b);
  std::swap(window, second);
  set.add(*window);
  const auto invalidate = [&](uint32_t key) { return set.invalidate(key, kPd, kQp); };

  EXPECT_EQ(invalidate(type_1_key), A::never_by_key);
  EXPECT_EQ(reach(type_1_key), Denial::none);
  EXPECT_EQ(invalidate(static_cast<uint32_t>(mr.entry.key)), A::not_a_window);
  EXPECT_EQ(invalidate(0), A::not_a_window);
  EXPECT_EQ(invalidate(window->key()), A::not_bound);
  const uint32_t key = bind_now();
  EXPECT_EQ(invalidate(next_tag(key)), A::other_tag);
  EXPECT_EQ(set.invalidate(key, kPd, kOtherQp), A::other_endpoint) << "another connection's";
  EXPECT_EQ(set.invalidate(key, kOtherPd, kQp), A::other_domain);
  EXPECT_EQ(reach(key), Denial::none);
  EXPECT_EQ(invalidate(key), A::done);
  EXPECT_EQ(reach(key), Denial::closed);
  set.remove(*window);
  EXPECT_EQ(invalidate(key), A::not_a_window);
  EXPECT_EQ(set.find(type_1_key), second.get());
}

TEST_F(HostileWindow, hostile_23_refusals_have_their_syndromes) {
  EXPECT_EQ(denial_of(A::done), Denial::none);
  EXPECT_EQ(denial_of(A::other_endpoint), Denial::wrong_endpoint);
  EXPECT_EQ(denial_of(A::other_domain), Denial::wrong_domain);
  EXPECT_EQ(denial_of(A::not_bound), Denial::closed);
  EXPECT_EQ(denial_of(A::other_tag), Denial::closed);
  EXPECT_EQ(denial_of(A::not_a_window), Denial::no_window);
  EXPECT_EQ(denial_of(A::never_by_key), Denial::no_window);
}

}  // namespace
}  // namespace aperture::protect
