// Descriptors of local buffers: what a registration hands out and posts hand back. The descriptor
// of fi_mr(3), the lkey of IBTA vol. 1, 10.6.
//
// A descriptor is a handle: the index of an entry in the key table of this process, and the low 40
// bits of the generation that it was born with, which a refresh does not change. It is looked up
// and never followed, so whatever an application puts there (freed, made up, another library's
// pointer) is answered. No state, any thread; without a lock but where it says so: nothing is
// granted for later, the buffer is the caller's own memory.
#pragma once

#include <cstdint>
#include <string>

#include "protect/key_file.hpp"
#include "protect/key_table.hpp"

namespace aperture::protect {

//   63                  24 23       0
//   | generation, low 40  |  index  |    never 0: the first generation is 1
constexpr unsigned kDescriptorIndexBits = 24;  // OwnKeyFile::kMostRegions entries
constexpr uint64_t kDescriptorIndexMask = (uint64_t{1} << kDescriptorIndexBits) - 1;

inline void* descriptor_of(const RegionHandle& region) noexcept {
  return reinterpret_cast<void*>(region.birth << kDescriptorIndexBits | region.index);
}

// A local buffer that an operation is about to use, as the application described it.
struct LocalAsk {
  DomainId pd = 0;  // that of the endpoint
  const void* descriptor = nullptr;
  uint64_t addr = 0;  // of the buffer: always its virtual address, in any registration mode
  uint64_t len = 0;   // bytes
  Rights need = Rights::none;
  EndpointId through = 0;  // that uses it; 0: whichever shares the receives
};

struct LocalAnswer {
  Denial denial = Denial::none;
  RegionHandle beside;  // if its generation is not 0: ask check_beside() too
};

// none: the descriptor is that of a region of that domain, in force and enabled, with that right,
// which covers the whole buffer. What a region with a side record covers is for check_beside().
LocalAnswer check_local(const KeyFile& file, const LocalAsk& ask) noexcept;
// The rules of the side record. Engine lock of the domain held.
Denial check_beside(KeyTable& table, RegionHandle region, const LocalAsk& ask) noexcept;

// What was wrong, where the region that it met was registered, and what would make it legal. Slow;
// may allocate.
std::string explain_local(const KeyFile& file, const LocalAsk& ask, Denial denial,
                          const Wording& door = kNeutralWording);

}  // namespace aperture::protect
