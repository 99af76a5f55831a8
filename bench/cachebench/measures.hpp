// The list of measures, and how one is taken: by one process, on the first CPU. What threads a
// cache has run on either of the two.
//
// A cache that is wrong is not worth measuring: what it hands out is checked after each batch, by
// the count of what its registrar has made.
#pragma once

#include <string>
#include <vector>

#include "cachebench/door.hpp"
#include "cachebench/pages_apart.hpp"
#include "stopwatch/pair.hpp"
#include "stopwatch/pairs.hpp"
#include "stopwatch/task.hpp"

namespace aperture::bench {

enum class Act {
  hit,    // a range that is kept is used
  miss,   // one that is new
  unmap,  // munmap(2) of one
  drop,   // madvise(2) with MADV_DONTNEED of one
};

struct Measure {
  const char* name;
  Act act;
  const char* about;
  size_t kept = 1;         // hits: that many entries, in a random order
  bool is_watched = true;  // what is unmapped or dropped is kept, too; false: the cache has not
                           // seen it, but one other page
  PagesApart::Layout layout = PagesApart::Layout::own_mappings;
  size_t size_bytes = PagesApart::kPage;
  Crowding crowd{Cores::either};
  bool hidden = false;
};

const std::vector<Measure>& all_measures();

struct Subject {
  std::string cache = "aperture";  // or none, or the path of a peer's module
  std::string monitor = "userfaultfd";
};

// Runs in both processes of a pair, of which rank 1 has nothing to do. `cpu`: -1: not pinned.
Row take_measure(const Measure& measure, const Subject& subject, Side& side, const Extent& extent,
                 int cpu);

}  // namespace aperture::bench
