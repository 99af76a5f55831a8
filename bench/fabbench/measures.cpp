// What is measured, at which sizes, and how each measure is set up.
#include "fabbench/measures.hpp"

#include <algorithm>

namespace aperture::bench {

namespace {

constexpr uint64_t kLenientBurst = 128;
constexpr size_t kKiB = 1024, kMiB = 1024 * 1024;

// Enough in flight to hide an acknowledgement, without outgrowing what a queue usually holds.
size_t window_of(size_t size_bytes) {
  if (size_bytes <= 4 * kKiB) return 64;
  if (size_bytes <= 64 * kKiB) return 32;
  return size_bytes <= kMiB ? 16 : 8;
}

void add_two_sided(std::vector<Measure>& all, Matching matching) {
  const bool tagged = matching == Matching::tagged;
  const char* lat = tagged ? "tagged_lat" : "send_lat";
  const char* rate = tagged ? "tagged_rate" : "send_rate";
  const char* bw = tagged ? "tagged_bw" : "send_bw";
  for (const size_t n : {size_t{8}, 4 * kKiB}) {
    all.push_back({lat, n, Pattern::ping_pong, "half a round trip", matching});
  }
  Measure m{rate, 8, Pattern::stream, "messages per second, one way", matching};
  m.window = window_of(8);
  all.push_back(m);
  if (!tagged) {
    m.name = "send_rate_safe";
    m.about = "the same under FI_THREAD_SAFE";
    m.thread_safe = true;
    all.push_back(m);
  }
  for (const size_t n : {64 * kKiB, kMiB, 4 * kMiB}) {
    Measure b{bw, n, Pattern::stream, "bytes per second, one way; buffers reused", matching};
    b.window = window_of(n);
    all.push_back(b);
  }
}

void add_one_sided(std::vector<Measure>& all, Verb verb, Target target) {
  const bool read = verb == Verb::read;
  const bool idle = target == Target::asleep;
  Measure m{};
  m.pattern = Pattern::one_sided;
  m.verb = verb;
  m.target = target;
  m.size_bytes = 8;
  m.about = idle ? "whole operation, target asleep in a system call" : "whole operation";
  if (idle || read) {
    m.name = read ? (idle ? "read_lat_idle" : "read_lat") : "write_lat_idle";
    all.push_back(m);
  }
  m.name = read ? (idle ? "read_bw_idle" : "read_bw") : (idle ? "write_bw_idle" : "write_bw");
  m.about = idle ? "bytes per second, target asleep in a system call" : "bytes per second";
  for (const size_t n : {64 * kKiB, kMiB, 4 * kMiB}) {
    m.size_bytes = n;
    m.window = window_of(n);
    all.push_back(m);
  }
}

Setup setup_of(const Measure& measure, const Setup& base, Rigour rigour) {
  Setup setup = base;
  const bool rma =
      measure.pattern == Pattern::write_ping_pong || measure.pattern == Pattern::one_sided;
  if (rma) {
    setup.caps = FI_MSG | FI_RMA;
  } else {
    setup.caps = measure.matching == Matching::tagged ? FI_TAGGED : FI_MSG;
  }
  setup.delivery_complete = measure.pattern == Pattern::one_sided && measure.verb == Verb::write &&
                            rigour == Rigour::strict;
  setup.threading = measure.thread_safe ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
  return setup;
}

std::unique_ptr<Task> make_task(const Measure& m, const Setup& setup, Side& side) {
  switch (m.pattern) {
    case Pattern::ping_pong: return make_ping_pong(setup, side, m.matching, m.size_bytes);
    case Pattern::stream: return make_stream(setup, side, m.matching, m.size_bytes, m.window);
    case Pattern::steps: return make_steps(setup, side, m.matching, m.size_bytes);
    case Pattern::write_ping_pong: return make_write_ping_pong(setup, side, m.size_bytes);
    case Pattern::one_sided:
      return make_one_sided(setup, side, m.target, m.verb, m.size_bytes, m.window);
  }
  return nullptr;
}

}  // namespace

const std::vector<Measure>& all_measures() {
  static const std::vector<Measure> measures = [] {
    std::vector<Measure> all;
    add_two_sided(all, Matching::plain);
    add_two_sided(all, Matching::tagged);
    all.push_back({"write_lat", 8, Pattern::write_ping_pong,
                   "half a round trip of writes with remote CQ data, both sides polling"});
    for (const Target target : {Target::polling, Target::asleep}) {
      add_one_sided(all, Verb::write, target);
      add_one_sided(all, Verb::read, target);
    }
    for (const Matching matching : {Matching::plain, Matching::tagged}) {
      Measure m{matching == Matching::plain ? "send_steps" : "tagged_steps", 8, Pattern::steps,
                "lockstep ping-pong, for bench/instructions", matching};
      m.hidden = true;
      all.push_back(m);
    }
    return all;
  }();
  return measures;
}

Row take_measure(const Measure& measure, const Setup& base, Side& side, const Extent& extent,
                 Rigour rigour) {
  const Setup setup = setup_of(measure, base, rigour);
  const std::unique_ptr<Task> task = make_task(measure, setup, side);
  Plan plan;
  plan.seconds = extent.seconds;
  plan.count = extent.count;
  plan.latency = measure.window == 1;
  plan.scale = measure.pattern == Pattern::one_sided ? 1.0 : 0.5;
  plan.bytes_each = measure.size_bytes > 64 ? static_cast<double>(measure.size_bytes) : 0;
  if (rigour == Rigour::lenient) plan.burst = std::max(kLenientBurst, measure.window);
  return direct(*task, side, plan);
}

}  // namespace aperture::bench
