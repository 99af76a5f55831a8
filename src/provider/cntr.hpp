// fid_cntr: completion counters. man 3 fi_cntr. Changed under the engine's lock, read by anybody.
#pragma once

#include <rdma/fi_eq.h>

#include "provider/domain.hpp"
#include "provider/wait.hpp"
#include "qp/completion.hpp"

namespace aperture::provider {

struct Cntr {
  fid_cntr fid{};
  nic::Engine* engine = nullptr;
  Domain* domain = nullptr;
  qp::Counter core;
  Sleeper sleeper;
  fi_wait_obj wait_obj = FI_WAIT_NONE;
  WaitSet* wait_set = nullptr;
  uint64_t seen_value = 0;  // at the last read; for fi_trywait; guarded by the engine's lock
  uint64_t seen_errors = 0;
  Uses uses;  // endpoints and poll sets

  int try_sleep() noexcept;  // as Cq::try_sleep
  void note_seen() noexcept;
};

}  // namespace aperture::provider
