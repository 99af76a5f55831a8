// The environment under which a program, and every process that it starts, finds and chooses the
// provider; and what the user's own settings do to that.
//
// A setting that the user made is never changed: if it keeps Aperture from being chosen, a note
// says so. The exceptions are lists, in front of which our part goes. What an outer `aperture run`
// chose is no setting of the user's: it says what that was, and an inner one begins anew. Pure
// functions; nothing here touches the process's own environment but apply().
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace aperture::tool {

// The value of an environment variable, or nullptr.
using Lookup = std::function<const char*(const char* name)>;

// The names of the variables that a run chose, with commas between them.
inline constexpr const char* kChosenVariable = "APERTURE_CHOSEN";

struct Surroundings {
  std::vector<std::string> unset;                             // to be unset, before anything is set
  std::vector<std::pair<std::string, std::string>> settings;  // to be set, in this order
  std::vector<std::string> notes;  // a sentence for each setting in Aperture's way
};

struct Place {
  std::string provider_folder;
  std::string libfabric_folder;   // scanned by libfabric when FI_PROVIDER_PATH is unset
  bool root = false;              // Open MPI refuses root unless told otherwise
  bool one_sided = false;         // MPI windows shall go through Aperture, not only messages
  bool explain = false;           // the provider shall say why it refuses
  std::string as{};               // another name to answer under; empty: none
  std::string faults{};           // to inject; empty: those that the user has set, if any
  std::string explain_library{};  // what says why libfabric refuses; empty: there is none
  std::string verbs_library{};    // a link to our libibverbs.so.1; empty: without the verbs door
  std::string verbs_folder{};     // where it is, and the real one under its private name
  std::string chosen{};           // what kChosenVariable has: an outer run is there
};

// Empty: the list of paths in that variable can hold the path. Else the beginning of a sentence:
// which character in it divides the list. Of LD_PRELOAD, LD_LIBRARY_PATH and FI_PROVIDER_PATH.
std::string why_not_in_list(const char* variable, const std::string& path);

Surroundings plan(const Place& place, const Lookup& lookup);

// The verbs door alone: LD_PRELOAD and LD_LIBRARY_PATH with our part in front of the user's. A
// program with AddressSanitizer would insist on standing first itself, so it is told not to.
void add_verbs_door(const std::string& library, const std::string& folder, const Lookup& lookup,
                    Surroundings& out);

// True if a selection list of libfabric or Open MPI leaves name in: "a,b", or "^a,b" for all but
// those.
bool list_admits(const std::string& list, const std::string& name);

// Carries it out in this process's environment. False when memory is out.
bool apply(const Surroundings& surroundings);

}  // namespace aperture::tool
