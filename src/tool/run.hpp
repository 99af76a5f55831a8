// `aperture run -- CMD`: replaces this process by CMD in surroundings that lead to the provider.
#pragma once

namespace aperture::tool {

// argv is CMD and its arguments, ended by nullptr; with one_sided, Open MPI's one-sided
// communication is led to the provider too. Returns only on failure, with the exit code
// (127 not found, 126 not executable, 125 anything of our own), having said why on stderr.
int run(char* const* argv, bool one_sided);

}  // namespace aperture::tool
