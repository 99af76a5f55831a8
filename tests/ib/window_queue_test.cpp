// Memory windows through the send queue: binds and invalidations in its order, refusals, what
// waits for a peer. (IBTA vol. 1, 10.6.6 and 10.6.7; ibv_bind_mw(3), ibv_post_send(3).)
#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

using protect::Window;
using protect::WindowAnswer;
using protect::WindowType;

constexpr Rights kRemote = Rights::remote_read | Rights::remote_write | Rights::remote_atomic;

// Two connected queue pairs, of which b has a window over its memory.
class WindowPair : public Pair {
 public:
  explicit WindowPair(LinkKind kind, WindowType type = WindowType::type_2b, const Options& o = {})
      : Pair(kind, o), numbers_(std::move(protect::KeyNumbers::create(16)).value()) {
    constexpr Rights kBindable = kEverything | Rights::bind_window;
    region = {.entry = b->add(b->memory.data(), kMemory, kBindable),
              .pd = b->domain,
              .base = b->address(),
              .length = kMemory,
              .origin = b->address(),
              .rights = kBindable,
              .windows = &of_region_};
    EXPECT_TRUE(b->windows.enter_region(region_key(), region));
    window = make(type);
    connect();
  }
  ~WindowPair() {
    b->qp->leave();
    if (window != nullptr) destroy();
  }

  std::unique_ptr<Window> make(WindowType type) {
    auto made = std::move(Window::create(*lanes.keys, *numbers_, b->domain, type)).value();
    b->windows.windows.add(*made);
    return made;
  }
  void destroy() {
    b->windows.windows.remove(*window);
    const uint64_t end = now_ns() + 2'000'000'000;
    while (window->close() == WindowAnswer::waits && now_ns() < end) {
    }
    EXPECT_FALSE(window->is_bound());
    window.reset();
  }
  uint32_t region_key() const { return static_cast<uint32_t>(region.entry.key); }

  BindWr bind_of(uint32_t rkey) const {
    return {.window_key = window->key(),
            .region_key = region_key(),
            .addr = b->address(1000),
            .len = 4000,
            .rights = kRemote,
            .by_work_request = window->type() != WindowType::type_1,
            .rkey = rkey};
  }
  Status post_bind(uint64_t id, const BindWr& bind) const {
    SendWr wr = Side::work(SendOp::bind_mw, id);
    wr.bind = &bind;
    return b->qp->post_send(wr);
  }
  Status post_inv(uint64_t id, uint32_t rkey) const {
    SendWr wr = Side::work(SendOp::local_inv, id);
    wr.imm = rkey;
    return b->qp->post_send(wr);
  }
  // Binds it and has seen that it is bound.
  uint32_t bound() {
    const uint32_t key = window->key();
    EXPECT_TRUE(post_bind(1, bind_of(key)));
    EXPECT_EQ(Side::take(b->send_cq).status, WcStatus::success);
    return key;
  }
  Status send_inv(uint64_t id, uint32_t rkey) const {
    SendWr wr = Side::work(SendOp::send_with_inv, id);
    wr.imm = rkey;
    return a->post(wr, {a->sge(0, 8)});
  }
  WcStatus write(uint32_t key, size_t n = 8) {
    EXPECT_TRUE(a->post(SendOp::write, 50, 0, n, b->address(1000), key));
    EXPECT_TRUE(until([&] { return !a->send_cq.empty(); }));
    return Side::take(a->send_cq).status;
  }

  protect::BindableRegion region;
  std::unique_ptr<Window> window;

 private:
  std::unique_ptr<protect::KeyNumbers> numbers_;
  protect::WindowCount of_region_;
};

using WindowQueue = OverEachLink;
INSTANTIATE_TEST_SUITE_P(Links, WindowQueue, kEachLink, link_name);

TEST_P(WindowQueue, a_bind_and_its_invalidation_complete_with_their_names) {
  WindowPair p(GetParam());
  const uint32_t key = p.window->key();
  ASSERT_TRUE(p.post_bind(1, p.bind_of(key)));
  Wc wc = Side::take(p.b->send_cq);
  EXPECT_EQ(wc.status, WcStatus::success);
  EXPECT_EQ(wc.opcode, WcOpcode::bind_mw);
  EXPECT_EQ(p.write(key), WcStatus::success);
  ASSERT_TRUE(p.post_inv(2, key));
  wc = Side::take(p.b->send_cq);
  EXPECT_EQ(wc.status, WcStatus::success);
  EXPECT_EQ(wc.opcode, WcOpcode::local_inv);
  EXPECT_EQ(wc.imm, key);
  EXPECT_EQ(p.write(key), WcStatus::rem_access_err);
}

