// Changing the tables in a forked child: see fork.hpp.
#include "provider/fork.hpp"

#include <pthread.h>

#include "provider/ep_described.hpp"
#include "provider/ep_multi_recv.hpp"

namespace aperture::provider {

namespace {

void turn_away() noexcept {
  turn_away_messages();
  turn_away_receives();
  turn_away_tagged();
  turn_away_rma();
  turn_away_atomics();
  turn_away_cq_reads();
  turn_away_counters();
}

}  // namespace

Status turn_away_in_forked_children() noexcept {
  static const bool installed = [] {
    // made now: a child could wait for ever for a thread that was making them when it was forked
    described_msg_ops();
    described_tagged_ops();
    described_rma_ops();
    multi_recv_ops();
    return ::pthread_atfork(nullptr, nullptr, turn_away) == 0;
  }();
  return installed ? Status{} : Errc::no_memory;
}

}  // namespace aperture::provider
