// The `aperture` command: reads the words and hands over. Manual page: docs/man/aperture.1.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/fault_plan.hpp"
#include "base/settings.hpp"
#include "tool/host.hpp"
#include "tool/places.hpp"
#include "tool/program.hpp"
#include "tool/report.hpp"
#include "tool/run.hpp"
#include "tool/verbs_door.hpp"

namespace {

constexpr const char* kRunFooter =
    "examples:\n  aperture run -- fi_info -p aperture\n  aperture run -- mpirun.openmpi -n 2 "
    "./my_mpi_program\n  aperture run --one-sided -- mpirun.openmpi -n 2 "
    "./my_program_with_windows\n  aperture run --as tcp -- fi_pingpong -p tcp     for programs "
    "that "
    "know other names only\n  aperture run --fault seed=7,retry=after:1000 -- ./my_server     see "
    "how it takes errors\n  aperture run -- env | grep -E '^(FI|OMPI)_'     what it "
    "sets\n\nSettings of yours are kept; one that keeps Aperture from being chosen is named on "
    "stderr.\n"
    "Exit code: that of CMD; 127 not found, 126 not executable, 125 the provider is missing.\n";

constexpr const char* kExplainFooter =
    "Like run, and each refusal is a line on stderr: which hint excluded Aperture from the answer "
    "of\nfi_getinfo, which rule a call or a remote access broke, and what would make it "
    "legal.\n\nexamples:\n  aperture explain -- fi_info -p aperture -c FI_COLLECTIVE\n  "
    "APERTURE_MR_MODE=verbs aperture explain -- ./my_program     as on a verbs NIC\n\n"
    "Exit code: that of CMD; 127 not found, 126 not executable, 125 the provider is missing.\n";

constexpr const char* kInfoFooter =
    "examples:\n  aperture info\n"
    "  aperture info --json | jq .cma\n";

constexpr int kExitUsage = 2;

int info(bool json) {
  using namespace aperture::tool;
  const std::string folder = own_folder();
  if (folder.empty()) {
    std::fprintf(stderr, "aperture: %s\n", kNoOwnFolder);
    return 1;
  }
  std::vector<Fact> facts = software_facts(folder);
  for (Fact& fact : host_facts()) facts.push_back(std::move(fact));
  const std::string text = json ? as_json(facts) : as_text(facts);
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    std::fputs("aperture: cannot write the report to standard output\n", stderr);
    return 1;
  }
  return 0;
}

bool is(const char* argument, const char* word) {
  return std::strcmp(argument, word) == 0;
}

// Where CMD begins: behind the first "--", or at the first argument that is no option and no value
// of one.
int command_index(int argc, char** argv) {
  int at = 2;
  while (at < argc && argv[at][0] == '-' && !is(argv[at], "--")) {
    at += is(argv[at], "--as") || is(argv[at], "--fault") ? 2 : 1;
  }
  at = std::min(at, argc);
  return at < argc && is(argv[at], "--") ? at + 1 : at;
}

// Empty: it is one, as the parser wants it.
std::string is_name_of_provider(const std::string& text) {
  if (!text.empty() && aperture::is_legal_setting("APERTURE_AS", text.c_str())) return {};
  return "'" + text + "' is no name of another provider, such as tcp or 'verbs;ofi_rxm'";
}

// Empty: they are such, as the parser wants it.
std::string are_faults(const std::string& text) {
  aperture::FaultPlan plan;
  return aperture::read_fault_plan(text, plan);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Aperture: an RDMA NIC in software, in user space", "aperture");
  app.set_version_flag("--version", std::string("aperture ") + aperture::tool::version());
  app.require_subcommand(1);
  app.footer("Manual: man aperture, man fi_aperture. In a source tree: ./dev demo.\n");

  CLI::App* run = app.add_subcommand("run", "run CMD so that it finds and chooses Aperture");
  std::vector<std::string> shown_in_help;
  run->add_option("CMD", shown_in_help, "the program and its arguments, best behind --");
  aperture::tool::RunOptions options;
  constexpr const char* one_sided = "for MPI programs that open windows (btl ofi)";
  run->add_flag("--one-sided", options.one_sided, one_sided);
  constexpr const char* as = "another name to answer under too: tcp, 'verbs;ofi_rxm' ...";
  run->add_option("--as", options.as, as)->type_name("NAME")->check(is_name_of_provider);
  constexpr const char* fault = "faults to inject: seed=7,delay=2ms:10%,retry=0.1% ...";
  run->add_option("--fault", options.faults, fault)->type_name("SPEC")->check(are_faults);
  run->footer(kRunFooter);

  CLI::App* explain = app.add_subcommand("explain", "run CMD and say why anything is refused");
  explain->add_option("CMD", shown_in_help, "the program and its arguments, best behind --");
  explain->add_flag("--one-sided", options.one_sided, one_sided);
  explain->add_option("--as", options.as, as)->type_name("NAME")->check(is_name_of_provider);
  explain->add_option("--fault", options.faults, fault)->type_name("SPEC")->check(are_faults);
  explain->footer(kExplainFooter);

  bool json = false;
  CLI::App* info_word = app.add_subcommand("info", "tell what this host allows");
  info_word->add_flag("--json", json, "as one JSON object");
  info_word->footer(kInfoFooter);

  // CMD and its arguments are not ours to read: the parser sees only what stands before them
  const char* word = argc > 1 ? argv[1] : "";
  if (argc == 2 && is(word, aperture::tool::kVerbsProbeWord)) {
    return aperture::tool::probe_verbs_door();
  }
  options.explain = is(word, "explain");
  const bool running = is(word, "run") || options.explain;
  const int command = running ? command_index(argc, argv) : argc;
  const bool marked = running && command > 2 && std::strcmp(argv[command - 1], "--") == 0;
  if (argc > 1 && word[0] != '-' && !running && !is(word, "info")) {
    std::fprintf(stderr,
                 "aperture: there is no word '%s'; there are run, explain and info (see --help)\n",
                 word);
    return kExitUsage;
  }
  try {
    app.parse(marked ? command - 1 : command, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (!run->parsed() && !explain->parsed()) return info(json);
  if (command >= argc) {
    std::fprintf(stderr, "aperture: %s what? For example: aperture %s -- fi_info -p aperture\n",
                 word, word);
    return kExitUsage;
  }
  return aperture::tool::run(argv + command, options);
}
