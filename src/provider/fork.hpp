// What a forked child meets at this door: the engine and its threads stay with the parent, so each
// call is turned away. fork(2); the man pages of libfabric leave it open.
//
// Calls of the control path ask (entry.hpp). Those of the data path do not, which would cost each
// of them three instructions: their tables are changed in the child, before fork(2) returns there.
// A child of a bare clone(2), which runs no handlers, must not make them.
#pragma once

#include "base/errc.hpp"
#include "provider/entry.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

using InForkedChild = NotOffered<Sentence(kForked), -FI_EOPNOTSUPP>;

// From the first domain on. Errors: no_memory.
Status turn_away_in_forked_children() noexcept;

// In the child: every slot of these tables that reaches the engine refuses.
void turn_away_messages() noexcept;  // ep_msg.cpp
void turn_away_receives() noexcept;  // ep_multi_recv.cpp, after the one above
void turn_away_tagged() noexcept;    // ep_tagged.cpp
void turn_away_rma() noexcept;       // ep_rma.cpp
void turn_away_atomics() noexcept;   // ep_atomic.cpp
void turn_away_cq_reads() noexcept;  // cq_read.cpp
void turn_away_counters() noexcept;  // cntr.cpp

}  // namespace aperture::provider
