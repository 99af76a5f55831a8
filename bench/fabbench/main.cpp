// fabbench: measures any libfabric provider through plain RDM endpoints, between two processes.
//
// The supervising process never calls into libfabric; every measure is a fresh pair of processes,
// so a provider that crashes, hangs or answers wrongly costs one row.
#include <cstdlib>
#include <filesystem>
#include <string>

#include "fabbench/measures.hpp"
#include "harness/program.hpp"

namespace aperture::bench {

namespace {

constexpr char kUsage[] =
    "usage: fabbench -p PROVIDER [options]\n"
    "\n"
    "  -p, --provider NAME  libfabric provider: aperture, shm, tcp, sockets, 'tcp;ofi_rxm'\n"
    "  -d, --domain NAME    domain of the provider (default: its first)\n"
    "      --mr MODE        registration offered: any (default), basic, scalable\n"
    "      --rigour R       of sleeping targets: auto (default: strict, then lenient), strict,\n"
    "                       lenient (the target wakes between bursts of 128 operations)\n"
    "      --version        of the libfabric that is used, and stop\n";

constexpr char kMore[] =
    "\n"
    "FI_PROVIDER_PATH tells libfabric where an external provider lies; when it is unset, aperture\n"
    "is taken from fabbench's own build. Latencies are one way unless the list says otherwise.\n"
    "Exit code: 0 all measured, 1 some failed, 2 wrong usage.\n"
    "\n"
    "examples:\n"
    "  fabbench -p shm\n"
    "  fabbench -p aperture --only 'send_*' --mr scalable\n"
    "  fabbench -p tcp --only read_lat/8,write_bw --seconds 1\n";

bool parse_registration(const std::string& text, Registration& out) {
  if (text == "any") {
    out = Registration::any;
  } else if (text == "basic") {
    out = Registration::basic;
  } else if (text == "scalable") {
    out = Registration::scalable;
  } else {
    return false;
  }
  return true;
}

struct Options {
  bool take(int letter, const char* value) {
    switch (letter) {
      case 'p': setup.provider = value; return true;
      case 'd': setup.domain = value; return true;
      case 'm': return parse_registration(value, setup.registration);
      case 'r': return take_rigour(value);
      case 'v': print_version();
      default: return take_row_option(letter, value, rows);
    }
  }
  bool complete() const { return rows.list || !setup.provider.empty(); }
  [[noreturn]] static void print_version() {
    const int unused = 0;  // but null is refused
    std::printf("libfabric %s\n", fi_tostr(&unused, FI_TYPE_VERSION));
    std::exit(0);
  }
  bool take_rigour(const std::string& text) {
    may_be_strict = text != "lenient";
    may_be_lenient = text != "strict";
    return text == "auto" || text == "strict" || text == "lenient";
  }

  RowOptions rows;
  Setup setup;
  bool may_be_strict = true, may_be_lenient = true;
};

const Program kProgram{"fabbench",
                       kUsage,
                       kMore,
                       "p:d:h",
                       {{"provider", required_argument, nullptr, 'p'},
                        {"domain", required_argument, nullptr, 'd'},
                        {"mr", required_argument, nullptr, 'm'},
                        {"rigour", required_argument, nullptr, 'r'},
                        {"version", no_argument, nullptr, 'v'}}};

// For an idle peer to start and to connect, on a busy machine.
constexpr double kSecondsEach = 0.02;

// With FI_PROVIDER_PATH unset, aperture is that of the build tree that this program lies in.
void find_aperture(const Options& options) {
  if (options.setup.provider != "aperture" || std::getenv("FI_PROVIDER_PATH") != nullptr) return;
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  const auto beside = self.parent_path().parent_path() / "lib" / "libfabric";
  if (std::filesystem::is_directory(beside, error)) {
    ::setenv("FI_PROVIDER_PATH", beside.c_str(), 0);
  }
}

Row measure_once(const Measure& m, const Options& options, Rigour rigour) {
  SharedByThreads<Domain> domain;
  Setup setup = options.setup;
  if (m.crowd.shared == Shared::container) setup.shared = &domain;
  PairOptions pair = options.rows.pair;
  pair.timeout_s += kSecondsEach * static_cast<double>(m.idle_processes);
  return take_row(pair, m, [&](Side& side) {
    return take_measure(m, setup, side, options.rows.extent, rigour);
  });
}

Row measure(const Measure& m, const Options& options) {
  find_aperture(options);
  Row strict;
  if (options.may_be_strict || m.target != Target::asleep) {
    strict = measure_once(m, options, Rigour::strict);
    if (strict.ok || m.target != Target::asleep || !options.may_be_lenient) return strict;
  }
  Row lenient = measure_once(m, options, Rigour::lenient);
  if (!lenient.ok && !strict.note.empty()) return strict;
  std::string why = strict.note.empty() ? "" : "; strictly it failed: " + strict.note;
  if (lenient.ok) {
    lenient.note = "LENIENT: target wakes between bursts of 128, default completion" + why;
  }
  return lenient;
}

}  // namespace

}  // namespace aperture::bench

int main(int argc, char** argv) {
  using namespace aperture::bench;
  return run_program<Options>(kProgram, argc, argv, all_measures(), measure);
}
