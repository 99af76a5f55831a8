// One-sided measures: reads, writes and fetching adds, whose target polls or sleeps, and the
// ping-pong of writes that are seen in memory alone.
#pragma once

#include <memory>

#include "verbbench/task.hpp"

namespace aperture::bench {

enum class Verb { read, write, fetch_add };

// As ib_write_lat: each side spins on its memory for the other's write, answers with one of its
// own, and looks at its completion queue for that one alone.
std::unique_ptr<VerbsTask> make_spinning(const Setup&, Side&, size_t size_bytes);

// Rank 0 keeps `window` operations outstanding (1: latency) against one region of the target, or
// each side does.
std::unique_ptr<VerbsTask> make_one_sided(const Setup&, Side&, Target, Verb, size_t size_bytes,
                                          size_t window, Ways = Ways::one);

// Each of so many ranks keeps `window` writes outstanding, to all others in turn.
std::unique_ptr<VerbsTask> make_all_to_all(const Setup&, Side&, size_t size_bytes, size_t window,
                                           unsigned ranks);

}  // namespace aperture::bench
