// What the kernel says of our memory now: /proc/self/maps, proc_pid_maps(5). Mappings: one thread
// at a time, and nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fd.hpp"
#include "regcache/range.hpp"

namespace aperture::regcache {

struct MappingSeen {
  Range range;
  bool is_private = false;
  uint64_t inode = 0;  // of its file; 0: it has none

  // Every change of it is made through a mapping, where a monitor can notice it. A file may be cut,
  // punched or written through a descriptor, or by another process.
  bool is_alone() const noexcept { return is_private && inode == 0; }
};

class Mappings {
 public:
  Mappings() noexcept;
  // The next one, in the order of addresses. False: there is none, or the kernel cannot be asked.
  bool next(MappingSeen& seen) noexcept;

 private:
  bool fill() noexcept;

  UniqueFd fd_;
  size_t at_ = 0;      // of the next line in text_
  size_t filled_ = 0;  // of it
  char text_[8192];    // more than the longest line, whose path has 4096 bytes at most
};

// The whole mappings of which the range is a part; empty unless all of it is mapped, and alone. Any
// thread. Some 1 us from Linux 6.11 on; before, the list of all mappings is read.
Range mapped_alone_around(const Range& range) noexcept;
// The first whole mapping that is alone and of which a part lies in the range; empty: there is
// none. Any thread, and as long as that.
Range first_mapped_alone_in(const Range& range) noexcept;

}  // namespace aperture::regcache