TEST_P(WindowQueue, what_is_done_here_completes_in_the_order_of_the_queue) {
  WindowPair p(GetParam());
  const uint32_t key = p.window->key();
  ASSERT_TRUE(p.b->post(SendOp::send, 1, 0, 8));  // waits for a receive
  ASSERT_TRUE(p.post_bind(2, p.bind_of(key)));
  ASSERT_TRUE(p.post_inv(3, key));
  ASSERT_TRUE(p.b->post(SendOp::read, 4, 200, 300, p.a->address(), p.a->key()));
  p.settle();
  EXPECT_TRUE(p.b->send_cq.empty());
  ASSERT_TRUE(p.a->post_recv(1, 0, 8));
  EXPECT_EQ(p.ended_of(p.b->send_cq, 4),
            (Ended{{1, success}, {2, success}, {3, success}, {4, success}}));
}

TEST_P(WindowQueue, a_fenced_bind_waits_for_the_read_before_it_and_one_without_does_not) {
  for (const WindowType type : {WindowType::type_1, WindowType::type_2a, WindowType::type_2b}) {
    for (const uint32_t fence : {kFence, 0u}) {
      SCOPED_TRACE(fence);
      WindowPair p(GetParam(), type);
      const bool by_call = type == WindowType::type_1;
      const BindWr bind = p.bind_of(by_call ? p.window->next_key() : p.window->key());
      // a has not been polled: the read is not answered
      ASSERT_TRUE(p.b->post(SendOp::read, 1, 200, 300, p.a->address(), p.a->key()));
      SendWr wr = Side::work(SendOp::bind_mw, 2);
      wr.flags |= fence;
      wr.bind = &bind;
      ASSERT_TRUE(p.b->qp->post_send(wr));
      // by itself, where the other does not come to it
      for (int i = 0; i < 100 && GetParam() != LinkKind::direct; ++i) p.b->poll();
      EXPECT_EQ(p.window->is_bound(), fence == 0);
      EXPECT_TRUE(p.b->send_cq.empty());
      EXPECT_EQ(p.ended_of(p.b->send_cq, 2), (Ended{{1, success}, {2, success}}));
      EXPECT_TRUE(p.window->is_bound());
    }
  }
}

TEST_P(WindowQueue, a_bind_that_is_not_signaled_completes_in_silence_unless_it_fails) {
  Options o;
  o.sig_all = false;
  for (const bool behind_a_read : {false, true}) {  // the slow path
    for (const bool fails : {false, true}) {
      SCOPED_TRACE(std::to_string(behind_a_read) + std::to_string(fails));
      WindowPair p(GetParam(), WindowType::type_2b, o);
      if (behind_a_read) {
        ASSERT_TRUE(p.b->post(SendOp::read, 1, 200, 300, p.a->address(), p.a->key()));
      }
      BindWr bind = p.bind_of(p.window->key());
      if (fails) bind.region_key = 0x77700;
      SendWr wr = Side::work(SendOp::bind_mw, 2);
      wr.flags = 0;
      wr.bind = &bind;
      ASSERT_TRUE(p.b->qp->post_send(wr));
      p.settle();
      EXPECT_EQ(p.window->is_bound(), !fails);
      Ended wanted;
      if (behind_a_read) wanted.emplace_back(1, success);
      if (fails) wanted.emplace_back(2, WcStatus::mw_bind_err);
      EXPECT_EQ(ended(p.b->send_cq), wanted);
    }
  }
}

TEST_P(WindowQueue, bad_binds_fail_and_flush_the_rest) {
  const struct {
    const char* what;
    void (*spoil)(BindWr&);
  } cases[] = {{"no such window", [](BindWr& b) { b.window_key ^= 0x5500; }},
               {"no such region", [](BindWr& b) { b.region_key = 0x77700; }},
               {"no region", [](BindWr& b) { b.region_key = 0; }},
               {"outside of it", [](BindWr& b) { b.addr -= 1001; }},
               {"beyond its end", [](BindWr& b) { b.len = WindowPair::kMemory; }},
               {"no bytes", [](BindWr& b) { b.len = 0; }},
               {"another number", [](BindWr& b) { b.rkey ^= 0x100; }},
               {"the call of type 1", [](BindWr& b) { b.by_work_request = false; }},
               {"a right of its own", [](BindWr& b) { b.rights = Rights::local_write; }}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    WindowPair p(GetParam());
    BindWr bind = p.bind_of(p.window->key());
    c.spoil(bind);
    ASSERT_TRUE(p.post_bind(1, bind));
    EXPECT_EQ(p.b->qp->state(), QpState::err);
    ASSERT_TRUE(p.post_inv(2, p.window->key()));
    const Wc wc = Side::take(p.b->send_cq);
    EXPECT_EQ(wc.status, WcStatus::mw_bind_err);
    EXPECT_EQ(wc.opcode, WcOpcode::bind_mw);
    EXPECT_EQ(Side::take(p.b->send_cq).status, WcStatus::wr_flush_err);
    EXPECT_FALSE(p.window->is_bound());
  }
}

