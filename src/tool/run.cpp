// `aperture run`: see run.hpp. Nothing stays behind: the process becomes CMD, so signals, exit
// codes and terminals are CMD's own.
#include "tool/run.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/settings.hpp"
#include "tool/places.hpp"
#include "tool/program.hpp"
#include "tool/surroundings.hpp"
#include "tool/verbs_door.hpp"

namespace aperture::tool {

namespace {

void say(const std::string& sentence) {
  std::fprintf(stderr, "aperture: %s\n", sentence.c_str());
}

int fail(int exit_code, const std::string& sentence) {
  say(sentence);
  return exit_code;
}

// execvp failed although the file looked right: say what the kernel means by it.
int explain_exec_failure(const char* command, int error) {
  const std::string name(command);
  if (error == ENOENT) {
    return fail(
        kExitNotExecutable,
        "cannot run " + name + ": the interpreter that it names (#! line or ld.so) is missing");
  }
  return fail(kExitNotExecutable, "cannot run " + name + ": " + std::strerror(error));
}

}  // namespace

int run(char* const* argv, const RunOptions& options) {
  const char* path_variable = ::getenv("PATH");
  const Program program =
      find_program(argv[0], path_variable != nullptr ? path_variable : "/usr/bin:/bin");
  if (!program.problem.empty()) {
    return fail(program.exit_code, std::string("cannot run ") + argv[0] + ": " + program.problem);
  }
  const std::string folder = own_folder();
  if (folder.empty()) return fail(kExitOwnFailure, kNoOwnFolder);
  Place place;
  place.provider_folder = find_provider_folder(folder);
  place.libfabric_folder = libfabric_provider_folder();
  place.root = ::geteuid() == 0;
  place.one_sided = options.one_sided;
  place.explain = options.explain;
  place.as = options.as;
  place.faults = options.faults;
  const char* const chosen = setting_text(kChosenVariable);
  if (chosen != nullptr) place.chosen = chosen;
  if (place.provider_folder.empty()) {
    std::string problem = "the provider ";
    problem.append(kProviderFile).append(" is neither in ");
    problem.append(searched_provider_folders(folder));
    return fail(kExitOwnFailure, problem + "; build it (./dev build) or install Aperture again");
  }
  const bool preloads = bears_preload(program.path);
  const VerbsDoor door = preloads ? open_verbs_door(folder, Probes::as_kept) : VerbsDoor{};
  const std::string explain_library = place.provider_folder + "/" + kExplainFile;
  if (preloads && ::access(explain_library.c_str(), R_OK) == 0) {
    place.explain_library = explain_library;
  }
  if (door.why_not.empty()) {
    place.verbs_library = door.preload;
    place.verbs_folder = door.folder;
  }
  const std::vector<std::string> faults = faults_of_settings(environ);  // as the user has made them
  const Surroundings surroundings = plan(place, [](const char* name) { return ::getenv(name); });
  if (!apply(surroundings)) return fail(kExitOwnFailure, "out of memory for the environment");

  say("software NIC, no RDMA hardware is in use");
  if (!options.as.empty()) {
    say("answering under the name " + options.as + " too, which is another provider's own");
  }
  const std::string out_of_reach = why_out_of_reach(program.path);
  if (!door.why_not.empty()) say("running without the verbs door: " + door.why_not);
  if (!out_of_reach.empty()) say(out_of_reach);
  for (const std::string& fault : faults) say(fault);
  for (const std::string& note : surroundings.notes) say(note);
  ::execvp(argv[0], argv);
  return explain_exec_failure(argv[0], errno);
}

}  // namespace aperture::tool
