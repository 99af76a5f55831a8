// The verbs door, as `aperture run` opens it: our libibverbs.so.1, and the real one beside it under
// the private name that ours needs.
//
// A library that LD_PRELOAD names and that cannot be loaded makes every child of a program fail, so
// a probe process is started first; when that fails, programs run without the verbs door.
#pragma once

#include <string>

namespace aperture::tool {

inline constexpr const char* kVerbsFile = "libibverbs.so.1";
inline constexpr const char* kRealVerbsName = "libaperture-real-ibverbs.so.1";
// By which some programs ask first (NCCL), though it is there for linkers.
inline constexpr const char* kPlainVerbsName = "libibverbs.so";
inline constexpr const char* kVerbsProbeWord = "probe-verbs-door";

struct VerbsDoor {
  std::string library;      // absolute path of ours
  std::string real;         // of the real libibverbs
  std::string real_folder;  // where kRealVerbsName is a link to it, and kPlainVerbsName to ours
  std::string why_not;      // a sentence; empty: the door is open
};

// Finds both libraries, makes the link, and tries them out. command_folder: see places.hpp.
VerbsDoor open_verbs_door(const std::string& command_folder);

// What the probe process does: 0 if the doors' libraries are in it.
int probe_verbs_door();

}  // namespace aperture::tool
