// cachebench: what a registration cache costs: a hit, a miss, and a change of memory that it keeps.
//
// Every measure is a fresh process with one cache in it, Aperture's own or that of a peer, whose
// module is loaded there; so the hooks of one never meet those of another.
#include <cstdlib>
#include <string>

#include "cachebench/measures.hpp"
#include "harness/program.hpp"
#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

constexpr char kUsage[] =
    "usage: cachebench [options]\n"
    "\n"
    "      --cache NAME     aperture (default), none (what memory costs without one), or the path\n"
    "                       of a peer's module, as bench/run --peer makes it\n"
    "      --monitor NAME   userfaultfd (default) or memhooks; of UCX: hooks\n"
    "      --version        of the cache's library, and stop\n";

constexpr char kMore[] =
    "\n"
    "Exit code: 0 all measured, 1 some failed, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  cachebench\n"
    "  cachebench --monitor memhooks --only 'cache_hit*'\n"
    "  cachebench --cache ./cache_peer_ucx.so --monitor hooks\n";

struct Options {
  bool take(int letter, const char* value) {
    switch (letter) {
      case 'k': subject.cache = value; return true;
      case 'm': subject.monitor = value; return true;
      case 'v': return wants_version = true;
      default: return take_row_option(letter, value, rows);
    }
  }
  bool complete() const {
    if (wants_version) print_version();
    return true;
  }
  [[noreturn]] void print_version() const {
    try {
      std::printf("%s\n", door_of(subject.cache).version());
    } catch (const Failure& failure) {
      std::fprintf(stderr, "cachebench: %s\n", failure.what());
      std::exit(2);
    }
    std::exit(0);
  }

  RowOptions rows;
  Subject subject;
  bool wants_version = false;
};

const Program kProgram{"cachebench",
                       kUsage,
                       kMore,
                       "h",
                       {{"cache", required_argument, nullptr, 'k'},
                        {"monitor", required_argument, nullptr, 'm'},
                        {"version", no_argument, nullptr, 'v'}}};

Row measure(const Measure& m, const Options& options) {
  const PairOptions& pair = options.rows.pair;
  return take_row(pair, m, [&](Side& side) {
    return take_measure(m, options.subject, side, options.rows.extent, pair.cpus[0]);
  });
}

}  // namespace

}  // namespace aperture::bench

int main(int argc, char** argv) {
  using namespace aperture::bench;
  return run_program<Options>(kProgram, argc, argv, all_measures(), measure);
}
