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

class OneSided : public testing::TestWithParam<Setting> {
 protected:
  OneSided() : pair_(GetParam().link) {
    pair_.attach();
    if (GetParam().target == Target::asleep)
      b().qp->set_consumer_state(ring::ConsumerState::asleep);
  }
  Side& a() { return *pair_.a; }
  Side& b() { return *pair_.b; }
  bool target_polls() const { return GetParam().target == Target::polls; }
  // Runs until the initiator has so many completions.
  bool completed(size_t n) {
    return pair_.until([&] { return a().tx_cq.size() >= n; }, true, target_polls());
  }
  void expect_success(uint64_t context, uint64_t len) {
    ASSERT_FALSE(a().tx_cq.empty());
    if (a().tx_cq.error_first()) {
      FAIL() << a().tx_cq.pop_error().sentence;
    }
    EXPECT_EQ(a().tx_cq.front().context, reinterpret_cast<void*>(context));
    EXPECT_EQ(a().tx_cq.front().len, len);
    a().tx_cq.pop();
    EXPECT_TRUE(a().tx_cq.empty());
  }
  // Nothing is left over, and messages still go both ways.
  void expect_all_well() {
    EXPECT_TRUE(pair_.until([&] { return !a().qp->has_pending() && !b().qp->has_pending(); }));
    pair_.settle();
    EXPECT_EQ(a().port.wqes.out(), 0u);
    EXPECT_FALSE(a().qp->broken());
    EXPECT_FALSE(b().qp->broken());
    uint64_t word = 1;
    const iovec iov{&word, sizeof word};
    const size_t before = b().sink.messages.size();
    SendWr wr = send_of(iov, 1);
    wr.completion = false;
    EXPECT_TRUE(a().qp->send(wr));
    EXPECT_TRUE(b().qp->send(wr));
    EXPECT_TRUE(pair_.until(
        [&] { return b().sink.messages.size() == before + 1 && !a().sink.messages.empty(); }));
    EXPECT_TRUE(a().tx_cq.empty());
  }

  Pair pair_;
};

inline const auto kSettings = testing::Values(
    Setting{LinkKind::loopback, Target::polls}, Setting{LinkKind::shm, Target::polls},
    Setting{LinkKind::direct, Target::polls}, Setting{LinkKind::direct, Target::asleep},
    Setting{LinkKind::direct, Target::stopped});

}  // namespace aperture::qp::test
