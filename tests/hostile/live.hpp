// The parts of the live fuzz (live_fuzz_test.cpp) that are the same at both doors: what the three
// kinds of processes tell each other through the test, and what an honest one does.
//
//   victim    serves everybody: sends back what the honest peer sends, has a region for it and one
//             for attackers, and does to each attacker what a program does to a peer
//   honest    passes bytes with the victim, and knows what each of them must be
//   attacker  is an ordinary program at the same door; at the same time its Scribbler writes
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "doors/child.hpp"
#include "doors/region.hpp"
#include "hostile/lookout.hpp"

namespace aperture::hostile {

inline constexpr size_t kLongest = 300'000;  // of a message: some are offered, not sent
inline constexpr size_t kRegionBytes = size_t{1} << 20;
inline constexpr int64_t kPatience_ns = 20'000'000'000;  // of anybody, for anything

// How to reach a process: its endpoint by one door, and its memory.
struct Introduction {
  doors::Name name;         // libfabric
  uint32_t queue_pair = 0;  // verbs
  doors::Remote remote;
  pid_t pid = ::getpid();
};

// To a victim.
struct Order {
  enum class Kind : uint32_t { admit_honest, admit_attacker, dismiss, stop } kind = Kind::stop;
  uint64_t who = 0;  // of an attacker: its number
  Introduction introduction;
};

// To an attacker.
struct Target {
  uint64_t seed = 0;
  Introduction victim;
};

// How it went, from a victim, an honest peer, or an attacker that has been told to leave.
struct Report {
  uint64_t rounds = 0;
  uint64_t bytes = 0;
  uint64_t strokes = 0;
  int64_t worst_ns = 0;       // the longest round, or the longest call
  int64_t standstill_ns = 0;  // the same without what Stopwatch leaves out
  // Of the latter: what the threads had of processors meanwhile, and what the machine had not.
  int64_t ran_ns = 0, waited_ns = 0, stolen_ns = 0;
  char trouble[240] = {};
  char seen[1000] = {};  // what Lookout saw during the latter

  bool ok() const { return trouble[0] == '\0'; }
  // Only the first one counts.
  void fail(const std::string& what) {
    if (ok()) std::snprintf(trouble, sizeof trouble, "%s", what.c_str());
  }
};

// What an honest peer can do at its victim, whatever the door. Each returns what went wrong, "" if
// nothing has.
class Connection {
 public:
  virtual ~Connection() = default;
  virtual std::string send(std::span<const uint8_t> bytes) = 0;
  // What the victim sends.
  virtual std::string receive(std::span<uint8_t> bytes) = 0;
  virtual std::string write(size_t offset, std::span<const uint8_t> bytes) = 0;
  virtual std::string read(size_t offset, std::span<uint8_t> bytes) = 0;
  virtual std::string add(size_t offset, uint64_t value, uint64_t* before) = 0;
};

// Measures what takes long, and how long of it the threads of those processes did not wait for a
// processor, nor the machine for one of the host's: a machine that is busy must not look like a
// process that stands still.
class Stopwatch {
 public:
  explicit Stopwatch(std::vector<pid_t> processes) : processes_(std::move(processes)) {}
  void begin();
  void end(Report& report);

 private:
  // Since these processes began, and since the machine did.
  struct Spent {
    int64_t ran_ns = 0, waited_ns = 0, stolen_ns = 0;
  };
  Spent spent() const;

  std::vector<pid_t> processes_;
  int64_t began_ns_ = 0;
  int64_t noted_at_ns_ = 0;  // shortly before began_ns_
  Spent noted_;              // then
};

// Passes bytes until something comes from the test, and looks at each of them. Tells how it went,
// and stays until it is told to leave: the victim has receives for it. False: the test is gone.
bool be_honest(Connection& connection, doors::Control& control, uint64_t seed, pid_t victim);

// Sleeps, polls and stays away by turns, and measures how long the calls take that it makes.
class Moods {
 public:
  explicit Moods(uint64_t seed) : seed_(seed) {}
  enum class Mood { polls, sleeps, away };
  Mood mood();
  // Between two of these lies one round of calls that do not wait.
  void begin() {
    stopwatch_.begin();
    lookout_.begin(doors::now_ns());
  }
  void end(Report& report);

 private:
  uint64_t seed_;
  int64_t until_ns_ = 0;
  Stopwatch stopwatch_{{::getpid()}};
  Lookout lookout_;
  Mood mood_ = Mood::polls;
};

}  // namespace aperture::hostile
