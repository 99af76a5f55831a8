// verbbench: measures any verbs device through a reliable connection between two processes.
//
// The supervising process never calls into libibverbs; every measure is a fresh pair of processes,
// so a device that crashes, hangs or answers wrongly costs one row.
#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "stopwatch/row_options.hpp"
#include "verbbench/measures.hpp"

namespace aperture::bench {

namespace {

constexpr char kUsage[] =
    "usage: verbbench [options]\n"
    "\n"
    "  -d, --device NAME    verbs device (default aperture0)\n"
    "      --port N         its port (default 1)\n"
    "      --gid-index N    GID of that port, on Ethernet (default 0)\n";

constexpr char kMore[] =
    "\n"
    "The device aperture0 is there under `aperture run --`. Latencies are one way unless the list\n"
    "says otherwise; a _bw of 8 B is in millions of operations per second.\n"
    "Exit code: 0 all measured, 1 some failed, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  aperture run -- verbbench\n"
    "  aperture run -- verbbench --only 'verbs_bind*'\n"
    "  verbbench -d rxe0 --gid-index 1 --only verbs_send_lat --seconds 1\n";

struct Options {
  RowOptions rows;
  Setup setup;
};

bool take_option(int c, Options& options) {
  switch (c) {
    case 'd': options.setup.device = optarg; return true;
    case 'p':
      options.setup.port = static_cast<uint8_t>(std::atoi(optarg));
      return options.setup.port > 0;
    case 'g': options.setup.gid_index = std::atoi(optarg); return options.setup.gid_index >= 0;
    default: return take_row_option(c, optarg, options.rows);
  }
}

bool parse(int argc, char** argv, Options& options) {
  const std::vector<option> longs =
      with_row_options({{"device", required_argument, nullptr, 'd'},
                        {"port", required_argument, nullptr, 'p'},
                        {"gid-index", required_argument, nullptr, 'g'}});
  for (int c; (c = ::getopt_long(argc, argv, "d:h", longs.data(), nullptr)) != -1;) {
    if (!take_option(c, options)) return false;
  }
  return optind == argc;
}

Row measure(const Measure& m, const Options& options) {
  Row row = run_pair(options.rows.pair, [&](Side& side) {
    return take_measure(m, options.setup, side, options.rows.extent);
  });
  row.measure = m.name;
  row.size_bytes = m.size_bytes;
  return row;
}

}  // namespace

}  // namespace aperture::bench

int main(int argc, char** argv) {
  using namespace aperture::bench;
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "%s%s%s", kUsage, kRowOptionsUsage, kMore);
    return 2;
  }
  try {
    set_patience(options.rows.pair.timeout_s / 5);
    return run_rows("verbbench", options.rows, all_measures(),
                    [&](const Measure& m) { return measure(m, options); });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "verbbench: %s\n", e.what());
    return 2;
  }
}
