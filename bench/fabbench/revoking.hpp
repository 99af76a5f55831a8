// Measures of revocation: closing a region into which a peer writes.
#pragma once

#include <memory>

#include "fabbench/task.hpp"

namespace aperture::bench {

// What the writing peer does when the region is closed.
enum class Writer { running, stopped };

// Rank 0 registers a region, lets rank 1 write into it without pause, and closes it.
std::unique_ptr<FabricTask> make_revoking(const Setup&, Side&, size_t size_bytes, Writer);

}  // namespace aperture::bench
