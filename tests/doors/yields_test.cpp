// Who polls gives the core to the peer that it waits for: two processes on one core that both poll
// take turns of microseconds, where each would otherwise keep the core until the scheduler's tick.
// And who polls alone loses next to nothing by that. Yields and polls in vain are counted, and no
// time is checked.
#include <gtest/gtest.h>

#include <atomic>

#include "base/counted_calls.hpp"
#include "doors/child.hpp"
#include "doors/collective.hpp"
#include "doors/fixture.hpp"
#include "doors/region.hpp"

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
  blocking_read,      // fi_cq_sread, which polls before it sleeps
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
  uint64_t long_rounds = 0;  // with more than kMostPollsInVain of them
  test::Yields yields;
  uint64_t sleeps = 0;
  int64_t ns = 0;
};

Options options_of(Way way) {
  Options options{.caps = FI_MSG, .counters = true};
  const bool completions = way != Way::counter && way != Way::queue_and_counter;
  if (!completions) options.cq_flags = FI_SELECTIVE_COMPLETION;
  if (way == Way::blocking_read) options.wait = FI_WAIT_FD;
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
      if (round == plan.rounds / 10) {
        if (plan.begins) poll_alone();
        begin_to_count();
      }
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
  // It learns that nobody else wants the core.
  void poll_alone() {
    fi_cq_tagged_entry entry{};
    for (const int64_t end = now_ns() + 20'000'000; now_ns() < end;) {
      if (fi_cq_read(node_.cq(), &entry, 1) == 1) found_ = true;
    }
  }
  void begin_to_count() {
    test::yields = {};
    test::naps = 0;
    polls_in_vain_ = long_rounds_ = 0;
    begun_ns_ = now_ns();
  }
  Seen seen() const {
    return {polls_in_vain_, long_rounds_, test::yields, test::naps, now_ns() - begun_ns_};
  }
  void post_receive() {
    DOOR(fi_recv(node_.ep(), &room_, sizeof room_, nullptr, FI_ADDR_UNSPEC, &receive_));
  }
  void send(fi_addr_t to, uint64_t round) {
    while (fi_inject(node_.ep(), &round, sizeof round, to) == -FI_EAGAIN) poll();
  }
  void await(uint64_t round) {
    uint64_t in_vain = 0;
    // what a poll has put there is seen after it
    while (std::atomic_ref(room_).load() != round) in_vain += !poll();
    polls_in_vain_ += in_vain;
    long_rounds_ += in_vain > kMostPollsInVain;
    if (way_ != Way::counter && way_ != Way::queue_and_counter) {
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
      case Way::blocking_read:
        found_ = fi_cq_sread(node_.cq(), &entry, 1, nullptr, kPatience_ms) == 1 || found_;
        return found_;
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
  uint64_t long_rounds_ = 0;
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
  void meet_on_one_core();
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

void Pollers::meet_on_one_core() {
  const Way way = GetParam().way;
  start("poller_on_one_core", {way, true, kRounds, {}}, {way, false, kRounds, {}});
  if (HasFatalFailure()) return;
  constexpr uint64_t kCounted = kRounds - kRounds / 10 + 1;
  for (auto& poller : pollers_) {
    Seen seen;
    ASSERT_TRUE(poller->control().get(&seen, kPatience_ms));
    const uint64_t yields = seen.yields.taken + seen.yields.vain;
    std::printf("%.2f yields, %.2f sleeps and %.0f polls in vain a round\n",
                static_cast<double>(yields) / kCounted, static_cast<double>(seen.sleeps) / kCounted,
                static_cast<double>(seen.polls_in_vain) / kCounted);
    EXPECT_GE(yields, kCounted / 2);
    // where others want the core as well, a yield may be back before the peer has run
    EXPECT_LE(seen.sleeps, way == Way::blocking_read ? kCounted / 4 : 0);
    // not in all, nor on average: whom the scheduler owes time is back from its yields at once
    // until that is used up, which makes one round as long as a thousand
    EXPECT_LE(seen.long_rounds, kCounted / 10);
  }
  end();
}

TEST_P(Pollers, on_one_core_give_it_to_each_other) {
  meet_on_one_core();
}

class Waiters : public Pollers {};
INSTANTIATE_TEST_SUITE_P(Ways, Waiters,
                         testing::Values(Case{"in_a_blocking_read", Way::blocking_read}), kByName);

// Also who has polled alone before.
TEST_P(Waiters, on_one_core_give_it_to_each_other_before_they_sleep) {
  meet_on_one_core();
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

// --- who waits inside of a call ------------------------------------------------------------------

constexpr size_t kPiece = 16 * 1024;
constexpr uint32_t kPieces = 8192;  // many times what there is room for at once

enum class Scene : uint32_t {
  posts,   // the same call again and again, and no other, until there is room
  closes,  // an endpoint that has accepted more than there was room for
};
struct SceneCase {
  const char* name;
  Scene scene;
};

struct Place {
  Name name;
  Remote remote;
};
struct Asked {
  Scene scene;
  Place place;
};

// Nobody but the calls makes progress, and there are no completions to read.
Options bare_options() {
  return {.caps = FI_RMA,
          .cq_flags = FI_SELECTIVE_COMPLETION,
          .threading = FI_THREAD_DOMAIN,
          .progress = FI_PROGRESS_MANUAL};
}

// Writes to memory that it does not reach directly.
class Initiator {
 public:
  explicit Initiator(const Asked& asked)
      : scene_(asked.scene),
        node_(bare_options()),
        to_(node_.insert(asked.place.name)),
        there_(asked.place.remote) {}
  // How often it has yielded in calls that wait.
  uint64_t play() {
    connect();
    test::yields = {};
    uint32_t posted = 0;
    if (scene_ == Scene::posts) {
      for (; posted < kPieces; ++posted) {
        while (!write()) continue;
      }
    } else {
      while (write()) ++posted;
      node_.close_endpoint();
    }
    return test::yields.taken + test::yields.vain;
  }

 private:
  void connect() {
    iovec piece{bytes_.data(), kPiece};
    fi_rma_iov remote{there_.base, kPiece, there_.key};
    fi_msg_rma message{};
    message.msg_iov = &piece;
    message.iov_count = 1;
    message.addr = to_;
    message.rma_iov = &remote;
    message.rma_iov_count = 1;
    message.context = &op_;
    check(node_.run_message(fi_writemsg, &message, uint64_t{FI_COMPLETION}), "fi_writemsg");
  }
  bool write() {
    const ssize_t rc =
        fi_write(node_.ep(), bytes_.data(), kPiece, nullptr, to_, there_.base, there_.key, &op_);
    if (rc != -FI_EAGAIN) check(rc, "fi_write");
    return rc == 0;
  }

  const Scene scene_;
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kPiece, 7);
  Op op_;
  Node node_;
  const fi_addr_t to_;
  const Remote there_;
};

}  // namespace

DOOR_ROLE(initiator_on_one_core) {
  test::keep_to_cores(1);
  Asked asked{};
  if (!control.get(&asked)) return 1;
  Initiator initiator(asked);
  return control.put(initiator.play()) ? 0 : 2;
}

DOOR_ROLE(target_on_one_core) {
  test::keep_to_cores(1);
  Node node(bare_options());
  Region region(node, kPiece);
  if (!control.put(Place{node.name(), region.remote()})) return 1;
  fi_cq_tagged_entry entry{};
  while (!control.ready()) (void)fi_cq_read(node.cq(), &entry, 1);
  return 0;
}

namespace {

class Waits : public testing::TestWithParam<SceneCase> {};
INSTANTIATE_TEST_SUITE_P(Scenes, Waits,
                         testing::Values(SceneCase{"who_posts", Scene::posts},
                                         SceneCase{"who_closes", Scene::closes}),
                         kByName);

TEST_P(Waits, for_a_peer_on_the_same_core_give_it_away) {
  const ChildOptions denied = child_denying(true);
  Child target("target_on_one_core", denied), initiator("initiator_on_one_core", denied);
  Asked asked{GetParam().scene, {}};
  ASSERT_TRUE(target.control().get(&asked.place, kPatience_ms));
  ASSERT_TRUE(initiator.control().put(asked));
  uint64_t yields = 0;
  ASSERT_TRUE(initiator.control().get(&yields, kPatience_ms));
  std::printf("%llu yields\n", static_cast<unsigned long long>(yields));
  EXPECT_GE(yields, 1u);
  EXPECT_EQ(initiator.join(), 0);
  ASSERT_TRUE(target.control().put(true));
  EXPECT_EQ(target.join(), 0);
}

// A call that finds no room in the completion queue, and that is all that the program does.
TEST(Collectives, that_find_no_room_give_the_core_away) {
  Member m;
  const SetPtr set = m.set_of({m.node.insert(m.node.name())});
  const McPtr mc = m.join(set);
  constexpr uint32_t kMost = 1'000'000;  // more than any queue has, and than it takes to yield
  Op op;
  uint32_t calls = 0, in_vain = 0;
  test::yields = {};
  while (calls++ < kMost && test::yields.taken + test::yields.vain == 0) {
    in_vain += fi_barrier(m.node.ep(), fi_mc_addr(mc.get()), &op) == -FI_EAGAIN;
  }
  EXPECT_GT(in_vain, 0u);
  EXPECT_LT(calls, kMost);
}

}  // namespace
}  // namespace aperture::doors
