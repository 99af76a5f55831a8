// Measures of 8-byte atomics: fetching ones one at a time, posted ones as a stream.
#pragma once

#include <memory>

#include "fabbench/task.hpp"

namespace aperture::bench {

// Rank 0 adds 1 to a word of the target and waits for what was there before.
std::unique_ptr<FabricTask> make_fetching(const Setup&, Side&, Target);

// Rank 0 adds 1 to a word of the target without looking; done when the target's word holds all.
std::unique_ptr<FabricTask> make_posted(const Setup&, Side&, size_t window);

}  // namespace aperture::bench
