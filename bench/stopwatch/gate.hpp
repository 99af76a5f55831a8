// Where several pairs meet before they are timed, so that their rates are of the same time.
//
// Lives in shared pages that were made before the processes; its words are written by all of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "stopwatch/pages.hpp"

namespace aperture::bench {

// Why one that waited in vain has failed.
inline constexpr char kNotAllCame[] = "the others did not come to their start";

class Gate {
 public:
  explicit Gate(unsigned parties);

  // Sleeps until all parties have come; the time at which the last one did. Throws Failure when one
  // does not come for longer than several operations may take.
  uint64_t pass();

 private:
  struct Words {
    std::atomic<uint32_t> arrived;
    std::atomic<uint64_t> opened_ns;  // 0: not yet
  };

  Words& words() const noexcept { return *reinterpret_cast<Words*>(pages_.data()); }

  const unsigned parties_;
  Pages pages_;
};

}  // namespace aperture::bench
