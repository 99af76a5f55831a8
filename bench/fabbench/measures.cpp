// What is measured, at which sizes, and how each measure is set up.
#include "fabbench/measures.hpp"

#include <algorithm>

#include "fabbench/atomics.hpp"
#include "fabbench/crowd.hpp"
#include "fabbench/regions.hpp"
#include "harness/crowded.hpp"
#include "harness/threaded.hpp"

namespace aperture::bench {

namespace {

constexpr uint64_t kLenientBurst = 128;
constexpr size_t kKiB = 1024, kMiB = 1024 * 1024;
constexpr size_t kIdlePeers = 256, kIdleProcesses = 32;
constexpr size_t kIdleAccessors = 1000;  // one process each: each might copy
constexpr size_t kMemoryPeers = 64;      // one process each

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
  const size_t at_first = all.size();
  for (const size_t n : {size_t{8}, 4 * kKiB}) {
    all.push_back({lat, n, Pattern::ping_pong, "half a round trip", matching});
  }
  Measure m{rate, 8, Pattern::stream, "messages per second, one way", matching};
  m.window = window_of(8);
  all.push_back(m);
  Measure safe = m;
  safe.thread_safe = true;
  safe.name = tagged ? "tagged_rate_safe" : "send_rate_safe";
  safe.about = "the same under FI_THREAD_SAFE";
  all.push_back(safe);
  safe = all[at_first];
  safe.thread_safe = true;
  safe.name = tagged ? "tagged_lat_safe" : "send_lat_safe";
  safe.about = "half a round trip, under FI_THREAD_SAFE";
  all.push_back(safe);
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

// Sizes whose way one way is no row of its own have one here, for the ratio.
void add_both_ways(std::vector<Measure>& all) {
  for (const Verb verb : {Verb::write, Verb::read}) {
    const bool read = verb == Verb::read;
    for (const size_t n : {size_t{8}, size_t{512}, 4 * kKiB, 64 * kKiB, kMiB}) {
      Measure m{read ? "read_bw" : "write_bw", n, Pattern::one_sided,
                n == 8 ? "operations per second" : "bytes per second"};
      m.verb = verb;
      m.window = window_of(n);
      if (n < 64 * kKiB) all.push_back(m);
      m.name = read ? "read_bw_both" : "write_bw_both";
      m.about = n == 8 ? "operations per second of both sides, each on the other's memory at once"
                       : "bytes per second of both sides, each on the other's memory at once";
      m.ways = Ways::both;
      all.push_back(m);
    }
  }
}

void add_registrations(std::vector<Measure>& all) {
  Measure m{"register_lat", 4 * kKiB, Pattern::registering, "fi_mr_reg and fi_close of one region"};
  all.push_back(m);
  m.name = "register_lat_many";
  m.about = "the same while a million regions are open";
  m.many = true;
  all.push_back(m);
  m.name = "register_lat_crowd";
  m.about = "the same beside 1,000 processes that are connected and idle";
  m.many = false;
  m.idle_peers = m.idle_processes = kIdleAccessors;
  all.push_back(m);
  Measure v{"revoke_lat", 4 * kKiB, Pattern::revoking,
            "fi_close of a region into which the peer writes without pause; median"};
  all.push_back(v);
  v.name = "revoke_stopped_lat";
  v.about = "the same, the peer being stopped (SIGSTOP) at a random moment before";
  v.writer = Writer::stopped;
  all.push_back(v);
  for (const Target target : {Target::polling, Target::asleep}) {
    const bool idle = target == Target::asleep;
    Measure r{idle ? "read_same_lat_idle" : "read_same_lat", 8, Pattern::many_regions,
              "whole read, from the same one of a million regions"};
    r.target = target;
    all.push_back(r);
    r.name = idle ? "read_any_lat_idle" : "read_any_lat";
    r.about = "whole read, from a random one of a million regions over one 64 MiB buffer";
    r.many = true;
    all.push_back(r);
  }
}

void add_atomics(std::vector<Measure>& all) {
  Measure m{"atomic_lat", 8, Pattern::fetching, "whole fetching add"};
  all.push_back(m);
  m.name = "atomic_lat_idle";
  m.about = "whole fetching add, target asleep in a system call";
  m.target = Target::asleep;
  all.push_back(m);
  Measure r{"atomic_rate", 8, Pattern::posted, "adds per second, until the target holds them all"};
  r.window = window_of(8);
  all.push_back(r);
}

void add_crowds(std::vector<Measure>& all) {
  Measure m{"send_lat_crowd", 8, Pattern::ping_pong, "half a round trip beside 256 idle peers"};
  m.idle_peers = kIdlePeers;
  m.idle_processes = kIdleProcesses;
  all.push_back(m);
  all.push_back({"peer_memory", kMemoryPeers, Pattern::peer_memory,
                 "memory per connected peer, both sides; the size is the number of peers"});
}

// What two processes pay before anything is fast.
void add_start_up(std::vector<Measure>& all) {
  Measure m{"start_lat", 8, Pattern::start_up,
            "two processes' first fi_getinfo, domain, endpoint, message and answer"};
  all.push_back(m);
  m.name = "start_open_lat";
  m.about = "the same from fi_fabric on, once libfabric has loaded its providers";
  m.from = From::opening;
  all.push_back(m);
}

// Whole round trips, and requests, of processes that sleep in epoll.
void add_event_driven(std::vector<Measure>& all) {
  for (const Cores cores : {Cores::two, Cores::one}) {
    const bool one = cores == Cores::one;
    Measure m{one ? "send_lat_epoll_one" : "send_lat_epoll", 64, Pattern::ping_pong,
              one ? "round trip, both sides asleep in epoll, on one core"
                  : "round trip, both sides asleep in epoll (FI_WAIT_FD)"};
    m.waiting = Waiting::epoll;
    m.crowd.cores = cores;
    all.push_back(m);
    m.name = one ? "send_rate_epoll_one" : "send_rate_epoll";
    m.pattern = Pattern::clients;
    m.about = one ? "requests per second of 50 clients in all, asleep in epoll, on one core"
                  : "requests per second of 50 clients in all, both sides asleep in epoll";
    all.push_back(m);
  }
}

// Several pairs of polling processes on two cores, and on one.
void add_crowded(std::vector<Measure>& all) {
  for (const CrowdedRow& row : crowded_rows("write_bw", "tagged_rate", "tagged_bw")) {
    Measure m{row.name, row.size_bytes, row.writes ? Pattern::one_sided : Pattern::stream,
              row.about, Matching::tagged};
    m.window = window_of(m.size_bytes);
    m.crowd = row.crowd;
    all.push_back(m);
  }
}

// Several threads of both processes under FI_THREAD_SAFE.
void add_threaded(std::vector<Measure>& all) {
  for (const ThreadedRow& row : threaded_rows("send_rate", "endpoint", "domain")) {
    const bool one_queue = row.crowd.shared == Shared::queue;
    Measure m{row.name, 8, one_queue ? Pattern::shared_stream : Pattern::stream, row.about};
    m.window = window_of(m.size_bytes);
    m.thread_safe = true;
    m.crowd = row.crowd;
    all.push_back(m);
  }
}

// Four processes, each of which writes to the three others, on two cores.
void add_all_to_all(std::vector<Measure>& all) {
  for (const size_t n : {size_t{8}, size_t{512}, 4 * kKiB, 64 * kKiB}) {
    Measure m{"write_bw_all_to_all", n, Pattern::all_to_all,
              n == 8 ? "operations per second of four processes, each to all others at once"
                     : "bytes per second of four processes, each to all others at once"};
    m.window = window_of(n);
    m.crowd.cores = Cores::either;
    m.crowd.ranks = 4;
    all.push_back(m);
  }
}

uint64_t caps_of(const Measure& measure) {
  switch (measure.pattern) {
    case Pattern::write_ping_pong:
    case Pattern::one_sided:
    case Pattern::all_to_all:
    case Pattern::registering:
    case Pattern::many_regions:
    case Pattern::revoking: return FI_MSG | FI_RMA;
    case Pattern::fetching:
    case Pattern::posted: return FI_MSG | FI_ATOMIC;
    default: return measure.matching == Matching::tagged ? FI_TAGGED : FI_MSG;
  }
}

Setup setup_of(const Measure& measure, const Setup& base, Rigour rigour) {
  Setup setup = base;
  setup.caps = caps_of(measure);
  const bool writes = measure.pattern == Pattern::all_to_all ||
                      (measure.pattern == Pattern::one_sided && measure.verb == Verb::write);
  setup.delivery_complete = writes && rigour == Rigour::strict;
  // only the owner's process executes atomics: one that sleeps must be progressed by its provider
  if (measure.pattern == Pattern::fetching && measure.target == Target::asleep) {
    setup.progress = FI_PROGRESS_AUTO;
  }
  setup.waiting = measure.waiting;
  setup.cq_data = measure.pattern == Pattern::clients;
  setup.threading = measure.thread_safe ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
  return setup;
}

// True when a sample is told whole, not as half a round trip of two messages.
bool is_whole(const Measure& measure) {
  const Pattern pattern = measure.pattern;
  return measure.waiting == Waiting::epoll || pattern == Pattern::one_sided ||
         pattern == Pattern::registering || pattern == Pattern::many_regions ||
         pattern == Pattern::revoking || pattern == Pattern::fetching;
}

std::unique_ptr<FabricTask> make_task(const Measure& m, const Setup& setup, Side& side) {
  switch (m.pattern) {
    case Pattern::ping_pong: return make_ping_pong(setup, side, m.matching, m.size_bytes);
    case Pattern::stream: return make_stream(setup, side, m.matching, m.size_bytes, m.window);
    case Pattern::shared_stream: return make_shared_stream(setup, side, m.crowd.threads);
    case Pattern::clients: return make_clients(setup, side, m.size_bytes);
    case Pattern::steps: return make_steps(setup, side, m.matching, m.size_bytes);
    case Pattern::write_ping_pong: return make_write_ping_pong(setup, side, m.size_bytes);
    case Pattern::one_sided:
      return make_one_sided(setup, side, m.target, m.verb, m.size_bytes, m.window, m.ways);
    case Pattern::all_to_all:
      return make_all_to_all(setup, side, m.size_bytes, m.window, m.crowd.ranks);
    case Pattern::registering:
      return make_registering(setup, side, m.size_bytes, m.many ? kManyRegions : 0);
    case Pattern::many_regions:
      return make_many_regions(setup, side, m.target, m.many ? Choice::random : Choice::same);
    case Pattern::revoking: return make_revoking(setup, side, m.size_bytes, m.writer);
    case Pattern::fetching: return make_fetching(setup, side, m.target);
    case Pattern::posted: return make_posted(setup, side, m.window);
    case Pattern::peer_memory:  // no task: see take_measure
    case Pattern::start_up: break;
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
    add_both_ways(all);
    add_registrations(all);
    add_atomics(all);
    add_crowds(all);
    add_start_up(all);
    add_event_driven(all);
    add_crowded(all);
    add_threaded(all);
    add_all_to_all(all);
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
  if (measure.pattern == Pattern::peer_memory) {
    return measure_peer_memory(setup, side, measure.size_bytes);
  }
  if (measure.pattern == Pattern::start_up) {
    return measure_start_up(setup, side, measure.from, measure.size_bytes);
  }
  std::unique_ptr<Crowd> crowd;  // made before this process calls libfabric
  if (measure.idle_peers != 0 && side.rank == 0) {
    crowd = std::make_unique<Crowd>(setup, measure.idle_processes,
                                    measure.idle_peers / measure.idle_processes);
  }
  const std::unique_ptr<FabricTask> task = make_task(measure, setup, side);
  if (crowd) {
    crowd->introduce(task->session());
    crowd->connect(task->session());
  }
  Plan plan;
  plan.extent = extent;
  plan.latency = measure.window == 1 && measure.pattern != Pattern::clients;
  plan.scale = is_whole(measure) ? 1.0 : 0.5;
  plan.bytes_each = measure.size_bytes > 64 ? static_cast<double>(measure.size_bytes) : 0;
  plan.initiators = measure.ways == Ways::both ? 2
                    : measure.crowd.ranks > 2  ? measure.crowd.ranks
                                               : 1;
  if (rigour == Rigour::lenient) plan.burst = std::max(kLenientBurst, measure.window);
  plan.single = measure.pattern == Pattern::revoking || measure.waiting == Waiting::epoll;
  return direct(*task, side, plan);
}

}  // namespace aperture::bench
