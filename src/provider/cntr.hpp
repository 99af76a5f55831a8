// fid_cntr: completion counters. man 3 fi_cntr. Changed under the engine's lock, read by anybody.
#pragma once

#include <rdma/fi_eq.h>

#include <vector>

#include "protect/side_record.hpp"
#include "provider/domain.hpp"
#include "provider/wait.hpp"
#include "qp/completion.hpp"

namespace aperture::provider {

struct Region;

// Counts the remote writes of regions that a counter is bound to.
struct RegionWatcher final : protect::WriteWatcher {
  explicit RegionWatcher(qp::Counter& counter) noexcept : counter_(counter) {}
  void on_remote_write() noexcept override { counter_.add(1); }

 private:
  qp::Counter& counter_;
};

struct Cntr : Waited<fid_cntr> {
  qp::Counter core;
  uint64_t seen_value = 0;  // at the last read; for fi_trywait; guarded by the engine's lock
  uint64_t seen_errors = 0;
  RegionWatcher watcher{core};   // in the side records of `regions`
  std::vector<Region*> regions;  // that it is bound to; guarded by the engine's lock

  int try_sleep() noexcept;  // as try_sleep_unless: it has changed
  void note_seen() noexcept;
  void leave_regions() noexcept;  // mr_bind.cpp; they count no more. Lock not held
};

}  // namespace aperture::provider