// As ibv_rereg_mr(3) leaves a region that it has moved: the same number, with the next tag.
TEST_P(WindowQueue, a_bind_by_a_key_that_its_region_has_no_more_fails) {
  WindowPair p(GetParam());
  const uint32_t key = p.window->key();
  const BindWr before = p.bind_of(key);
  p.region.entry.key = protect::next_tag(p.region_key());
  ASSERT_TRUE(p.post_bind(1, before));
  EXPECT_EQ(Side::take(p.b->send_cq).status, WcStatus::mw_bind_err);
  EXPECT_FALSE(p.window->is_bound());
}
TEST_P(WindowQueue, a_bind_by_the_key_that_its_region_has_now_succeeds) {
  WindowPair p(GetParam());
  p.region.entry.key = protect::next_tag(p.region_key());
  p.bound();
  EXPECT_TRUE(p.window->is_bound());
}

TEST_P(WindowQueue, type_2_is_not_bound_again_before_it_is_invalidated) {
  WindowPair p(GetParam());
  const uint32_t key = p.bound();
  ASSERT_TRUE(p.post_bind(2, p.bind_of(protect::next_tag(key))));
  EXPECT_EQ(Side::take(p.b->send_cq).status, WcStatus::mw_bind_err);
  EXPECT_TRUE(p.window->is_bound()) << "the binding is untouched";
}

TEST_P(WindowQueue, invalidations_of_what_is_not_bound_here_are_refused) {
  WindowPair p(GetParam());
  const uint32_t key = p.bound();
  ASSERT_TRUE(p.post_inv(2, protect::next_tag(key)));
  EXPECT_NE(Side::take(p.b->send_cq).status, WcStatus::success);
  EXPECT_TRUE(p.window->is_bound());
}

TEST_P(WindowQueue, a_send_of_the_peer_invalidates_and_says_so) {
  WindowPair p(GetParam());
  const uint32_t key = p.bound();
  ASSERT_TRUE(p.b->post_recv(1, 0, 8));
  ASSERT_TRUE(p.send_inv(1, key));
  ASSERT_TRUE(p.until([&] { return !p.b->recv_cq.empty() && !p.a->send_cq.empty(); }));
  EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::success);
  const Wc wc = Side::take(p.b->recv_cq);
  EXPECT_EQ(wc.status, WcStatus::success);
  EXPECT_EQ(wc.flags, kWcWithInv);
  EXPECT_EQ(wc.imm, key);
  EXPECT_FALSE(p.window->is_bound());
  EXPECT_EQ(p.write(key), WcStatus::rem_access_err);
}

TEST_P(WindowQueue, hostile_23_a_send_that_invalidates_another_key_is_refused) {
  for (const bool of_region : {true, false}) {
    WindowPair p(GetParam());
    const uint32_t key = p.bound();
    ASSERT_TRUE(p.b->post_recv(1, 0, 8));
    ASSERT_TRUE(p.send_inv(1, of_region ? p.b->key() : protect::next_tag(key)));
    ASSERT_TRUE(p.until([&] { return !p.b->recv_cq.empty() && !p.a->send_cq.empty(); }));
    EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::rem_access_err);
    EXPECT_EQ(Side::take(p.b->recv_cq).status, WcStatus::wr_flush_err);
    EXPECT_EQ(p.b->events.async, std::vector{AsyncEvent::qp_access_err});
    EXPECT_TRUE(p.window->is_bound());
  }
}

