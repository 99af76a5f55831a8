// What goes on steadily costs few heavy barriers, whatever it is: what the tests of both doors have
// in common. Each process of a case does its part for a second, and counts its own barriers.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>

#include "base/counted_calls.hpp"

namespace aperture::test {

enum class Doing : uint32_t {
  writes,
  reads,
  begins,  // a message at a time, each of which is answered by the other one
  answers,
  polls,
  computes,  // without a call
  sleeps,    // in the kernel
};
inline bool stands_by(Doing doing) {
  return doing == Doing::polls || doing == Doing::computes || doing == Doing::sleeps;
}

struct SteadyCase {
  const char* name;
  Doing first, others;
  uint32_t size;
  bool in_poll = false;  // who waits for a message does so in poll(2)
  uint32_t parties = 2;
  int cores = 0;  // which all keep to; 0: they do not
  // Where there are more processes than cores, each that is taken off its core is taken for away,
  // and rightly: how often depends on the scheduler, and is shown only.
  bool judged() const { return cores == 0; }
};
inline constexpr uint32_t kMostPeers = 3;  // of one party
inline constexpr uint32_t kWindow = 32;    // accesses of one under way at once

inline const auto kSteadyCases = testing::Values(
    SteadyCase{"both_write_512_bytes", Doing::writes, Doing::writes, 512},
    SteadyCase{"one_reads_from_one_that_polls", Doing::reads, Doing::polls, 1 << 20},
    SteadyCase{"one_reads_from_one_that_sleeps", Doing::reads, Doing::sleeps, 1 << 20},
    SteadyCase{"both_answer", Doing::begins, Doing::answers, 64},
    SteadyCase{"both_answer_and_sleep", Doing::begins, Doing::answers, 64, true},
    SteadyCase{"one_writes_8_bytes_to_one_that_sleeps", Doing::writes, Doing::sleeps, 8},
    SteadyCase{"one_writes_512_bytes_to_one_that_computes", Doing::writes, Doing::computes, 512},
    SteadyCase{"one_writes_64_kib_to_one_that_sleeps", Doing::writes, Doing::sleeps, 64 << 10},
    SteadyCase{"four_write_to_each_other_on_two_cores", Doing::writes, Doing::writes, 4096, false,
               4, 2});

// What came before it had settled is left out.
struct Counted {
  uint64_t barriers = 0;
  uint64_t operations = 0;
  int64_t ns = 0;
  int64_t waited_ns = 0;  // for a core, which others had
};

// How long this process's first thread has waited for a core; 0 where the kernel does not say.
inline int64_t waited_ns() {
  long long ran = 0, waited = 0;
  std::FILE* from = std::fopen("/proc/self/schedstat", "re");
  if (from == nullptr) return 0;
  if (std::fscanf(from, "%lld %lld", &ran, &waited) != 2) waited = 0;
  std::fclose(from);
  return waited;
}

// The work of one side, which asks goes_on() before each step.
class SteadyState {
 public:
  static constexpr int64_t kSettlingNs = 200'000'000;
  static constexpr uint64_t kSettlingOperations = 1000;  // of work that is counted in messages
  static constexpr int64_t kCountedNs = 1'000'000'000;
  static constexpr int64_t kLongestNs = 20'000'000'000;  // to settle

  explicit SteadyState(uint64_t settling_operations = 0) : settles_after_(settling_operations) {}

  bool goes_on() {
    const int64_t now = monotonic_ns();
    if (counts_from_ns_ == 0) {
      const bool settled = now - begun_ns_ >= kSettlingNs && operations_ >= settles_after_;
      if (!settled) return now - begun_ns_ < kLongestNs;
      counts_from_ns_ = now;
      barriers_before_ = heavy_barriers.load();
      operations_before_ = operations_;
      waited_before_ns_ = waited_ns();
    }
    return now - counts_from_ns_ < kCountedNs;
  }
  void did(uint64_t operations) { operations_ += operations; }
  // As of now.
  Counted counted() const {
    if (counts_from_ns_ == 0) return {};
    return {heavy_barriers.load() - barriers_before_, operations_ - operations_before_,
            monotonic_ns() - counts_from_ns_, waited_ns() - waited_before_ns_};
  }

