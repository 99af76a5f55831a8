// Measures of memory registration: its cost, and access to one of very many regions.
#pragma once

#include <memory>

#include "fabbench/task.hpp"

namespace aperture::bench {

// Many regions of 64 bytes each, side by side in one buffer of 64 MiB.
inline constexpr size_t kManyRegions = 1'000'000;

// Rank 0 registers and closes a region, over and over, while `others` regions are open.
std::unique_ptr<FabricTask> make_registering(const Setup&, Side&, size_t size_bytes, size_t others);

enum class Choice { same, random };

// Rank 0 reads 8 bytes of one of the target's kManyRegions: always the same one, or any.
std::unique_ptr<FabricTask> make_many_regions(const Setup&, Side&, Target, Choice);

}  // namespace aperture::bench
