// fid_cq: completions. man 3 fi_cq. Guarded by its engine's lock but for what says otherwise.
#pragma once

#include <rdma/fi_eq.h>

#include <atomic>
#include <string>

#include "provider/domain.hpp"
#include "provider/wait.hpp"
#include "qp/completion.hpp"

namespace aperture::provider {

struct FabricCq : Waited<fid_cq> {
  explicit FabricCq(size_t capacity) : core(capacity), entries(core.capacity()) {}

  fi_cq_format format = FI_CQ_FORMAT_CONTEXT;
  uint32_t reads = 0;
  qp::Cq core;
  const size_t entries;  // as opened; the core's own number may grow, under the lock

  fi_cq_wait_cond wait_cond = FI_CQ_COND_NONE;
  uint32_t api_version = 0;
  std::string last_sentence;          // lent out as err_data until the next read
  std::atomic<bool> signaled{false};  // fi_cq_signal; any thread

  // As try_sleep_unless; there is something when so many entries are there, or an error is.
  int try_sleep(Waits waits, size_t threshold = 1) noexcept;
};

// cq_read.cpp
fi_ops_cq* cq_ops(CallTables& tables, fi_cq_format format) noexcept;

}  // namespace aperture::provider
