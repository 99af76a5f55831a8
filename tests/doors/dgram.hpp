// Datagram endpoints as the tests open them, and a receive with its buffer.
#pragma once

#include "doors/fixture.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {

inline constexpr size_t kDatagramBytes = 4096;  // max_msg_size

inline Options dgram_options(uint64_t caps = FI_MSG, uint64_t mode = FI_CONTEXT | FI_CONTEXT2) {
  return {.type = FI_EP_DGRAM, .caps = caps, .mode = mode};
}

// A posted receive, in memory of its own.
struct Receiving {
  Receiving(Node& node, size_t size, fi_addr_t from = FI_ADDR_UNSPEC) : at(node), memory(size) {
    DOOR(node.post(fi_recv, memory.data(), size, nullptr, from, &op));
  }
  Completion wait(int timeout_ms = 20000) { return at.wait(&op, timeout_ms); }
  // Behind `skip` bytes lies what belongs to the seed, and nothing is written elsewhere.
  bool holds(size_t size, uint64_t seed, size_t skip = 0) const {
    const auto all = memory.span();
    const auto is_zero = [](uint8_t b) { return b == 0; };
    return memory.intact() && !first_difference(all.subspan(skip, size), seed) &&
           std::all_of(all.begin(), all.begin() + static_cast<ptrdiff_t>(skip), is_zero) &&
           std::all_of(all.begin() + static_cast<ptrdiff_t>(skip + size), all.end(), is_zero);
  }

  Node& at;
  Guarded memory;
  Op op;
};

}  // namespace aperture::doors
