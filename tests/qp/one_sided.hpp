// The fixture of the tests of one-sided operations: a pair of queue pairs, over a link, with a
// target that behaves in one of three ways.
#pragma once

#include <string>

#include "qp/pair.hpp"

namespace aperture::qp::test {

using protect::Rights;

// How the target behaves: it polls, it sleeps (so a direct link copies by itself), or it has simply
// stopped without saying so (so a direct link claims).
enum class Target { polls, asleep, stopped };

struct Setting {
  LinkKind link;
  Target target;
};

inline std::string setting_name(const testing::TestParamInfo<Setting>& setting) {
  const char* target = setting.param.target == Target::polls    ? "polls"
                       : setting.param.target == Target::asleep ? "asleep"
                                                                : "stopped";
  return std::string(name_of(setting.param.link)) + "_target_" + target;
}

class OneSided : public OnePair<Setting> {
 protected:
  // A target that wants notices hears of every access.
  explicit OneSided(bool wants_notices = false) : OnePair(GetParam().link) {
    if (wants_notices) b().count_accesses();
    pair_.attach();
    fall_asleep();
  }
  // The target, where it is one that sleeps.
  void fall_asleep() {
    if (GetParam().target != Target::asleep) return;
    b().qp->fall_asleep(ring::kUnnumbered);
  }
  bool target_polls() const { return GetParam().target == Target::polls; }
  // Runs until the initiator has so many completions.
  bool completed(size_t n) {
    return pair_.until([&] { return a().tx_cq.size() >= n; }, true,
                       target_polls() || owner_executes_);
  }
  // The next to complete is that one, and the last.
  void expect_success(uint64_t context, uint64_t len, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
    const testing::ScopedTrace trace(file, line, std::to_string(len) + " bytes");
    EXPECT_TRUE(completed(1));
    const Completion c = take(a().tx_cq);
    EXPECT_EQ(c.context, reinterpret_cast<void*>(context));
    EXPECT_EQ(c.len, len);
    EXPECT_TRUE(a().tx_cq.empty());
  }
  // Nothing is left over, and messages still go both ways.
  void expect_all_well() {
    EXPECT_TRUE(pair_.until([&] { return !a().qp->has_pending() && !b().qp->has_pending(); }));
    pair_.settle();
    EXPECT_EQ(a().port.tx.wqes.out(), 0u);
    EXPECT_FALSE(a().qp->broken());
    EXPECT_FALSE(b().qp->broken());
    uint64_t word = 1;
    const iovec iov{&word, sizeof word};
    const size_t before = b().sink.messages.size();
    SendWr wr = send_of(iov, 1);
    wr.completion = false;
    EXPECT_TRUE(a().qp->requester().send(wr));
    EXPECT_TRUE(b().qp->requester().send(wr));
    EXPECT_TRUE(pair_.until(
        [&] { return b().sink.messages.size() == before + 1 && !a().sink.messages.empty(); }));
    EXPECT_TRUE(a().tx_cq.empty());
  }

  // Set where nobody but the owner executes: then it takes part in all settings.
  bool owner_executes_ = false;
};

inline const auto kSettings = testing::Values(
    Setting{LinkKind::loopback, Target::polls}, Setting{LinkKind::shm, Target::polls},
    Setting{LinkKind::direct, Target::polls}, Setting{LinkKind::direct, Target::asleep},
    Setting{LinkKind::direct, Target::stopped});

}  // namespace aperture::qp::test
