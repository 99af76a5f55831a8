// limits: what this machine's caches, copies and kernel allow between two pinned processes.
#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "limits/limit.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/select.hpp"

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

struct Options {
  std::string only;
  double seconds = 0.3;
  PairOptions pair;
  bool list = false;
};

bool parse(int argc, char** argv, Options& options) {
  const option longs[] = {{"only", required_argument, nullptr, 'o'},
                          {"seconds", required_argument, nullptr, 's'},
                          {"cpus", required_argument, nullptr, 'c'},
                          {"json", no_argument, nullptr, 'j'},
                          {"list", no_argument, nullptr, 'l'},
                          {"help", no_argument, nullptr, 'h'},
                          {nullptr, 0, nullptr, 0}};
  for (int c; (c = ::getopt_long(argc, argv, "h", longs, nullptr)) != -1;) {
    switch (c) {
      case 'o': options.only = optarg; break;
      case 's': options.seconds = std::atof(optarg); break;
      case 'c':
        if (!parse_cpus(optarg, options.pair.cpus)) return false;
        break;
      case 'j': options.pair.format = Format::json; break;
      case 'l': options.list = true; break;
      default: return false;
    }
  }
  return optind == argc && options.seconds > 0;
}

int run(const Options& options) {
  const Format format = options.pair.format;
  int failed = 0, taken = 0;
  if (!options.list) std::fputs(heading(format).c_str(), stdout);
  for (const LimitSpec& limit : all_limits()) {
    if (!selected(options.only, limit.name, limit.size_bytes)) continue;
    taken++;
    if (options.list) {
      std::printf("%s/%zu\t%s\n", limit.name, limit.size_bytes, limit.about);
      continue;
    }
    const Pages shared(limit.shared_bytes, Pages::Kind::shared);
    PairOptions pair = options.pair;
    pair.timeout_s = 10 + 3 * options.seconds;
    Row row = run_pair(pair, [&](Side& side) {
      return limit.body(side, shared, limit.size_bytes, options.seconds);
    });
    row.measure = limit.name;
    row.size_bytes = limit.size_bytes;
    failed += row.ok ? 0 : 1;
    std::fputs(print(row, format).c_str(), stdout);
    std::fflush(stdout);
  }
  if (taken == 0) std::fprintf(stderr, "limits: nothing is called '%s'\n", options.only.c_str());
  return taken == 0 ? 2 : (failed != 0 ? 1 : 0);
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
    all.push_back({"miss_lat", 64 * kMiB, "one of a chain of random loads", miss_latency, 4096});
    return all;
  }();
  return limits;
}

}  // namespace aperture::bench

int main(int argc, char** argv) {
  using namespace aperture::bench;
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  try {
    return run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "limits: %s\n", e.what());
    return 2;
  }
}
