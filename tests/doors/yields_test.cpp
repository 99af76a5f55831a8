// Who polls gives the core to the peer that it waits for: two processes on one core that both poll
// take turns of microseconds, where each would otherwise keep the core until the scheduler's tick.
// And who polls alone loses next to nothing by that. Yields and polls in vain are counted, and no
// time is judged.
#include <gtest/gtest.h>

#include <atomic>

#include "base/counted_calls.hpp"
#include "doors/child.hpp"
#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

constexpr uint32_t kRounds = 2000;
// Of one round: some hundred is what a wait of microseconds takes, and a tick is 30,000 and more.
constexpr uint64_t kMostPollsInVain = 5000;
constexpr int kPatience_ms = 60000;

enum class Way : uint32_t {
  queue,              // fi_cq_read
  counter,            // fi_cntr_read, without completions
  queue_and_counter,  // fi_cq_read, without completions: the message itself shows
  poll_set,           // fi_poll
};

struct Case {
  const char* name;
  Way way;
};

struct Plan {
  Way way;
  bool begins;
  uint32_t rounds;  // 0: it polls until it is called
  Name peer;
};
struct Seen {
  uint64_t polls_in_vain = 0;
  test::Yields yields;
  int64_t ns = 0;
};

Options options_of(Way way) {
  Options options{.caps = FI_MSG, .counters = true};
  const bool completions = way == Way::queue || way == Way::poll_set;
  if (!completions) options.cq_flags = FI_SELECTIVE_COMPLETION;
  return options;
}

class Poller {
 public:
  explicit Poller(Way way) : way_(way), node_(options_of(way)) {
    if (way != Way::poll_set) return;
    fi_poll_attr attr{};
    fid_poll* set = nullptr;
    DOOR(fi_poll_open(node_.domain(), &attr, &set));
    set_.reset(set);
    DOOR(fi_poll_add(set, &node_.cq()->fid, 0));
  }
  ~Poller() {
    if (set_) fi_poll_del(set_.get(), &node_.cq()->fid, 0);  // it is not closed with members
  }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  Name name() { return node_.name(); }

  Seen play(const Plan& plan) {
    const fi_addr_t to = node_.insert(plan.peer);
    post_receive();
    for (uint32_t round = 1; round <= plan.rounds; ++round) {
      if (round == plan.rounds / 10) begin_to_count();
      if (plan.begins) send(to, round);
      await(round);
      post_receive();
      if (!plan.begins) send(to, round);
    }
    return seen();
  }
  // One exchange, so that they know each other, and then nothing to find.
  Seen poll_until_called(const Plan& plan, Control& conductor) {
    play({plan.way, plan.begins, 1, plan.peer});
    conductor.put(true);
    begin_to_count();
    while (!conductor.ready()) {
      for (int i = 0; i < 1000; ++i) poll();
    }
    return seen();
  }

 private:
  void begin_to_count() {
    test::yields = {};
    polls_in_vain_ = 0;
    begun_ns_ = now_ns();
  }
  Seen seen() const { return {polls_in_vain_, test::yields, now_ns() - begun_ns_}; }
  void post_receive() {
    DOOR(fi_recv(node_.ep(), &room_, sizeof room_, nullptr, FI_ADDR_UNSPEC, &receive_));
  }
  void send(fi_addr_t to, uint64_t round) {
    while (fi_inject(node_.ep(), &round, sizeof round, to) == -FI_EAGAIN) poll();
  }
  void await(uint64_t round) {
    // what a poll has put there is seen after it
    while (std::atomic_ref(room_).load() != round) polls_in_vain_ += !poll();
    if (way_ == Way::queue || way_ == Way::poll_set) {
      while (!found_) poll();
      found_ = false;
    }
  }
  // Whether there was anything.
  bool poll() {
    fi_cq_tagged_entry entry{};
    void* context = nullptr;
    const uint64_t before = received_;
    switch (way_) {
      case Way::counter: received_ = fi_cntr_read(node_.rx_cntr()); return received_ != before;
      case Way::poll_set:
        if (fi_poll(set_.get(), &context, 1) == 0) return false;
        [[fallthrough]];
      default: break;
    }
    if (fi_cq_read(node_.cq(), &entry, 1) != 1) return false;
    found_ = true;
    return true;
  }