TEST_P(WindowQueue, an_unreliable_connection_drops_what_it_may_not_invalidate) {
  WindowPair p(GetParam(), WindowType::type_2b, {.type = QpType::uc});
  const uint32_t key = p.bound();
  ASSERT_TRUE(p.b->post_recv(1, 0, 8));
  ASSERT_TRUE(p.send_inv(1, protect::next_tag(key)));
  p.settle();
  EXPECT_TRUE(p.b->recv_cq.empty());
  EXPECT_TRUE(p.window->is_bound());
  ASSERT_TRUE(p.send_inv(2, key));
  ASSERT_TRUE(p.until([&] { return !p.b->recv_cq.empty(); }));
  EXPECT_EQ(Side::take(p.b->recv_cq).flags, kWcWithInv);
  EXPECT_FALSE(p.window->is_bound());
}

TEST_P(WindowQueue, an_unreliable_connection_without_a_lane_carries_out_what_is_done_here) {
  WindowPair p(GetParam(), WindowType::type_2b, {.type = QpType::uc});
  const uint32_t key = p.bound();
  p.b->qp->lose();
  ASSERT_TRUE(p.b->post(SendOp::send, 2, 0, 8));
  ASSERT_TRUE(p.post_inv(3, key));
  EXPECT_EQ(ends_of(p.b->send_cq), (Ends{success, success}));
  EXPECT_FALSE(p.window->is_bound()) << "what is told as invalidated is";
}

TEST_P(WindowQueue, type_1_is_bound_by_its_call_and_unbound_with_no_bytes) {
  WindowPair p(GetParam(), WindowType::type_1);
  const uint32_t first = p.window->next_key();
  ASSERT_TRUE(p.post_bind(1, p.bind_of(first)));
  EXPECT_EQ(Side::take(p.b->send_cq).status, WcStatus::success);
  EXPECT_EQ(p.write(first), WcStatus::success);
  BindWr none = p.bind_of(p.window->next_key());
  none.len = 0;
  ASSERT_TRUE(p.post_bind(2, none));
  EXPECT_EQ(p.next_end(p.b->send_cq), success);
  EXPECT_FALSE(p.window->is_bound());
  EXPECT_EQ(p.write(first), WcStatus::rem_access_err);
}

// --- what waits for a peer ---

// A thread of the peer that never leaves what it is in, however one looks.
class AliveProbe final : public protect::ThreadProbe {
 public:
  protect::ThreadState look(pid_t, pid_t, uint64_t) noexcept override {
    return protect::ThreadState::running;
  }
  bool is_over(pid_t, uint64_t) noexcept override { return false; }
};

// While there is one, a peer of b stands inside what that key reaches.
class Pin {
 public:
  Pin(WindowPair& p, uint32_t key)
      : keys_(*p.lanes.keys),
        slot_(p.a->qp->lane()->direct.slots->claim(p.a->qp->lane()->direct.lane)) {
    keys_.accessors().set_thread_probe(&probe_);
    const protect::Checked met = keys_.access().check(
        {p.b->domain, 0, Wild<uint64_t>(key), Wild<uint64_t>(p.b->address(1000)), Wild<uint64_t>(8),
         Rights::remote_write, p.b->qp->id()});
    EXPECT_TRUE(met.ok());
    slot_->pin.store(met.grant().region().generation);
  }
  ~Pin() {
    slot_->pin.store(0);
    protect::SlotArray::give_back(slot_);
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  static inline AliveProbe probe_;
  protect::KeyTable& keys_;
  protect::AccessorSlot* slot_;
};

TEST(WindowPin, a_bind_that_waits_for_a_peer_holds_up_its_own_queue_alone) {
  WindowPair p(LinkKind::direct, WindowType::type_1);
  const uint32_t first = p.window->next_key();
  ASSERT_TRUE(p.post_bind(1, p.bind_of(first)));
  p.b->send_cq.pop();
  const uint32_t second = p.window->next_key();
  {
    const Pin pin(p, first);
    ASSERT_TRUE(p.post_bind(2, p.bind_of(second)));
    ASSERT_TRUE(p.b->post(SendOp::send, 3, 0, 8));
    p.settle();
    EXPECT_TRUE(p.b->send_cq.empty()) << "neither is over";
    EXPECT_TRUE(p.b->qp->needs_polling());
    EXPECT_FALSE(p.b->qp->lane()->request_tx.cells.pos() != 0) << "what is behind it waits";
    // the other direction goes on
    ASSERT_TRUE(p.b->post_recv(9, 0, 8));
    ASSERT_TRUE(p.a->post(SendOp::send, 9, 0, 8));
    EXPECT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1; }));
  }
  ASSERT_TRUE(p.a->post_recv(3, 0, 8));
  EXPECT_EQ(p.ended_of(p.b->send_cq, 2), (Ended{{2, success}, {3, success}}));
  EXPECT_EQ(p.write(second), WcStatus::success);
}

