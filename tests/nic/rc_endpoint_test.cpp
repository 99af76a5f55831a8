// The lane of a connected queue pair: who may come, who asks, and what each is told.
#include "nic/rc_endpoint.hpp"

#include "nic/qp_numbers.hpp"
#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

constexpr uint64_t kLimitNs = 10'000'000'000;
constexpr uint64_t kMs = 1'000'000;

// A queue pair's end with an engine of its own, progressed by the test.
class End final : public LaneEvents {
 public:
  struct Heard {
    enum class What { lane, no_lane, down } what;
    std::unique_ptr<link::Lane> lane;
    Errc why = Errc::ok;
  };

  explicit End(QpNumbers& numbers, uint32_t ip = 0x7f000001, Engine* engine = nullptr)
      : numbers_(numbers) {
    if (engine == nullptr) own_ = *Engine::create({.threaded = false});
    engine_ = engine != nullptr ? engine : own_.get();
    endpoint.emplace(*engine_, *this);
    auto number = numbers.take();
    EXPECT_TRUE(number.ok());
    number_ = *number;
    address = qp_address(Address::v4(ip, 0), number_);
  }
  ~End() override {
    endpoint.reset();
    for (Heard& h : heard_) give_back(std::move(h.lane));
    numbers_.give_back(number_);
  }

