// What goes on steadily costs few heavy barriers, whatever it is: whoever passes one interrupts
// every core on which a peer of anybody's runs. Two processes, or four, do the same for a second
// and count their own calls of membarrier(2).
#include <gtest/gtest.h>
#include <poll.h>

#include "base/steady.hpp"
#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

using test::Counted;
using test::Doing;
using test::kWindow;

constexpr size_t kRegion = 4 * kMiB;
constexpr int kPatience_ms = 60000;

struct Told {
  Name name;
  Remote remote;
};
struct Plan {
  Doing doing;
  uint32_t size;
  bool in_poll;
  uint32_t peers;
  Told others[test::kMostPeers];
};

// One process of a case.
class Party {
 public:
  explicit Party(Control& conductor)
      : conductor_(conductor),
        node_({.caps = FI_MSG | FI_RMA, .wait = FI_WAIT_FD}),
        region_(node_, kRegion),
        local_(kRegion) {}
  Told told() { return {node_.name(), region_.remote()}; }

  Counted run(const Plan& plan) {
    plan_ = plan;
    for (uint32_t i = 0; i < plan.peers; ++i) to_[i] = node_.insert(plan.others[i].name);
    return test::SteadyWork(*this, plan.size).run(plan.doing);
  }
  // Makes progress until there is something to hear.
  void linger() {
    while (!is_called()) {
      for (int i = 0; i < 64; ++i) take();
    }
  }
  bool is_called() { return conductor_.ready(); }

  uint32_t take() {
    fi_cq_tagged_entry entries[kWindow];
    const ssize_t n = fi_cq_read(node_.cq(), entries, kWindow);
    if (n == -FI_EAGAIN) return 0;
    if (n < 0) throw DoorError("fi_cq_read", n);
    return static_cast<uint32_t>(n);
  }
  bool post_next() {
    const uint32_t peer = next_ % plan_.peers;
    const Remote& to = plan_.others[peer].remote;
    const uint64_t at = uint64_t{next_} * plan_.size % kRegion;
    const auto call = [&](auto post) {
      return post(node_.ep(), local_.data() + at, plan_.size, nullptr, to_[peer], to.base + at,
                  to.key, &ops_[next_ % kWindow]);
    };
    const ssize_t rc = plan_.doing == Doing::writes ? call(fi_write) : call(fi_read);
    if (rc == -FI_EAGAIN) return false;
    if (rc != 0) throw DoorError("fi_write or fi_read", rc);
    ++next_;
    return true;
  }
  void post_receive() {
    DOOR(fi_recv(node_.ep(), room_, sizeof room_, nullptr, FI_ADDR_UNSPEC, &receive_));
  }
  void send(bool last) {
    const uint8_t text[sizeof room_] = {last};
    const int64_t rc = post([&] { return fi_inject(node_.ep(), text, sizeof text, to_[0]); });
    check(rc, "fi_inject");
  }
  bool message() {
    while (take() == 0) {
      if (plan_.in_poll) sleep();
    }
    return room_[0] != 0;
  }

 private:
  void sleep() {
    fid* queue[] = {&node_.cq()->fid};
    if (fi_trywait(node_.fabric(), queue, 1) != 0) return;
    pollfd readable{-1, POLLIN, 0};
    DOOR(fi_control(&node_.cq()->fid, FI_GETWAIT, &readable.fd));
    if (::poll(&readable, 1, kPatience_ms) != 1) throw DoorError("nobody wakes it", 0);
  }

  Control& conductor_;
  Node node_;
  Region region_;
  std::vector<uint8_t> local_;
  Plan plan_{};
  fi_addr_t to_[test::kMostPeers] = {};
  uint32_t next_ = 0;
  Op ops_[kWindow];
  Op receive_;
  uint8_t room_[64] = {};
};

}  // namespace

// Who stands by is called when the others are done; all are when everybody has counted.
DOOR_ROLE(steady_party) {
  int cores = 0;
  if (!control.get(&cores)) return 1;
  if (cores != 0) test::keep_to_cores(cores);
  Party party(control);
  Plan plan;
  if (!control.put(party.told()) || !control.get(&plan)) return 2;
  const Counted counted = party.run(plan);
  if (test::registrations.load() == 0) return 3;  // then barriers would not be seen, either
  bool called = false;
  if (test::stands_by(plan.doing) && !control.get(&called)) return 4;
  if (!control.put(counted)) return 5;
  party.linger();
  return 0;
}

namespace {

class Steady : public testing::TestWithParam<test::SteadyCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, Steady, test::kSteadyCases, kByName);

// The plan of each: it knows all others.
void give_plans(const test::SteadyCase& c, std::vector<std::unique_ptr<Child>>& parties) {
  std::vector<Told> told(parties.size());
  for (size_t i = 0; i < parties.size(); ++i) {
    ASSERT_TRUE(parties[i]->control().put(c.cores));
  }
  for (size_t i = 0; i < parties.size(); ++i) {
    ASSERT_TRUE(parties[i]->control().get(&told[i], kPatience_ms));
  }
  for (size_t i = 0; i < parties.size(); ++i) {
    Plan plan{i == 0 ? c.first : c.others, c.size, c.in_poll, 0, {}};
    for (size_t other = 0; other < parties.size(); ++other) {
      if (other != i) plan.others[plan.peers++] = told[other];
    }
    ASSERT_TRUE(parties[i]->control().put(plan));
  }
}

void work(const test::SteadyCase& c, test::SecondOfAll& all) {
  std::vector<std::unique_ptr<Child>> parties;
  for (uint32_t i = 0; i < c.parties; ++i) {
    parties.push_back(std::make_unique<Child>("steady_party"));
  }
  ASSERT_NO_FATAL_FAILURE(give_plans(c, parties));
  for (uint32_t i = 0; i < c.parties; ++i) {
    Control& control = parties[i]->control();
    if (i != 0 && stands_by(c.others)) {
      ASSERT_TRUE(control.put(true));
    }
    Counted counted;
    ASSERT_TRUE(control.get(&counted, kPatience_ms));
    test::judge(i, counted, all);
  }
  for (auto& party : parties) EXPECT_TRUE(party->control().put(true));
  for (auto& party : parties) EXPECT_EQ(party->join(), 0);
}

TEST_P(Steady, work_costs_few_heavy_barriers) {
  test::expect_few_barriers(GetParam(), [] {
    test::SecondOfAll all;
    work(GetParam(), all);
    return all;
  });
}

}  // namespace
}  // namespace aperture::doors