 private:
  const uint64_t settles_after_;
  const int64_t begun_ns_ = monotonic_ns();
  int64_t counts_from_ns_ = 0;
  uint64_t barriers_before_ = 0;
  uint64_t operations_before_ = 0;
  uint64_t operations_ = 0;
  int64_t waited_before_ns_ = 0;
};

inline void compute_a_millisecond() {
  const int64_t until_ns = monotonic_ns() + 1'000'000;
  volatile uint64_t sum = 0;
  while (monotonic_ns() < until_ns) sum = sum + 1;
}

// What a party does. Party is of one door:
//   bool post_next()      the next access; false: no room
//   uint32_t take()       polls; so many of its accesses have completed
//   void post_receive()   for one message of its peer's
//   void send(bool last)  a message that says whether it is the last one
//   bool message()        waits for one; what it says
//   bool is_called()      the others are done
template <typename Party>
class SteadyWork {
 public:
  SteadyWork(Party& party, uint32_t size) : party_(party), size_(size) {}

  Counted run(Doing doing) {
    switch (doing) {
      case Doing::writes:
      case Doing::reads: return access();
      case Doing::begins: return begin();
      case Doing::answers: return answer();
      default: return stand_by(doing);
    }
  }

 private:
  Counted access() {
    const uint32_t window = size_ >= 1 << 20 ? 4 : kWindow;
    uint32_t under_way = 0;
    SteadyState state;
    while (state.goes_on()) {
      while (under_way < window && party_.post_next()) ++under_way;
      const uint32_t n = party_.take();
      under_way -= n;
      state.did(n);
    }
    const Counted counted = state.counted();
    while (under_way != 0 && !testing::Test::HasFailure()) under_way -= party_.take();
    return counted;
  }
  // Its operations are its steps: it has none of its own.
  Counted stand_by(Doing doing) {
    SteadyState state;
    while (state.goes_on() || !party_.is_called()) {
      if (doing == Doing::polls) {
        for (int i = 0; i < 64; ++i) (void)party_.take();
      } else if (doing == Doing::sleeps) {
        ::usleep(5000);
      } else {
        compute_a_millisecond();
      }
      state.did(1);
    }
    return state.counted();
  }
  Counted begin() {
    SteadyState state(SteadyState::kSettlingOperations);
    for (bool last = false; !last;) {
      last = !state.goes_on();
      party_.post_receive();
      party_.send(last);
      (void)party_.message();
      state.did(1);
    }
    return state.counted();
  }
  Counted answer() {
    SteadyState state(SteadyState::kSettlingOperations);
    party_.post_receive();
    for (bool last = false; !last;) {
      last = party_.message();
      (void)state.goes_on();
      if (!last) party_.post_receive();
      party_.send(last);
      state.did(1);
    }
    return state.counted();
  }

  Party& party_;
  const uint32_t size_;
};

// Of all parties of a case.
struct SecondOfAll {
  bool few = true;          // at most 1,000 heavy barriers a second each
  bool undisturbed = true;  // each had its core
};

// Adds one party, which has to do something.
inline void judge(uint32_t party, const Counted& counted, SecondOfAll& all) {
  constexpr uint64_t kMostBarriers = 1000, kLeastOperations = 50;
  constexpr int64_t kPartToWait = 50;  // of the time that is counted
  const double second = static_cast<double>(counted.ns) / 1e9;
  std::printf(
      "party %u: %.0f heavy barriers and %.0f operations a second, %.0f ms without a core\n", party,
      static_cast<double>(counted.barriers) / second,
      static_cast<double>(counted.operations) / second,
      static_cast<double>(counted.waited_ns) / 1e6);
  EXPECT_GE(counted.operations, kLeastOperations);
  all.few = all.few &&
            counted.barriers * 1'000'000'000 <= kMostBarriers * static_cast<uint64_t>(counted.ns);
  all.undisturbed = all.undisturbed && counted.waited_ns <= counted.ns / kPartToWait;
}

// Whoever has no core is taken for away, and rightly: on a machine that others keep busy that costs
// barriers. What costs them by itself does so in each second in which nobody is disturbed.
template <typename Second>
void expect_few_barriers(const SteadyCase& c, Second&& one_second) {
  constexpr int kTries = 6;
  int judged = 0;
  for (int i = 0; i < kTries; ++i) {
    const SecondOfAll all = one_second();
    if (all.few || !c.judged() || testing::Test::HasFailure()) return;
    judged += all.undisturbed;
  }
  if (judged == 0) GTEST_SKIP() << "others keep this machine busy: nobody had a core for a second";
  ADD_FAILURE() << "more than 1,000 heavy barriers a second, " << kTries << " times in a row, "
                << judged << " of them with a core for each";
}

}  // namespace aperture::test
