// The list of measures, named as perftest names them.
#pragma once

#include <string>
#include <vector>

#include "fabbench/messages.hpp"
#include "fabbench/one_sided.hpp"
#include "fabbench/revoking.hpp"
#include "fabbench/start_up.hpp"
#include "fabbench/task.hpp"
#include "stopwatch/pairs.hpp"

namespace aperture::bench {

enum class Pattern {
  ping_pong,
  stream,
  shared_stream,
  clients,
  steps,
  write_ping_pong,
  one_sided,
  all_to_all,
  registering,
  many_regions,
  revoking,
  fetching,
  posted,
  peer_memory,
  start_up,
};

struct Measure {
  std::string name;
  size_t size_bytes;
  Pattern pattern;
  const char* about;
  Matching matching = Matching::plain;
  Verb verb = Verb::write;
  Target target = Target::polling;
  size_t window = 1;
  Ways ways = Ways::one;
  bool thread_safe = false;  // FI_THREAD_SAFE instead of FI_THREAD_DOMAIN
  bool many = false;         // regions: kManyRegions others are open, or a random one is read
  Writer writer = Writer::running;  // when its region is closed
  From from = From::loading;
  Waiting waiting = Waiting::polling;
  Crowding crowd{};
  size_t idle_peers = 0;      // connected to rank 0 beside the active one
  size_t idle_processes = 0;  // that have them
  bool hidden = false;        // only when asked for by name
};

const std::vector<Measure>& all_measures();

// How a sleeping target is treated. A provider that cannot do without it altogether (a queue that
// only the target empties) is asked again leniently, and its row says so.
enum class Rigour { strict, lenient };

// Runs in both processes of a pair; rank 0's row is the result.
Row take_measure(const Measure& measure, const Setup& base, Side& side, const Extent& extent,
                 Rigour rigour);

}  // namespace aperture::bench
