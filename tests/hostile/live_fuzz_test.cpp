// Garbage in shared words, hostile input 38 on living processes: attackers write at random into all
// that they share with a victim, while an honest peer passes bytes with it. Nobody crashes, no byte
// of the honest peer is wrong, nothing beside a buffer is touched, and it goes on.
//
// APERTURE_LIVE_FUZZ_SECONDS for each case (default 5). Neither the honest peer nor the victim's
// own calls stand still for 250 ms; what their threads waited for a processor, and the machine for
// one of its host's, is not counted, since a busy machine fails no build. The seed decides what is
// written; what it meets differs from run to run, so that a failure may take several runs with its
// seed, or a longer one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <optional>
#include <random>

#include "doors/nursery.hpp"
#include "doors/whereabouts.hpp"
#include "hostile/live.hpp"

namespace aperture::hostile {
namespace {

using doors::Child;
using doors::ChildOptions;
using doors::Seedling;

constexpr int64_t kStandstill_ns = 250'000'000;
constexpr int kWait_ms = 30000;
constexpr uid_t kUser = 4711;

struct Case {
  const char* name;
  const char* door;
  ChildOptions good;      // victim and honest peer
  const char* bad = "0";  // user of the attackers
  bool needs_root = false;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  // same user, direct path; same user that may not trace; another user
  all.push_back({"fabric_direct", "fabric", {}});
  all.push_back({"fabric_untraced", "fabric", {.not_dumpable = true, .uid = kUser}, "4711", true});
  all.push_back({"fabric_stranger", "fabric", {}, "4712", true});
  all.push_back({"verbs_direct", "verbs", {}});
  all.push_back({"verbs_untraced", "verbs", {.not_dumpable = true, .uid = kUser}, "4711", true});
  all.push_back({"verbs_stranger", "verbs", {}, "4712", true});
  return all;
}

struct Attacker {
  uint64_t number;
  std::unique_ptr<Seedling> process;
  int64_t leaves_ns;
  bool politely;
};

class LiveFuzz : public testing::TestWithParam<Case> {
 protected:
  std::string role(const char* kind) const { return std::string(GetParam().door) + "_" + kind; }
  void introduce_honest();
  void let_in();
  void look_after();
  void send_away(Attacker attacker);
  // What a child says at the end; its death is a failure.
  Report report_of(Child& child, const char* who);
  void expect_end(Child& child, const char* who);

