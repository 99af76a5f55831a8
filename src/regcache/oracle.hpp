// Whether a resource that is about to be handed out is really of the memory that is there: oracle
// mode, APERTURE_MR_CACHE_CHECK=1.
//
// When a resource was made, and again at each hit, the kernel is asked what lies there: mappings,
// and the frames of their pages where it tells (/proc/self/pagemap, to root alone) and the resource
// holds them: it keeps them where they are, so another frame is another page. Without frames, what
// was unmapped and mapped again as the same kind of memory is not found. This takes microseconds a
// page and is for finding a defect of a monitor, or a way of changing memory that none can notice.
//
// No state of its own; any thread, no lock of the cache held.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "regcache/range.hpp"

namespace aperture::regcache {

class Oracle {
 public:
  struct View {
    struct Page {
      uint64_t frame = 0;  // 0: not told or not asked for, or there is none
      uint64_t inode = 0;
      bool is_mapped = false;
      bool is_private = false;
    };
    Range range;
    std::vector<Page> pages;
  };

  // What is there now; nullptr where there is no memory for it.
  // `are_held`: whether its pages can be told by their frames.
  static std::unique_ptr<View> look(const Range& range, bool are_held) noexcept;
  // What makes a resource stale that was made when memory looked like `then`, and the calls that do
  // so: a sentence, or none.
  static std::string why_stale(const View& then, const View& now);
};

}  // namespace aperture::regcache
