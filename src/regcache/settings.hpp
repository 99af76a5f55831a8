// What a user sets for registration caches, by libfabric's variables: fi_mr(3), "Memory
// registration cache". Any thread; no state but the environment.
#pragma once

#include "regcache/cache.hpp"

namespace aperture::regcache {

enum class MonitorKind : uint8_t { userfaultfd, memhooks, disabled };

struct Settings {
  Options cache;
  // FI_MR_CACHE_MONITOR. disabled: nothing is kept; also where a limit is 0.
  MonitorKind monitor = MonitorKind::userfaultfd;
};

// A value that means nothing is said to be so (APERTURE_LOG=warn): such a monitor switches the
// cache off, such a number or switch is taken as not set. FI_MR_CUDA_CACHE_MONITOR_ENABLED and so
// on switch nothing, since nothing is kept of device memory: at `info` each that is set is said to.
Settings settings_of_environment() noexcept;

}  // namespace aperture::regcache
