// What both sides of a measure do, and the director that times it.
//
// Rank 0 leads: it verifies, warms up, chooses how many operations fill the wanted time, times
// them, verifies again and reports. Rank 1 follows commands; between them it either progresses the
// provider (polling) or sleeps in a read of the channel (asleep), where it makes no call into it.
#pragma once

#include <cstdint>
#include <memory>

#include "stopwatch/pair.hpp"
#include "stopwatch/row.hpp"

namespace aperture::bench {

enum class Target { polling, asleep };
// Who operates on the other's memory in a one-sided measure.
enum class Ways { one, both };

// A look at the channel costs about 30 calls into a provider; this makes it unimportant.
inline constexpr int kCallsBetweenLooks = 4096;

// Has progress(calls) called until something lies in the channel, or sleeps until then.
template <typename Progress>
size_t await_datagram(Channel& channel, Target target, void* data, size_t len,
                      Progress&& progress) {
  if (target == Target::asleep) return channel.receive(data, len);
  size_t got = 0;
  do {
    progress(kCallsBetweenLooks);
  } while (!channel.try_receive(data, len, got));
  return got;
}

class Task {
 public:
  explicit Task(Side& side, Target target = Target::polling)
      : rank_(side.rank), target_(target), channel_(side.channel) {}
  virtual ~Task() = default;

  // Rank 0, once and first, while rank 1 polls whatever the measure: an operation that makes the
  // endpoints meet, so that a sleeping target is asked for nothing but the operation measured.
  virtual void greet() {}

  // Both sides at once: moves data that depends on seed and checks every byte of it.
  virtual void verify(uint64_t seed, Channel& channel) = 0;
  // Rank 0: count operations. A latency task adds one sample for each.
  virtual void initiate(uint64_t count, Samples& samples) = 0;
  // Rank 1's part in initiate(); one-sided measures have none.
  virtual void respond(uint64_t) {}
  // That many calls into what is measured, without taking completions.
  virtual void progress(int calls) = 0;

  virtual uint64_t granule() const { return 1; }  // counts are multiples of this
  virtual std::string note() const { return {}; }

  Target target() const noexcept { return target_; }

 protected:
  // The next datagram on the channel, waited for as the target of this measure waits.
  size_t await_datagram(Channel& channel, void* data, size_t len);
  template <typename T>
  T await_whole(Channel& channel, const char* what) {
    T theirs{};
    Channel::expect_whole(await_datagram(channel, &theirs, sizeof theirs), sizeof theirs, what);
    return theirs;
  }
  uint64_t await_word(Channel& channel) {
    return await_whole<uint64_t>(channel, "word between the sides");
  }

  int rank_;
  Target target_;
  Channel& channel_;
};

struct Extent {
  double seconds = 0.3;
  uint64_t count = 0;  // exactly so many operations instead, when not 0
};

struct Plan {
  Extent extent;            // a count is done in one part; seconds are filled in several
  bool latency = true;      // else a rate: operations or bytes per time
  double scale = 0.5;       // latency: part of an operation that is reported (0.5: one way)
  bool single = false;      // latency: the median of single operations, not of blocks' means
  double bytes_each = 0;    // bandwidth; 0: a message rate
  unsigned initiators = 1;  // sides that do as many operations each
  uint64_t burst = 0;       // most operations before a sleeping target is let poll; 0: never
};

Row direct(Task& task, Side& side, const Plan& plan);

}  // namespace aperture::bench
