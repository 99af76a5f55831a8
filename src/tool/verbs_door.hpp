// The verbs door, as `aperture run` opens it: our libibverbs.so.1, and the real one beside it under
// the private name that ours needs. Links to both stand in one folder of the user's: ld.so seeks
// what a library needs beside the path by which it was asked for ($ORIGIN), links and all.
//
// A preloaded library that is there while what it needs is not makes every child of a program fail.
// So it is preloaded through its link: who loses the folder loses both, and ld.so goes on without
// them. What fails otherwise a probe process finds first; then programs run without the verbs door.
#pragma once

#include <string>

namespace aperture::tool {

inline constexpr const char* kVerbsFile = "libibverbs.so.1";
inline constexpr const char* kRealVerbsName = "libaperture-real-ibverbs.so.1";
// By which some programs ask first (NCCL), though it is there for linkers.
inline constexpr const char* kPlainVerbsName = "libibverbs.so";
inline constexpr const char* kVerbsProbeWord = "probe-verbs-door";

struct VerbsDoor {
  std::string library;  // absolute path of ours
  std::string real;     // of the real libibverbs
  // where kRealVerbsName is a link to it, and kVerbsFile and kPlainVerbsName to ours
  std::string folder;
  std::string preload;  // the link there that is to be preloaded
  std::string why_not;  // a sentence; empty: the door is open
};

// Whether what was found the last time is enough (kept_answer.hpp).
enum class Probes { as_kept, anew };

// Finds both libraries, makes the links, and tries them out. command_folder: see places.hpp.
VerbsDoor open_verbs_door(const std::string& command_folder, Probes probes);

// What the probe process does: 0 if the doors' libraries are in it.
int probe_verbs_door();

}  // namespace aperture::tool
