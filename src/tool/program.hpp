// A look at the program before it is run: where it is, and whether the provider can get into it.
//
// The kernel and libfabric both fail without a word where this one says a sentence. No state.
#pragma once

#include <string>

namespace aperture::tool {

// Exit codes as env(1) and shells use them.
inline constexpr int kExitOwnFailure = 125;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

struct Program {
  std::string path;     // what execvp would run; empty if there is none
  std::string problem;  // why it cannot be run; empty if it can
  int exit_code = 0;    // what to exit with when there is a problem
};

// Looks a command up as execvp does: a name with a slash is a path, else the folders of search_path
// (the value of PATH) in turn.
Program find_program(const std::string& command, const std::string& search_path);

// One sentence on why Aperture will not reach this program (statically linked, built for another
// machine or C library, set-user-ID) or not all of it (Go's), or empty. Nothing is said about
// scripts and unreadable files.
std::string why_out_of_reach(const std::string& path);

// False: it is built for another machine than this command, or for musl, so that its ld.so would
// complain of a preloaded library of ours, or refuse to start it. True also of scripts and
// unreadable files.
bool bears_preload(const std::string& path);

}  // namespace aperture::tool