  Status expect(const Address& remote, protect::DomainId domain = 1, uint64_t within_ns = 0) {
    return endpoint->expect({address, remote, domain, within_ns});
  }
  void connect() {
    const EngineGuard guard(*engine_);
    EXPECT_TRUE(endpoint->connect().ok());
  }
  void give_back(std::unique_ptr<link::Lane> lane) {
    if (lane == nullptr) return;
    if (endpoint) {
      const EngineGuard guard(*engine_);
      return endpoint->give_back(std::move(lane));
    }
    if (!lane->to_self) contact().close_lane(std::move(lane));
  }
  void poll() {
    const EngineGuard guard(*engine_);
    engine_->poll();
  }
  std::optional<Heard> next(uint64_t within_ns = kLimitNs) {
    const uint64_t until = now_ns() + within_ns;
    for (;;) {
      {
        const EngineGuard guard(*engine_);
        engine_->poll();
        if (!heard_.empty()) {
          Heard h = std::move(heard_.front());
          heard_.pop_front();
          return h;
        }
      }
      if (now_ns() > until) return std::nullopt;
      std::this_thread::yield();
    }
  }
  std::unique_ptr<link::Lane> lane() { return next_of(Heard::What::lane).lane; }
  Errc failure() { return next_of(Heard::What::no_lane).why; }
  Errc down() { return next_of(Heard::What::down).why; }
  // Something has been heard without this thread's polling.
  bool hears_by_itself() {
    const uint64_t until = now_ns() + kLimitNs;
    for (;;) {
      {
        const EngineGuard guard(*engine_);
        if (!heard_.empty()) return true;
      }
      if (now_ns() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  bool silent(uint64_t for_ns = 50 * kMs) {
    const uint64_t until = now_ns() + for_ns;
    do poll();
    while (heard_.empty() && now_ns() < until);
    return heard_.empty();
  }
  // Until the end of this end.
  void keep(std::unique_ptr<link::Lane> lane) {
    heard_.push_back({Heard::What::lane, std::move(lane), Errc::ok});
  }

  void on_lane(std::unique_ptr<link::Lane> lane) noexcept override {
    heard_.push_back({Heard::What::lane, std::move(lane), Errc::ok});
  }
  void on_no_lane(Errc why) noexcept override {
    heard_.push_back({Heard::What::no_lane, nullptr, why});
  }
  void on_lane_down(Errc why) noexcept override {
    heard_.push_back({Heard::What::down, nullptr, why});
  }

  std::optional<RcEndpoint> endpoint;
  Address address;

 private:
  Heard next_of(Heard::What what) {
    auto h = next();
    EXPECT_TRUE(h.has_value()) << "nothing came";
    if (!h) return {what, nullptr};
    EXPECT_EQ(h->what, what) << describe(h->why);
    return *std::move(h);
  }
  QpNumbers& numbers_;
  std::unique_ptr<Engine> own_;
  Engine* engine_ = nullptr;
  QpNumber number_ = 0;
  std::deque<Heard> heard_;
};

class Rc : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(contact().census().listeners, 0u); }
  void pair_up(End& a, End& b) {
    ASSERT_TRUE(a.expect(b.address, 11).ok());
    ASSERT_TRUE(b.expect(a.address, 22).ok());
  }
  // Each end gets the lane, and gives it back.
  static void expect_lane(End& a, End& b) {
    auto at_a = a.lane(), at_b = b.lane();
    ASSERT_TRUE(at_a && at_b);
    a.give_back(std::move(at_a));
    b.give_back(std::move(at_b));
  }
  // The same, and b is told when a has given it back.
  static void expect_lane_and_its_end(End& a, End& b) {
    auto at_a = a.lane(), at_b = b.lane();
    ASSERT_TRUE(at_a && at_b);
    a.give_back(std::move(at_a));
    EXPECT_EQ(b.down(), Errc::shut_down);
    b.give_back(std::move(at_b));
  }
  QpNumbers numbers_{{Address::v4(0x7f000001, 0), Address::v4(0x7f000002, 0)}};
};

TEST_F(Rc, one_asks_and_both_get_the_lane) {
  End a(numbers_), b(numbers_);
  pair_up(a, b);
  EXPECT_TRUE(a.silent()) << "nobody has asked";
  a.connect();
  auto at_a = a.lane(), at_b = b.lane();
  ASSERT_TRUE(at_a && at_b);
  EXPECT_EQ(at_a->remote, b.address);
  EXPECT_EQ(at_b->remote, a.address);
  EXPECT_EQ(at_a->remote_domain, 22u);
  EXPECT_EQ(at_b->remote_domain, 11u);
  a.connect();
  b.connect();
  EXPECT_TRUE(a.silent()) << "there is one";
  a.give_back(std::move(at_a));
  EXPECT_EQ(b.down(), Errc::shut_down);
  b.give_back(std::move(at_b));
}

TEST_F(Rc, both_ask_and_get_one_lane) {
  for (int i = 0; i < 100; ++i) {
    End a(numbers_), b(numbers_);
    pair_up(a, b);
    a.connect();
    b.connect();
    for (End* end : {&a, &b}) {
      std::unique_ptr<link::Lane> up;
      while (!up || !end->silent(0)) {
        auto heard = end->next();
        ASSERT_TRUE(heard.has_value()) << "no lane came";
        ASSERT_NE(heard->what, End::Heard::What::no_lane) << describe(heard->why);
        if (heard->what == End::Heard::What::lane) {
          ASSERT_FALSE(up) << "a second lane while one is up";
          up = std::move(heard->lane);
        } else {
          end->give_back(std::move(up));
        }
      }
      end->keep(std::move(up));
    }
  }
}

TEST_F(Rc, whoever_asks_before_the_other_is_ready_waits_for_it) {
  End a(numbers_), b(numbers_);
  ASSERT_TRUE(a.expect(b.address).ok());
  a.connect();
  EXPECT_TRUE(a.silent());
  ASSERT_TRUE(b.expect(a.address).ok());
  expect_lane(a, b);
}

TEST_F(Rc, a_peer_that_does_not_become_ready_is_given_up_and_may_be_asked_again) {
  End a(numbers_), b(numbers_);
  ASSERT_TRUE(a.expect(b.address, 1, 1).ok());
  const uint64_t began = now_ns();
  a.connect();
  EXPECT_EQ(a.failure(), Errc::timed_out);
  EXPECT_GE(now_ns() - began, RcEndpoint::kLeastConnectNs);
  ASSERT_TRUE(b.expect(a.address).ok());
  a.connect();
  expect_lane(a, b);
}

TEST_F(Rc, a_peer_that_has_gone_refuses) {
  End a(numbers_);
  Address gone;
  {
    QpNumbers others({Address::v4(0x7f000001, 0)});
    const End b(others);
    gone = b.address;
  }
  ASSERT_TRUE(a.expect(gone).ok());
  a.connect();
  EXPECT_EQ(a.failure(), Errc::refused);
}

TEST_F(Rc, an_endpoint_without_an_index_is_no_peer) {
  End a(numbers_);
  Side alone;
  ASSERT_TRUE(a.expect(alone.address()).ok());
  a.connect();
  EXPECT_EQ(a.failure(), Errc::invalid);
  EXPECT_TRUE(alone.silent(20));
}

TEST_F(Rc, hostile_4_a_stranger_gets_no_lane_and_the_peer_does) {
  End a(numbers_), b(numbers_), stranger(numbers_);
  pair_up(a, b);
  ASSERT_TRUE(stranger.expect(b.address).ok());
  stranger.connect();
  auto taken = stranger.lane();
  ASSERT_TRUE(taken);
  EXPECT_EQ(stranger.down(), Errc::shut_down);
  EXPECT_TRUE(b.silent());
  stranger.give_back(std::move(taken));
  a.connect();
  auto at_a = a.lane(), at_b = b.lane();
  ASSERT_TRUE(at_a && at_b);
  EXPECT_EQ(at_b->remote, a.address);
  a.give_back(std::move(at_a));
  b.give_back(std::move(at_b));
}

TEST_F(Rc, a_queue_pair_may_be_connected_to_itself) {
  End a(numbers_);
  ASSERT_TRUE(a.expect(a.address, 5).ok());
  a.connect();
  a.connect();
  auto lane = a.lane();
  ASSERT_TRUE(lane);
  EXPECT_TRUE(lane->to_self);
  EXPECT_EQ(lane->remote, a.address);
  EXPECT_EQ(lane->remote_domain, 5u);
  EXPECT_TRUE(a.silent());
  a.give_back(std::move(lane));
}

TEST_F(Rc, both_ends_may_be_driven_by_one_engine) {
  auto engine = *Engine::create({.threaded = false});
  {
    End a(numbers_, 0x7f000001, engine.get()), b(numbers_, 0x7f000002, engine.get());
    pair_up(a, b);
    a.connect();
    expect_lane(a, b);
  }
}

TEST_F(Rc, lanes_come_and_go_also_while_nobody_polls) {
  auto of_a = *Engine::create({.threaded = true});
  auto of_b = *Engine::create({.threaded = true});
  {
    End a(numbers_, 0x7f000001, of_a.get()), b(numbers_, 0x7f000001, of_b.get());
    pair_up(a, b);
    for (int i = 0; i < 10; ++i) {
      a.connect();
      ASSERT_TRUE(a.hears_by_itself());
      ASSERT_TRUE(b.hears_by_itself());
      auto at_a = a.lane(), at_b = b.lane();
      ASSERT_TRUE(at_a && at_b);
      a.give_back(std::move(at_a));
      ASSERT_TRUE(b.hears_by_itself());
      EXPECT_EQ(b.down(), Errc::shut_down);
      b.give_back(std::move(at_b));
    }
  }
}

TEST_F(Rc, a_lane_that_is_down_is_followed_by_another) {
  End a(numbers_), b(numbers_);
  pair_up(a, b);
  for (int i = 0; i < 20; ++i) {
    End& asks = i % 2 == 0 ? a : b;
    asks.connect();
    expect_lane_and_its_end(a, b);
  }
}

TEST_F(Rc, an_end_may_expect_somebody_else_once_it_is_closed) {
  End a(numbers_), b(numbers_), c(numbers_);
  pair_up(a, b);
  EXPECT_EQ(a.expect(c.address).error(), Errc::bad_state);
  a.connect();
  auto at_a = a.lane(), at_b = b.lane();
  ASSERT_TRUE(at_a && at_b);
  a.endpoint->close();
  a.endpoint->close();
  a.give_back(std::move(at_a));
  EXPECT_EQ(b.down(), Errc::shut_down);
  b.give_back(std::move(at_b));
  ASSERT_TRUE(a.expect(c.address).ok());
  ASSERT_TRUE(c.expect(a.address).ok());
  c.connect();
  at_a = a.lane();
  auto at_c = c.lane();
  ASSERT_TRUE(at_a && at_c);
  EXPECT_EQ(at_a->remote, c.address);
  a.give_back(std::move(at_a));
  c.give_back(std::move(at_c));
}

TEST_F(Rc, nothing_is_heard_after_the_close) {
  for (int i = 0; i < 50; ++i) {
    End a(numbers_), b(numbers_);
    pair_up(a, b);
    a.connect();
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    b.endpoint->close();
    a.endpoint->close();
    for (int polls = 0; polls < 100; ++polls) a.poll(), b.poll();
    EXPECT_TRUE(a.silent(0));
    EXPECT_TRUE(b.silent(0));
  }
  const uint64_t until = now_ns() + kLimitNs;
  while (contact().census().lanes != 0 && now_ns() < until) std::this_thread::yield();
  EXPECT_EQ(contact().census().lanes, 0u) << "those that nobody took have gone back";
}

TEST_F(Rc, without_a_peer_or_a_port_there_is_nothing_to_expect) {
  End a(numbers_);
  {
    auto engine = *Engine::create({.threaded = false});
    RcEndpoint idle(*engine, a);
    const EngineGuard guard(*engine);
    EXPECT_EQ(idle.connect().error(), Errc::bad_state);
  }
  const Address good = a.address;
  a.address.index = 0;
  EXPECT_EQ(a.expect(good).error(), Errc::invalid);
  a.address = good;
  a.address.port = 1;
  EXPECT_EQ(a.expect(good).error(), Errc::addr_not_avail);
  a.address = good;
  ASSERT_TRUE(a.expect(good).ok()) << "a refusal leaves nothing behind";
}

}  // namespace
}  // namespace aperture::nic::test