TEST(WindowPin, a_window_that_is_destroyed_while_its_bind_waits_fails_the_bind) {
  WindowPair p(LinkKind::direct, WindowType::type_1);
  const uint32_t first = p.window->next_key();
  ASSERT_TRUE(p.post_bind(1, p.bind_of(first)));
  p.b->send_cq.pop();
  {
    const Pin pin(p, first);
    ASSERT_TRUE(p.post_bind(2, p.bind_of(p.window->next_key())));
    EXPECT_EQ(p.window->close(), WindowAnswer::waits);
  }
  p.destroy();
  p.settle();
  EXPECT_EQ(ends_of(p.b->send_cq), Ends{mw_bind_err});
}

TEST(WindowPin, invalidating_type_2_waits_for_nobody) {
  WindowPair p(LinkKind::direct);
  const uint32_t key = p.bound();
  const Pin pin(p, key);
  ASSERT_TRUE(p.post_inv(2, key));
  EXPECT_EQ(Side::take(p.b->send_cq).status, WcStatus::success);
}

TEST_P(WindowQueue, a_window_that_is_gone_when_its_bind_has_its_turn_fails_the_bind) {
  WindowPair p(GetParam());
  const BindWr bind = p.bind_of(p.window->key());
  SendWr fenced = Side::work(SendOp::bind_mw, 2);
  fenced.bind = &bind;
  fenced.flags |= kFence;
  ASSERT_TRUE(p.b->post(SendOp::fetch_add, 1, 0, 8, p.a->address(), p.a->key()));
  ASSERT_TRUE(p.b->qp->post_send(fenced));  // waits for the atomic before it
  p.destroy();
  EXPECT_EQ(p.ends(p.b->send_cq, 2), (Ends{success, mw_bind_err}));
}

// --- the ordering rule, with what is done at one end ---

TEST_P(WindowQueue, a_write_behind_the_send_that_invalidates_its_key_is_refused) {
  for (const bool asleep : {false, true}) {
    WindowPair p(GetParam());
    const uint32_t key = p.bound();
    if (asleep) p.b->qp->fall_asleep(ring::kUnnumbered);
    ASSERT_TRUE(p.b->post_recv(1, 0, 8));
    p.a->fill(0, pattern(100, 9));
    ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, 50, p.b->address(1000), key));
    ASSERT_TRUE(p.send_inv(2, key));
    ASSERT_TRUE(p.a->post(SendOp::write, 3, 50, 50, p.b->address(1000), key));
    EXPECT_EQ(p.ends(p.a->send_cq, 3), (Ends{success, success, rem_access_err}));
    EXPECT_EQ(p.b->bytes(1000, 50), pattern(50, 9));
  }
}

TEST_P(WindowQueue, a_key_that_is_sent_behind_its_bind_is_in_force_when_it_comes) {
  for (const WindowType type : {WindowType::type_1, WindowType::type_2b}) {
    WindowPair p(GetParam(), type);
    const uint32_t key = type == WindowType::type_1 ? p.window->next_key() : p.window->key();
    std::memcpy(p.b->memory.data(), &key, sizeof key);
    ASSERT_TRUE(p.a->post_recv(1, 0, 8));
    ASSERT_TRUE(p.post_bind(1, p.bind_of(key)));
    ASSERT_TRUE(p.b->post(SendOp::send, 2, 0, sizeof key));
    ASSERT_TRUE(p.until([&] { return !p.a->recv_cq.empty(); }));
    uint32_t told = 0;
    std::memcpy(&told, p.a->memory.data(), sizeof told);
    EXPECT_EQ(p.write(told), WcStatus::success);
  }
}

TEST_P(WindowQueue, nothing_lands_once_an_invalidation_has_completed) {
  for (const size_t n : {size_t{8}, size_t{4000}}) {
    WindowPair p(GetParam());
    const uint32_t key = p.bound();
    p.a->fill(0, pattern(n, 3));
    ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, n, p.b->address(1000), key));  // not executed yet
    ASSERT_TRUE(p.post_inv(2, key));
    EXPECT_EQ(Side::take(p.b->send_cq).status, WcStatus::success);
    const auto then = p.b->bytes(1000, n);
    EXPECT_EQ(p.next_end(p.a->send_cq), rem_access_err);
    EXPECT_EQ(p.b->bytes(1000, n), then);
  }
}

}  // namespace
}  // namespace aperture::ib::test
