// Measures of memory windows: binding and invalidating.
#pragma once

#include <memory>

#include "verbbench/task.hpp"

namespace aperture::bench {

enum class WindowType { one, two };

// Rank 0 binds a window of type 2 and invalidates it, or binds one of type 1 anew; `regions` are
// registered, and with more than one the windows take turns.
std::unique_ptr<VerbsTask> make_binding(const Setup&, Side&, WindowType, size_t regions);

}  // namespace aperture::bench
