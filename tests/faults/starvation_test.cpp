// Two processes pass bytes while all cores belong to others, sixteen to one: nobody is taken for
// dead, and nothing fails.
//
// APERTURE_STARVE_SECONDS for each case (default 1).
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "doors/side.hpp"

namespace aperture::faults {
namespace {

using namespace doors;  // NOLINT: the door's whole vocabulary

constexpr int kSpinners = 16;

// All on one core, this process too: whoever sleeps waits for sixteen others.
class Crowd {
 public:
  Crowd() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
    for (pid_t& spinner : spinners_) {
      spinner = fork();
      if (spinner != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (std::atomic<uint64_t> spins = 0;; ++spins) {
      }
    }
  }
  ~Crowd() {
    for (const pid_t spinner : spinners_) {
      if (spinner <= 0) continue;
      kill(spinner, SIGKILL);
      waitpid(spinner, nullptr, 0);
    }
    sched_setaffinity(0, sizeof before_, &before_);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

 private:
  cpu_set_t before_{};
  pid_t spinners_[kSpinners] = {};
};

class Starved : public testing::TestWithParam<Place> {};

TEST_P(Starved, peers_are_not_taken_for_dead) {
  const char* text = std::getenv("APERTURE_STARVE_SECONDS");
  const double seconds = text != nullptr ? std::atof(text) : 1;
  const Crowd crowd;
  Duo duo = make_duo(GetParam().topology, {.mr_mode = kBasicMr}, child_denying(GetParam().denied));
  const Remote remote = duo.second->region_open(1, 2 * kMiB, kAllAccess, 1);
  const int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
  int64_t worst_ns = 0;
  uint32_t rounds = 0;
  for (const size_t sizes[] = {8, 1000, 100'000, kMiB}; now_ns() < end || rounds < 4; ++rounds) {
    const size_t size = sizes[rounds % 4];
    const uint32_t id = 10 + 2 * rounds;
    const int64_t began = now_ns();
    duo.second->receive(id, size);
    duo.first->send(id, duo.to_second, size, rounds + 1);
    ASSERT_EQ(duo.first->wait(id, 60000).err, 0) << "round " << rounds;
    ASSERT_EQ(duo.second->wait(id, 60000).err, 0) << "round " << rounds;
    EXPECT_TRUE(duo.second->verify(id, size, rounds + 1));
    // the second one does not poll now: the first goes the direct way, or waits for its turn
    duo.second->progress(false);
    ASSERT_EQ(duo.write(size, rounds + 7, remote).err, 0) << "round " << rounds;
    ASSERT_EQ(duo.read(size, remote).err, 0) << "round " << rounds;
    EXPECT_TRUE(duo.first->verify(Duo::kRead, size, rounds + 7));
    duo.second->progress(true);
    duo.first->release(id);
    duo.second->release(id);
    worst_ns = std::max(worst_ns, now_ns() - began);
  }
  std::printf("%s: %u rounds, the longest took %.1f ms\n", GetParam().name, rounds,
              static_cast<double>(worst_ns) / 1e6);
}

INSTANTIATE_TEST_SUITE_P(Places, Starved,
                         testing::Values(Place{"direct", Topology::two_processes},
                                         Place{"denied", Topology::two_processes, true}),
                         kByName);

}  // namespace
}  // namespace aperture::faults
