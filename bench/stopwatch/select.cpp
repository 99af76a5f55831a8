// Pattern lists.
#include "stopwatch/select.hpp"

#include <fnmatch.h>

#include <cstdio>
#include <cstring>

namespace aperture::bench {

bool selected(const std::string& list, const std::string& name, size_t size_bytes) {
  if (list.empty()) return true;
  const std::string full = name + '/' + std::to_string(size_bytes);
  for (size_t from = 0; from <= list.size();) {
    const size_t to = std::min(list.find(',', from), list.size());
    const std::string pattern = list.substr(from, to - from);
    if (::fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
    if (::fnmatch(pattern.c_str(), full.c_str(), 0) == 0) return true;
    from = to + 1;
  }
  return false;
}

bool parse_cpus(const char* text, int (&cpus)[2]) {
  if (std::strcmp(text, "-") == 0) {
    cpus[0] = cpus[1] = -1;
    return true;
  }
  char rest;
  return std::sscanf(text, "%d,%d%c", &cpus[0], &cpus[1], &rest) == 2 && cpus[0] >= 0 &&
         cpus[1] >= 0;
}

}  // namespace aperture::bench
