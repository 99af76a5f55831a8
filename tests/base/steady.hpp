// What goes on steadily costs few heavy barriers, whatever it is: what the tests of both doors have
// in common. Each process of a case does its part for a second, and counts its own barriers.
#pragma once

#include <gtest/gtest.h>

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
};

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
    }
    return now - counts_from_ns_ < kCountedNs;
  }
  void did(uint64_t operations) { operations_ += operations; }
  // As of now.
  Counted counted() const {
    if (counts_from_ns_ == 0) return {};
    return {heavy_barriers.load() - barriers_before_, operations_ - operations_before_,
            monotonic_ns() - counts_from_ns_};
  }

 private:
  const uint64_t settles_after_;
  const int64_t begun_ns_ = monotonic_ns();
  int64_t counts_from_ns_ = 0;
  uint64_t barriers_before_ = 0;
  uint64_t operations_before_ = 0;
  uint64_t operations_ = 0;
};

inline void compute_a_millisecond() {
  const int64_t until_ns = monotonic_ns() + 1'000'000;
  volatile uint64_t sum = 0;
  while (monotonic_ns() < until_ns) sum = sum + 1;
}

// Of one party of a case: at most 1,000 heavy barriers a second. It has to do something.
inline bool has_few_barriers(uint32_t party, const Counted& counted) {
  constexpr uint64_t kMostBarriers = 1000, kLeastOperations = 50;
  const double second = static_cast<double>(counted.ns) / 1e9;
  std::printf("party %u: %.0f heavy barriers and %.0f operations a second\n", party,
              static_cast<double>(counted.barriers) / second,
              static_cast<double>(counted.operations) / second);
  EXPECT_GE(counted.operations, kLeastOperations);
  return counted.barriers * 1'000'000'000 <= kMostBarriers * static_cast<uint64_t>(counted.ns);
}

// Whoever has no core is taken for away, and rightly: on a machine that others keep busy that costs
// barriers. What costs them by itself does so each time.
template <typename Second>
void expect_few_barriers(const SteadyCase& c, Second&& one_second) {
  constexpr int kTries = 6;
  for (int i = 0; i < kTries; ++i) {
    if (one_second() || !c.judged() || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "more than 1,000 heavy barriers a second, " << kTries << " times in a row";
}

}  // namespace aperture::test
