// What is measured, at which sizes, and how each measure is set up.
#include "verbbench/measures.hpp"

#include "harness/crowded.hpp"
#include "harness/threaded.hpp"
#include "verbbench/connecting.hpp"
#include "verbbench/messages.hpp"
#include "verbbench/one_sided.hpp"
#include "verbbench/windows.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kMiB = 1024 * 1024;
constexpr size_t kManyRegions = 1'000'000;

// In flight: as perftest has it for small operations, and enough to keep a copy going for others.
constexpr size_t window_of(size_t size_bytes) {
  return size_bytes <= 4096 ? 128 : 16;
}

void add_messages(std::vector<Measure>& all) {
  const auto ping_pong = [](Message message, Signals signals) {
    return [=](const Setup& setup, Side& side) {
      return make_ping_pong(setup, side, message, signals, 8);
    };
  };
  all.push_back({"verbs_send_lat", 8, "half a round trip, one send in 64 signalled",
                 ping_pong(Message::send, Signals::few)});
  all.push_back({"verbs_send_lat_signaled", 8, "the same, each send signalled and its end awaited",
                 ping_pong(Message::send, Signals::all)});
  all.push_back({"verbs_write_imm_lat", 8, "half a round trip of writes with immediate data",
                 ping_pong(Message::write_with_imm, Signals::few)});
  for (const size_t n : {size_t{8}, kMiB}) {
    const bool small = n == 8;
    const auto make = [n](const Setup& setup, Side& side) {
      return make_stream(setup, side, n, window_of(n));
    };
    all.push_back({small ? "verbs_send_rate" : "verbs_send_bw", n,
                   small ? "messages per second, one way" : "bytes per second; buffers reused",
                   make, 1, false});
  }
}

void add_latencies(std::vector<Measure>& all) {
  all.push_back({"verbs_write_lat", 8, "half a round trip, both sides spinning on memory",
                 [](const Setup& setup, Side& side) { return make_spinning(setup, side, 8); }});
  const struct {
    const char* name;
    Verb verb;
    Target target;
  } kWhole[] = {{"verbs_read_lat", Verb::read, Target::polling},
                {"verbs_atomic_lat", Verb::fetch_add, Target::polling},
                {"verbs_write_lat_idle", Verb::write, Target::asleep},
                {"verbs_read_lat_idle", Verb::read, Target::asleep},
                {"verbs_atomic_lat_idle", Verb::fetch_add, Target::asleep}};
  for (const auto& one : kWhole) {
    all.push_back({one.name, 8,
                   one.target == Target::asleep ? "whole operation, target asleep in a system call"
                                                : "whole operation",
                   [verb = one.verb, target = one.target](const Setup& setup, Side& side) {
                     return make_one_sided(setup, side, target, verb, 8, 1);
                   },
                   1});
  }
}

void add_bandwidths(std::vector<Measure>& all) {
  for (const Target target : {Target::polling, Target::asleep}) {
    const bool idle = target == Target::asleep;
    for (const Verb verb : {Verb::write, Verb::read}) {
      for (const size_t n : {size_t{8}, kMiB}) {
        const char* const names[2][2] = {{"verbs_read_bw", "verbs_read_bw_idle"},
                                         {"verbs_write_bw", "verbs_write_bw_idle"}};
        all.push_back({names[verb == Verb::write][idle], n,
                       idle ? "one way, target asleep in a system call; 8 B: operations per second"
                            : "one way; 8 B: operations per second",
                       [=](const Setup& setup, Side& side) {
                         return make_one_sided(setup, side, target, verb, n, window_of(n));
                       },
                       1, false});
      }
    }
  }
}

// As perftest's -b. Sizes whose way one way is no row of its own have one here, for the ratio.
void add_both_ways(std::vector<Measure>& all) {
  for (const Verb verb : {Verb::write, Verb::read}) {
    for (const size_t n : {size_t{8}, size_t{512}, size_t{4096}, size_t{65536}, kMiB}) {
      for (const Ways ways : {Ways::one, Ways::both}) {
        if (ways == Ways::one && (n == 8 || n == kMiB)) continue;
        const char* const names[2][2] = {{"verbs_read_bw", "verbs_read_bw_both"},
                                         {"verbs_write_bw", "verbs_write_bw_both"}};
        all.push_back(
            {names[verb == Verb::write][ways == Ways::both], n,
             ways == Ways::both ? "both sides, each on the other's memory at once" : "one way",
             [=](const Setup& setup, Side& side) {
               return make_one_sided(setup, side, Target::polling, verb, n, window_of(n), ways);
             },
             1, false, false, ways});
      }
    }
  }
}

