// The rows of several threads of each process, over either door.
#pragma once

#include <string>
#include <vector>

#include "stopwatch/pairs.hpp"

namespace aperture::bench {

struct ThreadedRow {
  std::string name;
  const char* about;
  Crowding crowd;
};

// NAME_threads_4, with one queue for all; NAME_threads_4_EACH for each of the others that has a
// name. Rows of one thread are what the others are compared with.
inline std::vector<ThreadedRow> threaded_rows(const std::string& name, const char* each_queue,
                                              const char* each_container) {
  const struct {
    const char* each;
    Shared shared;
    const char* about;
  } kKinds[] = {{"", Shared::queue, "messages per second of so many threads with one queue"},
                {each_queue, Shared::container, "the same, a queue each of one domain or device"},
                {each_container, Shared::nothing, "the same, a domain each"}};
  std::vector<ThreadedRow> all;
  for (const auto& kind : kKinds) {
    if (kind.each == nullptr) continue;
    for (const unsigned threads : {1u, 2u, 4u, 8u}) {
      const std::string row = name + "_threads_" + std::to_string(threads);
      all.push_back({*kind.each == '\0' ? row : row + "_" + kind.each,
                     kind.about,
                     {Cores::either, 1, threads, kind.shared}});
    }
  }
  return all;
}

}  // namespace aperture::bench
