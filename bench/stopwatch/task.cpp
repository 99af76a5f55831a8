// The director: verification, warm-up, timing.
#include "stopwatch/task.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/gate.hpp"
#include "stopwatch/tally.hpp"

namespace aperture::bench {

namespace {

enum class Order : uint32_t { greet, verify, run, drain, end };

struct Command {
  Order order;
  uint32_t padding;
  uint64_t argument;
};

constexpr size_t kMostSamples = 1u << 21;
// A measure is cut into this many parts; more are taken while time is left, because the pace was
// found in a moment that another process may have disturbed.
constexpr int kParts = 8;
constexpr double kTurns = 4;  // as long as one pair alone
constexpr size_t kFewestValues = 4, kMostValues = 64;

class Leader {
 public:
  Leader(Task& task, Side& side, const Plan& plan) : task_(task), side_(side), burst_(plan.burst) {}

  void greet() {
    command(Order::greet, 0);
    task_.greet();
  }

  void verify(uint64_t seed) {
    command(Order::verify, seed);
    task_.verify(seed, side_.channel);
  }

  // Seconds for count operations, without the pauses between bursts.
  double run(uint64_t count, Samples& samples) {
    uint64_t ns = 0;
    const uint64_t most = burst_ != 0 ? burst_ : count;
    for (uint64_t left = count; left > 0;) {
      const uint64_t now = std::min(left, most);
      command(Order::run, now);
      const uint64_t start = now_ns();
      task_.initiate(now, samples);
      ns += now_ns() - start;
      left -= now;
      if (burst_ != 0) drain();
    }
    return static_cast<double>(ns) * 1e-9;
  }

  void end() {
    command(Order::end, 0);
    await_all();
  }

 private:
  void drain() {
    command(Order::drain, 0);
    await_all();
  }

  void await_all() {
    side_.channel.receive_word();
    for (Channel& other : side_.others) other.receive_word();
  }

  void command(Order order, uint64_t argument) {
    const Command c{order, 0, argument};
    side_.channel.send(&c, sizeof c);
    for (Channel& other : side_.others) other.send(&c, sizeof c);
  }

  Task& task_;
  Side& side_;
  const uint64_t burst_;
};

uint64_t rounded(double count, uint64_t granule) {
  const auto n = static_cast<uint64_t>(std::max(count, 1.0));
  return std::max<uint64_t>(1, n / granule) * granule;
}

// Doubles until a run is long enough to tell the pace; returns seconds per operation.
double find_pace(Leader& leader, const Plan& plan, uint64_t granule) {
  Samples unused(0);
  for (uint64_t count = granule;; count *= 2) {
    const double seconds = leader.run(count, unused);
    if (seconds >= std::min(0.05, plan.extent.seconds / 8))
      return seconds / static_cast<double>(count);
  }
}

Row time_latency(Leader& leader, const Plan& plan, uint64_t count) {
  Samples samples(kMostSamples);
  const uint64_t until = now_ns() + static_cast<uint64_t>(plan.extent.seconds * 1e9);
  do {
    leader.run(count, samples);
  } while (plan.extent.count == 0 && !samples.full() && now_ns() < until);
  Row row = latency_row(samples, plan.scale);
  // where a slow one in a block would be the block's mean
  if (plan.single) row.value = row.spread.p50;
  return row;
}

Unit unit_of(const Plan& plan) noexcept {
  return plan.bytes_each != 0 ? Unit::gigabytes_per_second : Unit::millions_per_second;
}

double each_of(const Plan& plan) noexcept {
  return (plan.bytes_each != 0 ? plan.bytes_each * 1e-9 : 1e-6) * plan.initiators;
}

Row time_rate(Leader& leader, const Plan& plan, uint64_t count) {
  Samples unused(0);
  std::vector<double> values;
  const double each = each_of(plan);
  const uint64_t until = now_ns() + static_cast<uint64_t>(plan.extent.seconds * 1e9);
  do {
    values.push_back(static_cast<double>(count) * each / leader.run(count, unused));
  } while (plan.extent.count == 0 &&
           (values.size() < kFewestValues || (values.size() < kMostValues && now_ns() < until)));
  return rate_row(unit_of(plan), values);
}

// One value, of the interval that all pairs have in common: from the moment at which the last was
// ready to the one at which the last had its time. Until then each goes on, so that nobody has more
// of a core at the end. Shares of a core come in turns of milliseconds, so it is a longer interval.
Row time_together(Leader& leader, const Plan& plan, uint64_t count, Gate& gate) {
  Samples unused(0);
  const bool counted = plan.extent.count != 0;
  const uint64_t start = gate.pass();
  const uint64_t until = start + static_cast<uint64_t>(kTurns * plan.extent.seconds * 1e9);
  Tally tally(start);
  uint64_t end = 0;
  for (bool left = false; end == 0; end = counted ? gate.await_closed() : gate.closed_ns()) {
    leader.run(count, unused);
    const uint64_t now = now_ns();
    tally.add(count, now);
    if (left || (!counted && now < until)) continue;
    gate.leave();
    left = true;
  }
  return rate_row(unit_of(plan),
                  {tally.at(end) * each_of(plan) / (static_cast<double>(end - start) * 1e-9)});
}

Row lead(Task& task, Side& side, const Plan& plan) {
  Leader leader(task, side, plan);
  leader.greet();
  leader.verify(1);
  uint64_t count = rounded(static_cast<double>(plan.extent.count), task.granule());
  if (plan.extent.count == 0) {
    const double pace = find_pace(leader, plan, task.granule());
    const double wanted = plan.extent.seconds / kParts / pace;
    count = rounded(plan.latency ? std::max(wanted, 32.0) : wanted, task.granule());
  }
  Row row = side.gate != nullptr ? time_together(leader, plan, count, *side.gate)
            : plan.latency       ? time_latency(leader, plan, count)
                                 : time_rate(leader, plan, count);
  leader.verify(2);
  leader.end();
  row.note = task.note();
  return row;
}

Command next_command(Task& task, Channel& channel, Target target) {
  Command c{};
  const auto progress = [&task](int calls) { task.progress(calls); };
  if (await_datagram(channel, target, &c, sizeof c, progress) != sizeof c) {
    throw Failure("a torn command");
  }
  return c;
}

void follow(Task& task, Side& side) {
  Target target = Target::polling;
  while (true) {
    const Command c = next_command(task, side.channel, target);
    if (c.order != Order::greet) target = task.target();
    switch (c.order) {
      case Order::greet: break;
      case Order::verify: task.verify(c.argument, side.channel); break;
      case Order::run: task.respond(c.argument); break;
      case Order::drain:
        task.progress(kCallsBetweenLooks);
        side.channel.send_word(0);
        break;
      case Order::end: side.channel.send_word(0); return;
    }
  }
}

}  // namespace

size_t Task::await_datagram(Channel& channel, void* data, size_t len) {
  return bench::await_datagram(channel, target_, data, len, [this](int calls) { progress(calls); });
}

Row direct(Task& task, Side& side, const Plan& plan) {
  if (side.rank == 0) return lead(task, side, plan);
  follow(task, side);
  return Row{};
}

}  // namespace aperture::bench