  doors::Nursery nursery_{std::string(GetParam().door) + "_nursery"};
  Child victim_{std::string(GetParam().door) + "_victim", GetParam().good};
  Child honest_{std::string(GetParam().door) + "_honest", GetParam().good};
  std::mt19937_64 random_{doors::run_seed()};
  std::deque<Attacker> attackers_;
  uint64_t let_in_ = 0, struck_ = 0, strokes_ = 0;
};

void LiveFuzz::introduce_honest() {
  Order order{.kind = Order::Kind::admit_honest};
  ASSERT_TRUE(honest_.control().get(&order.introduction, kWait_ms));
  ASSERT_TRUE(victim_.control().put(order));
  Introduction victim;
  ASSERT_TRUE(victim_.control().get(&victim, kWait_ms));
  ASSERT_TRUE(honest_.control().put(victim));
}

void LiveFuzz::let_in() {
  const std::string its_role = role("attacker");
  Attacker attacker{++let_in_,
                    std::unique_ptr<Seedling>(new Seedling(
                        nursery_.start(its_role.c_str(), "APERTURE_TEST_UID", GetParam().bad))),
                    0, random_() % 4 == 0};
  Order order{.kind = Order::Kind::admit_attacker, .who = attacker.number};
  ASSERT_TRUE(attacker.process->control().get(&order.introduction, kWait_ms))
      << "attacker " << attacker.number << " did not start, "
      << doors::whereabouts(attacker.process->pid());
  ASSERT_TRUE(victim_.control().put(order));
  Target target{.seed = random_()};
  ASSERT_TRUE(victim_.control().get(&target.victim, kWait_ms)) << "the victim has ended";
  ASSERT_TRUE(attacker.process->control().put(target));
  // some are gone before they have done much
  attacker.leaves_ns = doors::now_ns() + static_cast<int64_t>(random_() % 400) * 1'000'000;
  attackers_.push_back(std::move(attacker));
}

void LiveFuzz::send_away(Attacker attacker) {
  doors::Control& control = attacker.process->control();
  uint64_t struck = 0;
  bool alive = true;
  if (control.ready()) {
    alive = control.get(&struck, 0);
    struck_ += struck;
  }
  // its own library meets the same garbage, and must not end it either
  EXPECT_TRUE(alive) << "attacker " << attacker.number << " has crashed";
  if (alive && attacker.politely && control.put('x')) {
    Report report;
    if (struck == 0 && control.get(&struck, 1000)) struck_ += struck;
    if (control.get(&report, 1000)) strokes_ += report.strokes;
  }
  attacker.process->kill_now();
  ASSERT_TRUE(victim_.control().put(Order{.kind = Order::Kind::dismiss, .who = attacker.number}));
}

void LiveFuzz::look_after() {
  if (attackers_.size() < 2) {
    ASSERT_NO_FATAL_FAILURE(let_in());
  }
  usleep(2000);
  ASSERT_FALSE(victim_.control().ready()) << "the victim has ended";
  ASSERT_FALSE(honest_.control().ready()) << "the honest peer has ended";
  if (doors::now_ns() < attackers_.front().leaves_ns) return;
  Attacker first = std::move(attackers_.front());
  attackers_.pop_front();
  send_away(std::move(first));
}

Report LiveFuzz::report_of(Child& child, const char* who) {
  Report report;
  if (!child.control().get(&report, kWait_ms)) report.fail("it said nothing");
  EXPECT_TRUE(report.ok()) << who << ": " << report.trouble;
  return report;
}

void LiveFuzz::expect_end(Child& child, const char* who) {
  const int status = child.join(kWait_ms);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << who << ": status " << std::hex << status;
}

TEST_P(LiveFuzz, hostile_38_garbage_in_shared_words_harms_its_writer_alone) {
  if (GetParam().needs_root && ::geteuid() != 0) GTEST_SKIP() << "needs processes of other users";
  const char* text = std::getenv("APERTURE_LIVE_FUZZ_SECONDS");
  const double seconds = text != nullptr ? std::atof(text) : 5;
  introduce_honest();
  const int64_t end = doors::now_ns() + static_cast<int64_t>(seconds * 1e9);
  // where processors are short, the first attackers are long in coming
  const int64_t patience = end + int64_t{kWait_ms} * 1'000'000;
  while ((doors::now_ns() < end || (struck_ == 0 && doors::now_ns() < patience)) && !HasFailure()) {
    look_after();
  }
  while (!attackers_.empty()) {
    Attacker first = std::move(attackers_.front());
    attackers_.pop_front();
    if (!HasFatalFailure()) send_away(std::move(first));
  }
  honest_.control().put(uint64_t{0});
  const Report honest = report_of(honest_, "the honest peer");
  victim_.control().put(Order{.kind = Order::Kind::stop});
  const Report victim = report_of(victim_, "the victim");
  expect_end(victim_, "the victim");
  honest_.control().put(uint64_t{0});
  expect_end(honest_, "the honest peer");
  EXPECT_LT(honest.standstill_ns, kStandstill_ns) << "ns: of the honest peer";
  EXPECT_LT(victim.standstill_ns, kStandstill_ns) << "ns: of the victim's calls";
  EXPECT_GT(honest.rounds, 0u);
  EXPECT_GT(struck_, 0u) << "no attacker has shared anything with the victim";
  const auto ms = [](int64_t ns) { return static_cast<double>(ns) / 1e6; };
  std::printf(
      "%s: %llu attackers, %llu of them wrote (%llu strokes of those that say); honest: "
      "%llu rounds, %.1f MB, longest %.1f ms (%.1f without waiting for a processor); longest round "
      "of the victim's calls %.1f ms (%.1f)\n",
      GetParam().name, static_cast<unsigned long long>(let_in_),
      static_cast<unsigned long long>(struck_), static_cast<unsigned long long>(strokes_),
      static_cast<unsigned long long>(honest.rounds), static_cast<double>(honest.bytes) / 1e6,
      ms(honest.worst_ns), ms(honest.standstill_ns), ms(victim.worst_ns), ms(victim.standstill_ns));
  for (const Report* one : {&honest, &victim}) {
    if (one->ran_ns == 0) continue;
    std::printf("  %s, longest but for waiting: ran %.1f ms, waited %.1f, stolen %.1f\n",
                one == &honest ? "honest" : "victim", ms(one->ran_ns), ms(one->waited_ns),
                ms(one->stolen_ns));
    if (one->seen[0] != '\0') std::printf("    seen: %s\n", one->seen);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LiveFuzz, testing::ValuesIn(cases()), doors::kByName);

}  // namespace
}  // namespace aperture::hostile
