// The rows of several pairs of polling processes that share two cores, or one, over either door.
#pragma once

#include <string>
#include <vector>

#include "stopwatch/pairs.hpp"

namespace aperture::bench {

struct CrowdedRow {
  std::string name;
  size_t size_bytes;
  bool writes;  // else messages
  const char* about;
  Crowding crowd;
};

// What a row of one pair is called, to which the number of pairs is put: NAME_crowded_4, and
// NAME_crowded_4_one on one core.
inline std::vector<CrowdedRow> crowded_rows(const char* writes, const char* small,
                                            const char* large) {
  const struct {
    const char* name;
    size_t size_bytes;
  } kKinds[] = {{writes, 4096}, {small, 64}, {large, 65536}};
  std::vector<CrowdedRow> all;
  for (const auto& kind : kKinds) {
    for (const unsigned pairs : {2u, 4u, 8u}) {
      for (const Cores cores : {Cores::either, Cores::one}) {
        const bool one = cores == Cores::one;
        all.push_back(
            {std::string(kind.name) + "_crowded_" + std::to_string(pairs) + (one ? "_one" : ""),
             kind.size_bytes,
             kind.name == writes,
             one ? "sum of so many pairs of polling processes on one core"
                 : "sum of so many pairs of polling processes on two cores",
             {cores, pairs}});
      }
    }
  }
  return all;
}

}  // namespace aperture::bench
