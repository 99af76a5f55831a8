// verbbench: measures any verbs device through a reliable connection between two processes.
//
// The supervising process never calls into libibverbs; every measure is a fresh pair of processes,
// so a device that crashes, hangs or answers wrongly costs one row.
#include <cstdlib>

#include "harness/program.hpp"
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
  bool take(int letter, const char* value) {
    switch (letter) {
      case 'd': setup.device = value; return true;
      case 'p': return (setup.port = static_cast<uint8_t>(std::atoi(value))) > 0;
      case 'g': return (setup.gid_index = std::atoi(value)) >= 0;
      default: return take_row_option(letter, value, rows);
    }
  }
  bool complete() const { return true; }

  RowOptions rows;
  Setup setup;
};

const Program kProgram{"verbbench",
                       kUsage,
                       kMore,
                       "d:h",
                       {{"device", required_argument, nullptr, 'd'},
                        {"port", required_argument, nullptr, 'p'},
                        {"gid-index", required_argument, nullptr, 'g'}}};

Row measure(const Measure& m, const Options& options) {
  SharedByThreads<Device> device;
  Setup setup = options.setup;
  if (m.crowd.shared == Shared::container) setup.shared = &device;
  return take_row(options.rows.pair, m,
                  [&](Side& side) { return take_measure(m, setup, side, options.rows.extent); });
}

}  // namespace

}  // namespace aperture::bench

int main(int argc, char** argv) {
  using namespace aperture::bench;
  return run_program<Options>(kProgram, argc, argv, all_measures(), measure);
}
