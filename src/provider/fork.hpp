// What a forked child meets at this door: what its parent had opened stays with the parent, so each
// call on that is turned away; what it opens itself works. fork(2); the man pages of libfabric
// leave it open.
//
// Calls of the control path ask whose object it is (entry.hpp). Those of the data path do not,
// which would cost each of them three instructions: the objects of one process share a set of
// tables of its own, which is changed in the child, before fork(2) returns there. A child of a bare
// clone(2), which runs no handlers, must not make them.
#pragma once

#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "base/errc.hpp"
#include "provider/entry.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

using InForkedChild = NotOffered<Sentence(kForked), -FI_EOPNOTSUPP>;

// Every slot that reaches an engine. "described": with descriptors to be looked at.
struct CallTables {
  fi_ops_msg msg, msg_described, msg_many;  // many: receives have FI_MULTI_RECV by default
  fi_ops_msg msg_datagram;
  fi_ops_tagged tagged, tagged_described;
  fi_ops_msg msg_buffered;  // buffered: messages are shown, and then claimed or discarded
  fi_ops_tagged tagged_buffered;
  fi_ops_tagged tagged_many;
  fi_ops_msg msg_sources;  // sources: src_addr is read first
  fi_ops_tagged tagged_sources;
  fi_ops_rma rma, rma_described;
  fi_ops_atomic atomic, atomic_described;
  fi_ops_msg msg_device;  // device: buffers may lie in one
  fi_ops_tagged tagged_device;
  fi_ops_rma rma_device;
  fi_ops_atomic atomic_device;
  fi_ops_msg msg_triggered;  // triggered: operations have FI_TRIGGER by default
  fi_ops_tagged tagged_triggered;
  fi_ops_rma rma_triggered;
  fi_ops_atomic atomic_triggered;
  fi_ops_cq cq_context, cq_msg, cq_data, cq_tagged;
  fi_ops_cntr cntr;
};

// Those of this process; they outlive all objects. Errors: no_memory.
Result<CallTables*> call_tables() noexcept;

// Those that work, and in the child, over inherited ones, those that refuse.
void fill_messages(CallTables& tables) noexcept;  // ep_msg.cpp
void fill_tagged(CallTables& tables) noexcept;    // ep_tagged.cpp
void fill_rma(CallTables& tables) noexcept;       // ep_rma.cpp
void fill_atomics(CallTables& tables) noexcept;   // ep_atomic.cpp
void turn_away_atomics(CallTables& tables) noexcept;
void fill_triggered(CallTables& tables) noexcept;  // ep_triggered.cpp, after all of these
void fill_cq_reads(CallTables& tables) noexcept;   // cq_read.cpp
void turn_away_cq_reads(CallTables& tables) noexcept;
void fill_counters(CallTables& tables) noexcept;  // cntr.cpp
void turn_away_counters(CallTables& tables) noexcept;

}  // namespace aperture::provider
