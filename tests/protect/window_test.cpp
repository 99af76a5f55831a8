// Memory windows rule by rule, each beside its forbidden neighbour: the tables of types 1, 2A and
// 2B. Hostile inputs are in window_hostile_test.cpp.

#include "protect/window_fixture.hpp"

namespace aperture::protect {
namespace {

using AnyWindow = WindowOfType;
INSTANTIATE_TEST_SUITE_P(types, AnyWindow, testing::ValuesIn(kTypes));
class Type2Window : public WindowOfType {};
INSTANTIATE_TEST_SUITE_P(types, Type2Window, testing::ValuesIn(kType2));

// ---- what a window is ---------------------------------------------------------------------------

TEST_F(WindowTest, every_answer_has_a_sentence_of_its_own) {
  std::set<std::string> texts;
  for (uint8_t i = 0; i < kWindowAnswers; ++i) texts.insert(sentence(static_cast<A>(i)));
  EXPECT_EQ(texts.size(), kWindowAnswers);
  EXPECT_EQ(texts.count(sentence(static_cast<A>(kWindowAnswers))), 0u);
}

TEST_P(AnyWindow, unbound_window_grants_nothing) {
  EXPECT_FALSE(window->is_bound());
  EXPECT_NE(window->key(), 0u);
  EXPECT_EQ(reach(window->key()), Denial::unknown_key);
}

TEST_F(WindowTest, keys_are_of_its_number_and_nobody_elses) {
  use(WindowType::type_1);
  second = make_window(WindowType::type_2b);
  EXPECT_NE(window->number(), second->number());
  EXPECT_EQ(number_of_key(window->key()), window->number());
  EXPECT_EQ(number_of_key(window->next_key()), window->number());
  EXPECT_EQ(numbers->out(), 2u);
}

TEST_F(WindowTest, no_window_without_a_number) {
  numbers = *KeyNumbers::create(4);
  std::vector<uint32_t> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(*numbers->take());
  EXPECT_EQ(Window::create(*table, *numbers, kPd, WindowType::type_1).error(), Errc::no_space);
  for (const uint32_t n : taken) numbers->give_back(n);
}

TEST_P(AnyWindow, grants_its_range_and_rights_and_no_more) {
  const uint32_t key = bind_now();
  EXPECT_TRUE(window->is_bound());
  EXPECT_EQ(reach(key), Denial::none);
  EXPECT_EQ(reach(key, kQp, kBase + 1023, 1), Denial::out_of_range);
  EXPECT_EQ(reach(key, kQp, kBase + 1024, 2049), Denial::out_of_range);
  EXPECT_EQ(reach(key, kQp, kBase + 1024, ~uint64_t{0}), Denial::out_of_range);
  EXPECT_EQ(reach(key, kQp, 0, 8), Denial::out_of_range);
  EXPECT_EQ(reach(key, kQp, kBase + 1024, 8, kRead), Denial::missing_right);
  EXPECT_EQ(reach(key, kQp, kBase + 1024, 8, kAtomic), Denial::missing_right);
  EXPECT_EQ(reach(key, kQp, kBase + 1024, 8, Rights::local_write), Denial::missing_right);
  EXPECT_EQ(reach(key ^ 0x100), Denial::unknown_key);
  EXPECT_EQ(reach(next_tag(key)), Denial::unknown_key);
  EXPECT_EQ(window->close(), A::done);
  EXPECT_EQ(reach(key), Denial::closed);
}

// The whole point: the MR itself lets nobody in, and its own key still does not.
TEST_P(AnyWindow, grants_what_the_region_does_not) {
  WindowBind bind = good();
  bind.rights = kWrite | kRead | kAtomic;
  ASSERT_EQ(window->bind(bind), A::done);
  for (const Rights need : {kWrite, kRead, kAtomic}) {
    EXPECT_EQ(reach(bind.key, kQp, kBase + 1024, 8, need), Denial::none);
    EXPECT_EQ(
        denial(ask_with({.key = mr.entry.key, .addr = kBase + 1024, .need = need, .through = kQp})),
        Denial::missing_right);
  }
}

TEST_F(WindowTest, rights_are_not_cut_down_to_those_of_the_region) {
  mr = region(kBindable | kRead);
  use(WindowType::type_2b);
  const uint32_t key = bind_now();
  EXPECT_EQ(reach(key), Denial::none);
  EXPECT_EQ(reach(key, kQp, kBase + 1024, 8, kRead), Denial::missing_right)
      << "nor widened by them";
}

TEST_F(WindowTest, several_windows_of_one_region_are_apart) {
  use(WindowType::type_2b);
  const uint32_t key = bind_now();
  second = make_window(WindowType::type_1);
  std::swap(window, second);
  WindowBind bind = good();
  bind.addr = kBase;
  bind.length = 8;
  ASSERT_EQ(window->bind(bind), A::done);
  EXPECT_EQ(count.bound, 2u);
  EXPECT_EQ(reach(bind.key, kOtherQp, kBase, 8), Denial::none);
  EXPECT_EQ(window->close(), A::done);
  EXPECT_EQ(reach(key), Denial::none);
  EXPECT_EQ(count.bound, 1u);
}

TEST_P(AnyWindow, addresses_are_the_regions_own) {
  constexpr uint64_t kIova = 0x5000'0000'0000;
  mr = region(kBindable, kPd, kIova);
  const uint32_t key = bind_now();
  EXPECT_EQ(place_of(ask_with({.key = key, .addr = kIova + 1024, .len = 2048, .through = kQp})),
            reinterpret_cast<std::byte*>(kBase + 1024));
  EXPECT_EQ(reach(key), Denial::out_of_range) << "by its virtual address";
  WindowBind outside = good();
  outside.addr = kBase + 1024;
  if (GetParam() != WindowType::type_1) {
    EXPECT_EQ(window->close(), A::done);
  } else {
    expect_refused(outside, A::out_of_range);
  }
}

// ---- calls and types ----------------------------------------------------------------------------

TEST_P(AnyWindow, type_1_has_its_own_call_and_type_2_is_a_work_request) {
  WindowBind bind = good();
  bind.by_work_request = !bind.by_work_request;
  expect_refused(bind, A::wrong_call);
  bind.by_work_request = !bind.by_work_request;
  EXPECT_EQ(window->bind(bind), A::done);
}

TEST_F(WindowTest, zero_based_is_for_type_2) {
  use(WindowType::type_1);
  WindowBind bind = good();
  bind.zero_based = true;
  expect_refused(bind, A::zero_based);
  for (const WindowType type : kType2) {
    use(type);
    bind = good();
    bind.zero_based = true;
    ASSERT_EQ(window->bind(bind), A::done);
    EXPECT_EQ(reach(bind.key, kQp, 0, 2048), Denial::none);
    EXPECT_EQ(reach(bind.key, kQp, 1, 2048), Denial::out_of_range);
    EXPECT_EQ(reach(bind.key), Denial::out_of_range) << "12: by its virtual address";
    EXPECT_EQ(place_of(ask_with({.key = bind.key, .addr = 5, .through = kQp})),
              reinterpret_cast<std::byte*>(kBase + 1024 + 5));
  }
}

TEST_P(AnyWindow, local_rights_cannot_be_given) {
  for (const Rights more :
       {Rights::local_read, Rights::local_write, Rights::bind_window, Rights::send, Rights::recv}) {
    WindowBind bind = good();
    bind.rights |= more;
    expect_refused(bind, A::unknown_right);
  }
  WindowBind none = good();
  none.rights = Rights::none;
  EXPECT_EQ(window->bind(none), A::done);
  EXPECT_EQ(reach(none.key), Denial::missing_right);
}

TEST_P(AnyWindow, flushes_are_given_and_those_that_persist_where_the_region_has_them) {
  WindowBind bind = good();
  bind.rights = Rights::flush_global;
  ASSERT_EQ(window->bind(bind), A::done);
  EXPECT_EQ(reach(bind.key, kQp, kBase + 1024, 8, Rights::flush_global), Denial::none);
  EXPECT_EQ(reach(bind.key, kQp, kBase + 1024, 8, Rights::remote_write), Denial::missing_right);
  EXPECT_EQ(reach(bind.key, kQp, kBase + 1024, 8, Rights::flush_persistent), Denial::missing_right);
  use(GetParam());
  bind = good();
  bind.rights = Rights::flush_persistent;
  expect_refused(bind, A::not_persistent);
  mr = region(kBindable | Rights::flush_persistent);
  bind = good();
  bind.rights = Rights::flush_persistent;
  EXPECT_EQ(window->bind(bind), A::done);
  EXPECT_EQ(reach(bind.key, kQp, kBase + 1024, 8, Rights::flush_persistent), Denial::none);
}

// ---- type 1 -------------------------------------------------------------------------------------

TEST_F(WindowTest, type_1_announces_its_key_and_the_bind_puts_it_in_force) {
  use(WindowType::type_1);
  const uint32_t before = window->key();
  const WindowBind bind = good();
  EXPECT_EQ(bind.key, next_tag(before));
  EXPECT_EQ(window->key(), bind.key);
  EXPECT_EQ(reach(bind.key), Denial::unknown_key) << "announced, not in force";
  EXPECT_EQ(window->bind(bind), A::done);
  EXPECT_EQ(reach(bind.key), Denial::none);
  EXPECT_EQ(reach(bind.key, kOtherQp), Denial::none) << "any QP of the PD";
}

TEST_F(WindowTest, type_1_is_bound_again_at_will) {
  use(WindowType::type_1);
  const uint32_t first = bind_now();
  WindowBind again = good();
  again.rights = kRead;
  again.addr = kBase;
  again.length = 8;
  ASSERT_EQ(window->bind(again), A::done);
  EXPECT_EQ(again.key, next_tag(first));
  EXPECT_EQ(reach(first), Denial::closed);
  EXPECT_EQ(reach(again.key, kQp, kBase, 8, kRead), Denial::none);
  EXPECT_EQ(reach(again.key), Denial::missing_right);
  EXPECT_EQ(count.bound, 1u);
}

TEST_F(WindowTest, type_1_is_unbound_by_no_length) {
  use(WindowType::type_1);
  const uint32_t key = bind_now();
  WindowBind none = good();
  none.length = 0;
  none.region = nullptr;
  EXPECT_EQ(window->bind(none), A::done);
  EXPECT_FALSE(window->is_bound());
  EXPECT_EQ(reach(key), Denial::closed);
  EXPECT_EQ(reach(none.key), Denial::unknown_key) << "13: no bytes are not all bytes";
  EXPECT_EQ(reach(none.key, kQp, kBase, 0), Denial::unknown_key);
  EXPECT_EQ(count.bound, 0u);
  none.key = window->next_key();
  EXPECT_EQ(window->bind(none), A::done) << "unbound already";
  const uint32_t next = bind_now();
  EXPECT_EQ(reach(next), Denial::none);
}

TEST_F(WindowTest, type_1_moves_to_another_region_and_lets_the_old_one_go) {
  WindowCount other_count;
  BindableRegion other = region(kBindable);
  other.windows = &other_count;
  use(WindowType::type_1);
  bind_now();
  WindowBind bind = good();
  bind.region = &other;
  EXPECT_EQ(window->bind(bind), A::done);
  EXPECT_EQ(count.bound, 0u);
  EXPECT_EQ(other_count.bound, 1u);
  EXPECT_EQ(window->close(), A::done);
  EXPECT_EQ(other_count.bound, 0u);
}

// With a peer in the middle of an access under the old key.
class PinnedWindow : public WindowTest {
 protected:
  void SetUp() override {
    WindowTest::SetUp();
    table->accessors().set_thread_probe(&probe);
    ASSERT_TRUE(table->accessors().attach(slots.get(), ::getpid()));
  }
  void pin(uint64_t generation) {
    slots->slots[5].riov_len.store(77);
    slots->slots[5].pin.store(generation);
  }
  // A bound window of type 1 with a peer in the middle of an access.
  uint32_t bind_and_pin() {
    use(WindowType::type_1);
    const uint32_t key = bind_now();
    pin(generation_of_key(key));
    return key;
  }
  void unpin() { slots->slots[5].pin.store(0); }
  static void wait_a_little() {
    const uint64_t until = now_ns() + 100'000;
    while (now_ns() < until) cpu_relax();
  }
  A poll_later() {
    wait_a_little();
    return window->poll();
  }
  std::unique_ptr<SlotArray> slots = std::make_unique<SlotArray>();
  StagedProbe probe;
};

TEST_F(PinnedWindow, type_1_is_in_force_again_only_when_the_last_access_is_over) {
  const uint32_t old_key = bind_and_pin();
  const WindowBind bind = good();
  EXPECT_EQ(window->bind(bind), A::waits);
  EXPECT_EQ(slots->slots[5].riov_len.load(), 0u) << "fenced";
  EXPECT_EQ(reach(old_key), Denial::revoking);
  EXPECT_EQ(reach(bind.key), Denial::not_enabled);
  EXPECT_EQ(poll_later(), A::waits);
  EXPECT_EQ(count.bound, 2u) << "the region is in use by both";
  expect_refused(good(), A::in_progress);
  unpin();
  EXPECT_EQ(poll_later(), A::done);
  EXPECT_EQ(reach(old_key), Denial::closed);
  EXPECT_EQ(reach(bind.key), Denial::none);
  EXPECT_EQ(count.bound, 1u);
  EXPECT_EQ(window->poll(), A::done) << "and stays done";
  EXPECT_EQ(reach(bind.key), Denial::none);
}

TEST_F(PinnedWindow, a_bind_that_nobody_waits_for_any_more_does_not_hold_up_the_next) {
  const uint32_t first = bind_and_pin();
  const WindowBind next = good();
  EXPECT_EQ(window->bind(next), A::waits);
  unpin();
  wait_a_little();
  const WindowBind third = good();
  EXPECT_EQ(window->bind(third), A::done);
  EXPECT_EQ(reach(first), Denial::closed);
  EXPECT_EQ(reach(next.key), Denial::closed);
  EXPECT_EQ(reach(third.key), Denial::none);
}

TEST_F(PinnedWindow, unbinding_waits_and_a_stopped_peer_does_not_hold_it_up) {
  const uint32_t key = bind_and_pin();
  WindowBind none = good();
  none.length = 0;
  EXPECT_EQ(window->bind(none), A::waits);
  EXPECT_EQ(count.bound, 1u);
  probe.state = ThreadState::stopped;
  EXPECT_EQ(poll_later(), A::done);
  EXPECT_EQ(count.bound, 0u);
  EXPECT_EQ(reach(key), Denial::closed);
}

TEST_F(PinnedWindow, a_slow_peer_is_not_looked_at_in_every_poll) {
  bind_and_pin();
  EXPECT_EQ(window->close(), A::waits);
  EXPECT_EQ(window->poll(), A::waits);
  const int looks = probe.looks;
  const uint64_t from = now_ns();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(window->poll(), A::waits);
  const uint64_t took_us = (now_ns() - from) / 1000;
  EXPECT_LE(static_cast<uint64_t>(probe.looks - looks), took_us / 20 + 2);
  unpin();
  EXPECT_EQ(poll_later(), A::done);
}

TEST_F(PinnedWindow, closing_in_the_middle_of_a_bind_ends_both) {
  const uint32_t old_key = bind_and_pin();
  const WindowBind bind = good();
  EXPECT_EQ(window->bind(bind), A::waits);
  EXPECT_EQ(window->close(), A::waits);
  unpin();
  EXPECT_EQ(poll_later(), A::done);
  EXPECT_EQ(reach(bind.key), Denial::closed);
  EXPECT_EQ(reach(old_key), Denial::closed);
  EXPECT_EQ(count.bound, 0u);
  expect_refused(good(), A::in_progress);
}

// Peers leave a window of type 2 to the owner: none is ever inside directly.
TEST_F(PinnedWindow, type_2_never_waits) {
  for (const WindowType type : kType2) {
    use(type);
    const uint32_t key = bind_now();
    pin(generation_of_key(key));
    EXPECT_EQ(window->invalidate(key, kPd, kQp), A::done);
    EXPECT_EQ(reach(key), Denial::closed);
    bind_now();
    EXPECT_EQ(window->close(), A::done);
    EXPECT_EQ(probe.looks, 0);
  }
  unpin();
}

TEST_F(PinnedWindow, peers_reach_type_1_themselves_and_leave_type_2_to_the_owner) {
  const std::unique_ptr<PeerKeyView> peer = peer_view();
  ASSERT_TRUE(peer);
  use(WindowType::type_1);
  EXPECT_FALSE(peer->asks_owner(kPd, bind_now()));
  EXPECT_EQ(window->close(), A::done);
  for (const WindowType type : kType2) {
    use(type);
    EXPECT_TRUE(peer->asks_owner(kPd, bind_now()));
  }
}

// ---- type 2 -------------------------------------------------------------------------------------

TEST_P(Type2Window, type_2_keys_are_the_consumers_but_for_the_number) {
  WindowBind bind = good();
  bind.key = verbs_key(window->number() ^ 1, 9);
  expect_refused(bind, A::other_number);
  bind.key = verbs_key(window->number() ^ 1u << 23, 9);
  expect_refused(bind, A::other_number);
  for (const unsigned tag : {0u, 9u, 255u}) {
    bind.key = verbs_key(window->number(), static_cast<uint8_t>(tag));
    ASSERT_EQ(window->bind(bind), A::done);
    EXPECT_EQ(reach(bind.key), Denial::none);
    EXPECT_EQ(window->invalidate(bind.key, kPd, kQp), A::done);
  }
}

TEST_P(Type2Window, type_2_is_invalidated_and_bound_again) {
  const uint32_t first = bind_now();
  EXPECT_EQ(window->invalidate(first, kPd, kQp), A::done);
  EXPECT_FALSE(window->is_bound());
  EXPECT_EQ(count.bound, 0u);
  EXPECT_EQ(qp_count.bound, 0u);
  EXPECT_EQ(window->invalidate(first, kPd, kQp), A::not_bound);
  const uint32_t next = bind_now();
  EXPECT_EQ(reach(next), Denial::none);
  EXPECT_EQ(reach(first), Denial::closed);
}

TEST_F(WindowTest, type_2a_alone_holds_its_queue_pair) {
  use(WindowType::type_2a);
  bind_now();
  EXPECT_EQ(qp_count.bound, 1u);
  EXPECT_EQ(window->close(), A::done);
  EXPECT_EQ(qp_count.bound, 0u);
  for (const WindowType type : {WindowType::type_1, WindowType::type_2b}) {
    use(type);
    bind_now();
    EXPECT_EQ(qp_count.bound, 0u);
  }
}

// ---- when there is no room ----------------------------------------------------------------------

TEST_F(WindowTest, bind_without_room_leaves_the_old_binding) {
  make(3);
  mr = region(kBindable);
  use(WindowType::type_1);
  const uint32_t key = bind_now();
  add();
  expect_refused(good(), A::no_room);
  EXPECT_EQ(reach(key), Denial::none);
  second = make_window(WindowType::type_2b);
  std::swap(window, second);
  expect_refused(good(), A::no_room);
  std::swap(window, second);
  EXPECT_EQ(window->close(), A::done);
  std::swap(window, second);
  EXPECT_EQ(reach(bind_now()), Denial::none);
}

}  // namespace
}  // namespace aperture::protect
