// The table of an id's life: every state with every input, legal or not.
#include "cm/state.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

namespace aperture::cm {
namespace {

using S = State;
using I = Input;

const std::map<std::pair<S, I>, S>& legal_steps() {
  static const std::map<std::pair<S, I>, S> legal = {
      {{S::idle, I::bind}, S::bound},
      {{S::idle, I::resolve_addr}, S::addr_resolved},
      {{S::idle, I::listen}, S::listening},
      {{S::bound, I::resolve_addr}, S::addr_resolved},
      {{S::bound, I::listen}, S::listening},
      {{S::addr_resolved, I::resolve_route}, S::route_resolved},
      {{S::route_resolved, I::connect}, S::req_sent},
      {{S::route_resolved, I::ask}, S::sidr_sent},
      {{S::req_sent, I::reject}, S::over},
      {{S::req_sent, I::disconnect}, S::req_sent},
      {{S::req_sent, I::rep}, S::rep_received},
      {{S::req_sent, I::rej}, S::over},
      {{S::req_sent, I::lost}, S::over},
      {{S::req_sent, I::expired}, S::over},
      {{S::req_received, I::accept}, S::rep_sent},
      {{S::req_received, I::reject}, S::over},
      {{S::req_received, I::disconnect}, S::req_received},
      {{S::req_received, I::rej}, S::abandoned},
      {{S::req_received, I::lost}, S::abandoned},
      {{S::abandoned, I::accept}, S::over},
      {{S::abandoned, I::reject}, S::over},
      {{S::abandoned, I::disconnect}, S::abandoned},
      {{S::rep_sent, I::establish}, S::established},
      {{S::rep_sent, I::reject}, S::over},
      {{S::rep_sent, I::disconnect}, S::rep_sent},
      {{S::rep_sent, I::rtu}, S::established},
      {{S::rep_sent, I::rej}, S::over},
      {{S::rep_sent, I::dreq}, S::dreq_received},
      {{S::rep_sent, I::lost}, S::over},
      {{S::rep_sent, I::expired}, S::over},
      {{S::rep_received, I::establish}, S::established},
      {{S::rep_received, I::reject}, S::over},
      {{S::rep_received, I::disconnect}, S::rep_received},
      {{S::rep_received, I::rej}, S::over},
      {{S::rep_received, I::lost}, S::over},
      {{S::established, I::disconnect}, S::dreq_sent},
      {{S::established, I::rtu}, S::established},
      {{S::established, I::dreq}, S::dreq_received},
      {{S::established, I::lost}, S::dreq_received},
      {{S::dreq_sent, I::disconnect}, S::dreq_sent},
      {{S::dreq_sent, I::rtu}, S::dreq_sent},
      {{S::dreq_sent, I::dreq}, S::timewait},
      {{S::dreq_sent, I::drep}, S::timewait},
      {{S::dreq_sent, I::lost}, S::timewait},
      {{S::dreq_sent, I::expired}, S::timewait},
      {{S::dreq_received, I::disconnect}, S::timewait},
      {{S::timewait, I::disconnect}, S::timewait},
      {{S::timewait, I::expired}, S::over},
      {{S::over, I::disconnect}, S::over},
      {{S::sidr_sent, I::disconnect}, S::sidr_sent},
      {{S::sidr_sent, I::rep}, S::sidr_done},
      {{S::sidr_sent, I::rej}, S::over},
      {{S::sidr_sent, I::lost}, S::over},
      {{S::sidr_sent, I::expired}, S::over},
      {{S::sidr_received, I::accept}, S::sidr_done},
      {{S::sidr_received, I::reject}, S::over},
      {{S::sidr_received, I::disconnect}, S::sidr_received},
      {{S::sidr_done, I::disconnect}, S::sidr_done},
  };
  return legal;
}

TEST(CmState, every_pair_of_state_and_input) {
  const auto& legal = legal_steps();
  for (size_t s = 0; s < kStates; ++s) {
    for (size_t i = 0; i < kInputs; ++i) {
      const auto now = static_cast<S>(s);
      const auto input = static_cast<I>(i);
      const auto it = legal.find({now, input});
      const auto next = after(now, input);
      EXPECT_EQ(next.has_value(), it != legal.end()) << s << ' ' << i;
      if (next && it != legal.end()) {
        EXPECT_EQ(*next, it->second) << s << ' ' << i;
      }
    }
  }
}

TEST(CmState, no_pair_is_listed_twice) {
  std::set<std::pair<S, I>> seen;
  for (const Transition& t : kTransitions) {
    EXPECT_TRUE(seen.insert({t.from, t.input}).second)
        << static_cast<int>(t.from) << ' ' << static_cast<int>(t.input);
  }
}

TEST(CmState, nothing_leads_out_of_the_end_and_to_no_second_use) {
  for (size_t i = 0; i < kInputs; ++i) {
    const auto next = after(S::over, static_cast<I>(i));
    if (next) {
      EXPECT_EQ(*next, S::over);
    }
  }
  for (size_t s = 0; s < kStates; ++s) {
    for (size_t i = 0; i < kInputs; ++i) {
      EXPECT_NE(after(static_cast<S>(s), static_cast<I>(i)), S::idle);
    }
  }
}

}  // namespace
}  // namespace aperture::cm