// Whole round trips, and requests, of processes that sleep in epoll.
void add_event_driven(std::vector<Measure>& all) {
  for (const Cores cores : {Cores::two, Cores::one}) {
    const bool one = cores == Cores::one;
    Measure m{one ? "verbs_send_lat_epoll_one" : "verbs_send_lat_epoll", 64,
              one ? "round trip, both sides asleep in epoll, on one core"
                  : "round trip, both sides asleep in epoll on a completion channel",
              [](const Setup& setup, Side& side) {
                Setup asleep = setup;
                asleep.waiting = Waiting::epoll;
                return make_ping_pong(asleep, side, Message::send, Signals::few, 64);
              },
              1};
    m.single = true;
    m.crowd.cores = cores;
    all.push_back(m);
    Measure r{one ? "verbs_send_rate_epoll_one" : "verbs_send_rate_epoll",
              64,
              one ? "requests per second of 50 clients in all, asleep in epoll, on one core"
                  : "requests per second of 50 clients in all, both sides asleep in epoll",
              [](const Setup& setup, Side& side) { return make_clients(setup, side, 64); },
              1,
              false};
    r.crowd.cores = cores;
    all.push_back(r);
  }
}

// Several pairs of polling processes on two cores, and on one.
void add_crowded(std::vector<Measure>& all) {
  for (const CrowdedRow& row : crowded_rows("verbs_write_bw", "verbs_send_rate", "verbs_send_bw")) {
    const size_t n = row.size_bytes;
    all.push_back({row.name, n, row.about,
                   [n, writes = row.writes](const Setup& setup, Side& side) {
                     if (!writes) return make_stream(setup, side, n, window_of(n));
                     return make_one_sided(setup, side, Target::polling, Verb::write, n,
                                           window_of(n));
                   },
                   1, false});
    all.back().crowd = row.crowd;
  }
}

// Several threads of both processes.
void add_threaded(std::vector<Measure>& all) {
  for (const ThreadedRow& row : threaded_rows("verbs_send_rate", "cq", nullptr)) {
    all.push_back({row.name, 8, row.about,
                   [crowd = row.crowd](const Setup& setup, Side& side) {
                     return crowd.shared == Shared::queue
                                ? make_shared_stream(setup, side, crowd.threads)
                                : make_stream(setup, side, 8, window_of(8));
                   },
                   1, false});
    all.back().crowd = row.crowd;
  }
}

// Four processes, each of which writes to the three others, on two cores.
void add_all_to_all(std::vector<Measure>& all) {
  for (const size_t n : {size_t{8}, size_t{512}, size_t{4096}, size_t{65536}}) {
    const unsigned ranks = 4;
    all.push_back({"verbs_write_bw_all_to_all", n, "four processes, each to all others at once",
                   [n](const Setup& setup, Side& side) {
                     return make_all_to_all(setup, side, n, window_of(n), ranks);
                   },
                   1, false});
    all.back().crowd.cores = Cores::either;
    all.back().crowd.ranks = ranks;
  }
}

void add_windows(std::vector<Measure>& all) {
  const auto binding = [](WindowType type, size_t regions) {
    return [=](const Setup& setup, Side& side) { return make_binding(setup, side, type, regions); };
  };
  all.push_back({"verbs_bind_lat", 4096, "binding a window of type 2 and invalidating it",
                 binding(WindowType::two, 1), 1});
  all.push_back({"verbs_bind_lat_many", 64, "the same, 64 windows in turn over a million regions",
                 binding(WindowType::two, kManyRegions), 1});
  all.push_back(
      {"verbs_bind1_lat", 4096, "binding a window of type 1 anew", binding(WindowType::one, 1), 1});
}

void add_connecting(std::vector<Measure>& all) {
  Measure m{"verbs_connect_lat", 8,
            "a queue pair each, from its making to a message and its answer",
            [](const Setup& setup, Side& side) { return make_connecting(setup, side, 8); }, 1};
  m.single = true;
  all.push_back(m);
}

}  // namespace

const std::vector<Measure>& all_measures() {
  static const std::vector<Measure> measures = [] {
    std::vector<Measure> all;
    add_messages(all);
    add_latencies(all);
    add_bandwidths(all);
    add_both_ways(all);
    add_windows(all);
    add_connecting(all);
    add_event_driven(all);
    add_crowded(all);
    add_threaded(all);
    add_all_to_all(all);
    for (const Message message : {Message::send, Message::write_with_imm}) {
      all.push_back({message == Message::send ? "verbs_send_steps" : "verbs_write_imm_steps", 8,
                     "lockstep ping-pong, for bench/instructions",
                     [message](const Setup& setup, Side& side) {
                       return make_steps(setup, side, message, 8);
                     },
                     0.5, true, true});
    }
    return all;
  }();
  return measures;
}

Row take_measure(const Measure& measure, const Setup& setup, Side& side, const Extent& extent) {
  const std::unique_ptr<Task> task = measure.make(setup, side);
  Plan plan;
  plan.extent = extent;
  plan.latency = measure.latency;
  plan.scale = measure.scale;
  plan.bytes_each = measure.size_bytes > 64 ? static_cast<double>(measure.size_bytes) : 0;
  plan.initiators = measure.ways == Ways::both ? 2
                    : measure.crowd.ranks > 2  ? measure.crowd.ranks
                                               : 1;
  plan.single = measure.single;
  return direct(*task, side, plan);
}

}  // namespace aperture::bench