  const Way way_;
  Node node_;
  Fid<fid_poll> set_;
  Op receive_;
  uint64_t room_ = 0;
  uint64_t received_ = 0;
  bool found_ = false;
  uint64_t polls_in_vain_ = 0;
  int64_t begun_ns_ = 0;
};

}  // namespace

DOOR_ROLE(poller_on_one_core) {
  Way way{};
  Plan plan;
  if (!control.get(&way)) return 1;
  test::keep_to_cores(1);
  Poller poller(way);
  if (!control.put(poller.name()) || !control.get(&plan)) return 2;
  const Seen seen = poller.play(plan);
  bool bye = false;
  return control.put(seen) && control.get(&bye) ? 0 : 3;
}

DOOR_ROLE(poller_alone) {
  Way way{};
  Plan plan;
  if (!control.get(&way)) return 1;
  Poller poller(way);
  if (!control.put(poller.name()) || !control.get(&plan)) return 2;
  const bool rests = plan.rounds != 0;
  const Seen seen = rests ? poller.play(plan) : poller.poll_until_called(plan, control);
  bool bye = false;
  return (rests || control.get(&bye)) && control.put(seen) && control.get(&bye) ? 0 : 3;
}

namespace {

class Pollers : public testing::TestWithParam<Case> {
 protected:
  // Two of that role, which know each other.
  void start(const char* role, Plan first, Plan second) {
    Plan plans[] = {first, second};
    for (auto& child : pollers_) {
      child = std::make_unique<Child>(role);
      ASSERT_TRUE(child->control().put(GetParam().way));
    }
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(pollers_[i]->control().get(&plans[1 - i].peer, kPatience_ms));
    }
    for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(pollers_[i]->control().put(plans[i]));
  }
  void end() {
    for (auto& child : pollers_) {
      EXPECT_TRUE(child->control().put(true));
      EXPECT_EQ(child->join(), 0);
    }
  }

  std::unique_ptr<Child> pollers_[2];
};
INSTANTIATE_TEST_SUITE_P(Ways, Pollers,
                         testing::Values(Case{"of_a_queue", Way::queue},
                                         Case{"of_a_counter", Way::counter},
                                         Case{"of_an_empty_queue", Way::queue_and_counter},
                                         Case{"of_a_poll_set", Way::poll_set}),
                         kByName);

TEST_P(Pollers, on_one_core_give_it_to_each_other) {
  const Way way = GetParam().way;
  start("poller_on_one_core", {way, true, kRounds, {}}, {way, false, kRounds, {}});
  if (HasFatalFailure()) return;
  constexpr uint64_t kCounted = kRounds - kRounds / 10 + 1;
  for (auto& poller : pollers_) {
    Seen seen;
    ASSERT_TRUE(poller->control().get(&seen, kPatience_ms));
    const uint64_t yields = seen.yields.taken + seen.yields.vain;
    std::printf("%.2f yields and %.0f polls in vain a round\n",
                static_cast<double>(yields) / kCounted,
                static_cast<double>(seen.polls_in_vain) / kCounted);
    EXPECT_GE(yields, kCounted / 2);
    EXPECT_LE(seen.polls_in_vain, kCounted * kMostPollsInVain);
  }
  end();
}

// One yield in the longest patience, 64 us, where nobody takes the core; each time that somebody
// does, one more may come sooner.
TEST_P(Pollers, alone_yield_seldom) {
  const Way way = GetParam().way;
  start("poller_alone", {way, true, 0, {}}, {way, false, 1, {}});
  if (HasFatalFailure()) return;
  Seen seen;
  bool ready = false;
  ASSERT_TRUE(pollers_[1]->control().get(&seen, kPatience_ms));
  ASSERT_TRUE(pollers_[0]->control().get(&ready, kPatience_ms));
  ::usleep(300'000);
  ASSERT_TRUE(pollers_[0]->control().put(true));
  ASSERT_TRUE(pollers_[0]->control().get(&seen, kPatience_ms));
  std::printf("%llu yields that nobody took and %llu others in %lld us\n",
              static_cast<unsigned long long>(seen.yields.vain),
              static_cast<unsigned long long>(seen.yields.taken),
              static_cast<long long>(seen.ns / 1000));
  EXPECT_GE(seen.yields.vain + seen.yields.taken, 1u);
  EXPECT_LE(seen.yields.vain, static_cast<uint64_t>(seen.ns) / 50'000 + seen.yields.taken + 8);
  end();
}

}  // namespace
}  // namespace aperture::doors
