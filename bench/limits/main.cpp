// limits: what this machine's caches, copies and kernel allow between two pinned processes.
#include <cstdio>
#include <exception>

#include "harness/program.hpp"
#include "limits/limit.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * 1024;
constexpr size_t kSharedSmall = 128 * kKiB;
constexpr size_t kSharedSlots = 4 * kKiB + 256 * kKiB;

constexpr char kUsage[] =
    "usage: limits [--only NAME[/SIZE],...] [--seconds S] [--cpus A,B] [--json] [--list]\n"
    "\n"
    "Measures what any transport between two processes here runs into.\n"
    "  --only     measures by name, name/size or glob: line_lat, memcpy/1048576, 'cma*'\n"
    "  --seconds  time per measure (default 0.3)\n"
    "  --cpus     the two CPUs to be pinned to (default 0,1)\n"
    "  --json     one JSON object per line\n"
    "  --list     what there is, and stop\n"
    "\n"
    "examples:\n"
    "  limits\n"
    "  limits --only line_lat,pair_copy --seconds 1\n";

// Of the options that all programs have, those that a limit can honour.
bool parse(int argc, char** argv, RowOptions& options) {
  const std::vector<option> longs = with_row_options({});
  for (int c; (c = ::getopt_long(argc, argv, "h", longs.data(), nullptr)) != -1;) {
    if (c == 'n' || c == 't' || !take_row_option(c, optarg, options)) return false;
  }
  return optind == argc;
}

Row measure(const LimitSpec& limit, const RowOptions& options) {
  const double seconds = options.extent.seconds;
  const Pages shared(limit.shared_bytes, Pages::Kind::shared);
  PairOptions pair = options.pair;
  pair.timeout_s = 10 + 3 * seconds;
  return take_row(pair, limit,
                  [&](Side& side) { return limit.body(side, shared, limit.size_bytes, seconds); });
}

void add_sockets(std::vector<LimitSpec>& all) {
  const char* const kTrip = "round trip of two processes asleep in epoll";
  const char* const kTripOne = "the same on one core";
  const char* const kServed = "requests of 50 clients in all, both sides asleep in epoll";
  for (const LimitSpec& one :
       {LimitSpec{"tcp_lat", 8, "TCP, both sides polling, one way", tcp_polled_ping_pong,
                  kSharedSmall},
        LimitSpec{"tcp_bw", 64 * kKiB, "TCP, both sides polling", tcp_polled_bandwidth,
                  kSharedSmall},
        LimitSpec{"tcp_bw", kMiB, "TCP, both sides polling", tcp_polled_bandwidth, kSharedSmall},
        LimitSpec{"unix_lat_epoll", 64, kTrip, unix_ping_pong, kSharedSmall},
        LimitSpec{"unix_lat_epoll_one", 64, kTripOne, unix_ping_pong, kSharedSmall, {Cores::one}},
        LimitSpec{"unix_rate_epoll", 64, kServed, unix_clients, kSharedSmall},
        LimitSpec{"unix_rate_epoll_one", 64, kTripOne, unix_clients, kSharedSmall, {Cores::one}},
        LimitSpec{"tcp_lat_epoll", 64, kTrip, tcp_ping_pong, kSharedSmall},
        LimitSpec{"tcp_lat_epoll_one", 64, kTripOne, tcp_ping_pong, kSharedSmall, {Cores::one}},
        LimitSpec{"tcp_rate_epoll", 64, kServed, tcp_clients, kSharedSmall},
        LimitSpec{"tcp_rate_epoll_one", 64, kTripOne, tcp_clients, kSharedSmall, {Cores::one}}}) {
    all.push_back(one);
  }
}

}  // namespace

const std::vector<LimitSpec>& all_limits() {
  static const std::vector<LimitSpec> limits = [] {
    std::vector<LimitSpec> all = {
        {"line_lat", 8, "two cache lines, one way", ping_pong_two_lines, kSharedSmall},
        {"one_line_lat", 8, "one cache line, one way", ping_pong_one_line, kSharedSmall},
        {"ring_rate", 64, "64-byte cells, credit every 256", ring_rate, kSharedSmall},
        {"ring_rate_credit", 64, "64-byte cells, credit each", ring_rate_credits, kSharedSmall},
    };
    for (const size_t n : {64 * kKiB, kMiB, 4 * kMiB, 16 * kMiB}) {
      all.push_back({"memcpy", n, "one core", copy_alone, kSharedSmall});
    }
    for (const size_t n : {64 * kKiB, kMiB, 4 * kMiB}) {
      all.push_back({"pair_copy", n, "two cores, 64 KiB pieces", copy_by_two, kSharedSlots});
    }
    for (const size_t n : {size_t{8}, 4 * kKiB}) {
      all.push_back({"cma_lat", n, "process_vm_writev, target asleep", cma_call, kSharedSmall});
    }
    all.push_back({"cma_seen_lat", 8, "the same, target spins on the memory and answers", cma_seen,
                   kSharedSmall});
    all.push_back({"cma_any_lat", 64 * kMiB, "process_vm_readv of 8 bytes, from anywhere in it",
                   cma_anywhere, kSharedSmall});
    for (const size_t n : {64 * kKiB, kMiB, 4 * kMiB}) {
      all.push_back({"cma_bw", n, "process_vm_writev, target asleep", cma_bandwidth, kSharedSmall});
    }
    add_sockets(all);
    all.push_back({"miss_lat", 64 * kMiB, "one of a chain of random loads", miss_latency, 4096});
    return all;
  }();
  return limits;
}

}  // namespace aperture::bench

int main(int argc, char** argv) {
  using namespace aperture::bench;
  RowOptions options;
  if (!parse(argc, argv, options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    return run_rows("limits", options, all_limits(),
                    [&](const LimitSpec& limit) { return measure(limit, options); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "limits: %s\n", e.what());
    return 2;
  }
}
