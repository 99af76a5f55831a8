// `aperture run -- CMD` and `aperture explain -- CMD`: replace this process by CMD in surroundings
// that lead to the provider, and in which the provider says why it refuses.
#pragma once

#include <string>

namespace aperture::tool {

struct RunOptions {
  bool one_sided = false;  // Open MPI's one-sided communication is led to the provider too
  bool explain = false;
  std::string as{};      // another name that the provider answers under too; empty: none
  std::string faults{};  // to inject, as APERTURE_FAULT has them; empty: what that says
};

// argv is CMD and its arguments, ended by nullptr. Returns only on failure, with the exit code
// (127 not found, 126 not executable, 125 anything of our own), having said why on stderr.
int run(char* const* argv, const RunOptions& options);

}  // namespace aperture::tool
