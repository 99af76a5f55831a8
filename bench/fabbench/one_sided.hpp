// One-sided measures: fi_write with data in ping-pong, and plain reads and writes whose target
// polls or sleeps.
#pragma once

#include <memory>

#include "fabbench/task.hpp"

namespace aperture::bench {

enum class Verb { read, write };

// Each side writes into the other with remote CQ data and waits for the data of the other's write.
std::unique_ptr<FabricTask> make_write_ping_pong(const Setup&, Side&, size_t size_bytes);

// Rank 0 keeps `window` operations outstanding (1: latency) against one region of the target, or
// each side does.
std::unique_ptr<FabricTask> make_one_sided(const Setup&, Side&, Target, Verb, size_t size_bytes,
                                           size_t window, Ways = Ways::one);

// Each of so many ranks keeps `window` writes outstanding, to all others in turn.
std::unique_ptr<FabricTask> make_all_to_all(const Setup&, Side&, size_t size_bytes, size_t window,
                                            unsigned ranks);

}  // namespace aperture::bench
