// fid_cntr: completion counters. man 3 fi_cntr. Changed under the engine's lock, read by anybody.
#pragma once

#include <rdma/fi_eq.h>

#include <vector>

#include "base/list.hpp"
#include "protect/side_record.hpp"
#include "provider/domain.hpp"
#include "provider/wait.hpp"
#include "qp/completion.hpp"

namespace aperture::provider {

struct Region;
struct Work;

// The operations that wait for a counter, by threshold: triggered ones for its value, deferred work
// for the sum of its value and its errors (work.cpp). Guarded by the engine's lock.
class CounterWork final : public qp::ArrivalListener {
 public:
  explicit CounterWork(qp::Counter& counter) noexcept : counter_(counter) {}
  bool is_empty() const noexcept { return triggered_.empty() && deferred_.empty(); }
  bool is_met(const Work& work) const noexcept;
  void add(Work& work) noexcept;
  void remove(Work& work) noexcept;
  void on_arrival(bool from_call) noexcept override;

 private:
  List<Work>& list_of(const Work& work) noexcept;
  void settle() noexcept;

  qp::Counter& counter_;
  List<Work> triggered_;
  List<Work> deferred_;
};

// Counts the remote writes of regions that a counter is bound to.
struct RegionWatcher final : protect::WriteWatcher {
  explicit RegionWatcher(qp::Counter& counter) noexcept : counter_(counter) {}
  void on_remote_write() noexcept override { counter_.add(1); }

 private:
  qp::Counter& counter_;
};

struct Cntr : Waited<fid_cntr> {
  qp::Counter core;
  // Guarded by the engine's lock. At the last read, for fi_trywait:
  uint64_t seen_value = 0;
  uint64_t seen_errors = 0;
  uint64_t seen_settings = 0;
  // Of fi_cntr_set, fi_cntr_add and their like: how many there were, and what the last one made it.
  uint64_t settings = 0;
  uint64_t set_value = 0;
  uint64_t set_errors = 0;
  CounterWork work{core};
  RegionWatcher watcher{core};   // in the side records of `regions`
  std::vector<Region*> regions;  // that it is bound to; guarded by the engine's lock

  int try_wait() noexcept;  // on the descriptor, as try_sleep_unless: it has changed
  void note_seen() noexcept;
  void leave_regions() noexcept;  // mr_bind.cpp; they count no more. Lock not held
};

}  // namespace aperture::provider
