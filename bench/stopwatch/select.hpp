// Choosing measures and CPUs on a command line.
#pragma once

#include <cstddef>
#include <string>

namespace aperture::bench {

// list: comma-separated patterns, each NAME, NAME/SIZE or a glob over either. Empty selects all.
bool selected(const std::string& list, const std::string& name, size_t size_bytes);

// "A,B"; "-" leaves both unpinned.
bool parse_cpus(const char* text, int (&cpus)[2]);

}  // namespace aperture::bench
